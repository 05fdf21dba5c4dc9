"""Whether a frame has anything to do with tensors.

In: a frame under evaluation. Out: True when a tensor, a module or something of torch's is within reach of its variables,
its stack, or the global names that its code mentions. Where nothing is, there is nothing to compile, and the frame is
best left to Python; what it calls is looked at in its own right.
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import torch

from fxloom_dynamo.frame import Frame, Lazy
from fxloom_dynamo.kinds import LITERALS
from fxloom_dynamo.marks import Mark
from fxloom_shapes import FakeTensor

_MOST = 400  # objects looked at; beyond that a tensor is assumed
_CONTAINERS = (list, tuple, set, frozenset, deque)


def has_tensors(frame: Frame) -> bool:
    """See the module's docstring."""
    values = [value.original if type(value) is Lazy else value for value in (*frame.locals.values(), *frame.stack)]
    values += frame.closure
    names = dict.fromkeys(frame.code.co_names)
    values += [frame.globals[name] for name in names if name in frame.globals]
    return _reach(values)


def _reach(values: list[Any]) -> bool:
    seen: set[int] = set()
    waiting = deque(values)
    while waiting:
        value = waiting.popleft()
        kind = type(value)
        if kind in LITERALS:
            if kind.__module__ == "torch":
                return True
            continue
        if id(value) in seen or isinstance(value, Mark):
            continue
        seen.add(id(value))
        if kind is FakeTensor or kind.__module__.partition(".")[0] == "torch" or isinstance(value, (torch.Tensor, torch.nn.Module)):
            return True
        if len(seen) > _MOST:
            return True
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] == "torch":
                return True
            continue
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            if str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
                return True
            if isinstance(value, types.FunctionType):
                waiting.extend(value.__closure__ or ())
                waiting.extend(value.__defaults__ or ())
            continue
        if isinstance(value, types.MethodType):
            waiting.append(value.__self__)
            waiting.append(value.__func__)
        elif kind is types.CellType:
            try:
                waiting.append(value.cell_contents)
            except ValueError:
                continue
        elif isinstance(value, dict):
            waiting.extend(dict.values(value))
            waiting.extend(dict.keys(value))
        elif isinstance(value, _CONTAINERS):
            base: Any = next(base for base in _CONTAINERS if isinstance(value, base))
            waiting.extend(base.__iter__(value))
        if kind.__dictoffset__:
            try:
                waiting.extend(dict.values(object.__getattribute__(value, "__dict__")))
            except (AttributeError, TypeError):
                continue
    return False
