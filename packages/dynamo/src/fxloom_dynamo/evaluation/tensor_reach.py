"""Whether a call can have anything to do with tensors.

In: a frame that has not started. Out: False when its function comes from a module that mentions nothing of torch's, and
neither does anything within reach of its arguments, its cells and the global names that its code uses. There is nothing
to compile in such a frame, and it is best left to Python; what it calls is looked at in its own right.

Invariant: no code of the program runs, so attributes are read below its classes.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.objects.value_types import LITERALS

if TYPE_CHECKING:
    from fxloom_dynamo.guard.entries import FrameView

_MOST = 1000  # objects looked at; beyond that a tensor is assumed
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_OF_TORCH = (torch.Tensor, torch.nn.Module)
_class_dict = vars(type)["__dict__"].__get__
_module_dict = vars(types.ModuleType)["__dict__"].__get__


def may_use_tensors(view: FrameView) -> bool:
    """See the module's docstring."""
    if _mentions_torch(view.globals):
        return True
    values = [*view.locals.values(), *view.closure]
    values += [view.globals[name] for name in view.code.co_names if name in view.globals]
    return _reaches_torch(values)


def _mentions_torch(names: dict[str, Any] | None) -> bool:
    """True for the namespace of a module that imports torch, or a part of it."""
    return names is not None and any(_is_torch(value) for value in names.copy().values())


def _is_torch(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return _in_torch((_module_dict(value) or {}).get("__name__"))
    if kind is types.FunctionType:
        return _in_torch(value.__module__)
    if issubclass(kind, type):
        return _in_torch(_module_of(value))
    return _in_torch(_module_of(kind)) or issubclass(kind, _OF_TORCH)


def _module_of(cls: type) -> Any:
    """A class's `__module__` as its own dict has it; a type of C code's that was never readied has no dict."""
    return (_class_dict(cls) or {}).get("__module__")


def _in_torch(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def _reaches_torch(values: list[Any]) -> bool:
    seen: set[int] = set()
    modules: set[str] = set()
    waiting = deque(values)
    while waiting:
        value = waiting.popleft()
        kind = type(value)
        if kind in LITERALS and not _in_torch(kind.__module__) or id(value) in seen:
            continue
        seen.add(id(value))
        if _is_torch(value) or len(seen) > _MOST:
            return True
        home = _home(value)
        if home is not None and home not in modules:
            modules.add(home)
            module = sys.modules.get(home)
            if module is not None and _mentions_torch(_module_dict(module)):
                return True
        waiting.extend(_parts(value))
    return False


def _home(value: Any) -> str | None:
    """Name of the module that defines a function, a class, or an object's class."""
    kind = type(value)
    if kind is types.FunctionType:
        name = value.__module__
    else:
        name = _module_of(value if issubclass(kind, type) else kind)
    return name if isinstance(name, str) else None


def _parts(value: Any) -> list[Any]:
    """What an object refers to itself; classes, modules and the globals of functions are told by `_home`."""
    kind = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return []
    if kind is types.FunctionType:
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if kind is types.MethodType:
        return [value.__self__, value.__func__]
    if kind is types.CellType:
        try:
            return [value.cell_contents]
        except ValueError:
            return []
    parts: list[Any] = []
    if issubclass(kind, dict):
        parts += [*dict.keys(value), *dict.values(value)]
    elif issubclass(kind, _CONTAINERS):
        base: Any = next(base for base in _CONTAINERS if issubclass(kind, base))
        parts += base.__iter__(value)
    if kind.__dictoffset__:
        try:
            own = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            own = None
        if isinstance(own, dict):
            parts += dict.values(own)
    return parts
