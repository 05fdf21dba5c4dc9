"""The arguments of an operator: the fakes among them, and the key that differs for calls with different metadata.

In: an operator with its arguments, as torch's dispatcher gives them: tensors lie at the top or in lists and tuples there. Out: the key
of the plan cache, or `RealTensor` where not all tensors are fakes; the fakes in flat order; the arguments with real tensors made
fakes. Invariant: calls with equal keys have the same plan, so a key holds descriptors, and numbers with their types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fxloom_ops.schema import Op
from fxloom_shapes.fake.descriptor import Descriptor
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.propagation.active_context import trace_context
from fxloom_shapes.symbols.numbers import SYMBOLIC, SymbolicKey

if TYPE_CHECKING:
    from fxloom_shapes.propagation.mode import FakeMode
    from fxloom_shapes.symbols.env import SymbolEnv

Key = tuple[Any, ...]
_float32 = torch.float32
_default_dtype = torch.get_default_dtype


def environment(key: Key) -> SymbolEnv | None:
    """The environment of the symbols in a key, None where there are none."""
    for part in key:
        kind = type(part)
        if kind is Descriptor or kind is SymbolicKey:
            if part.env is not None:
                return part.env  # type: ignore[no-any-return]  # parts of a key are anything
        elif kind is tuple:
            found = environment(part)
            if found is not None:
                return found
    return None


class RealTensor(Exception):
    """A real tensor among the arguments."""


def key_of(operator: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Key:
    parts: list[Any] = [operator]
    add = parts.append
    default = _default_dtype()
    if default is not _float32:
        add(default)  # the dtype of factories, and of what integers are divided into
    for value in args:
        kind = type(value)
        if kind is FakeTensor:
            add(value.desc)
        elif kind is list or kind is tuple:
            add(_sequence_key(value))
        elif isinstance(value, torch.Tensor):
            raise RealTensor
        else:
            # the type too: 1, 1.0 and True are equal keys of different meaning
            add(kind)
            add(value if kind not in SYMBOLIC else SymbolicKey(value.node))
    if kwargs:
        for name, value in kwargs.items():
            add(name)
            kind = type(value)
            if kind is FakeTensor:
                add(value.desc)
            elif kind is list or kind is tuple:
                add(_sequence_key(value))
            elif isinstance(value, torch.Tensor):
                raise RealTensor
            else:
                add(kind)
                add(value if kind not in SYMBOLIC else SymbolicKey(value.node))
    return tuple(parts)


def _sequence_key(values: Any) -> tuple[Any, ...]:
    parts = []
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            parts.append(value.desc)
        elif isinstance(value, torch.Tensor):
            raise RealTensor
        elif kind is list or kind is tuple:
            parts.append(_sequence_key(value))
        else:
            parts.append((kind, value if kind not in SYMBOLIC else SymbolicKey(value.node)))
    return tuple(parts)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Iterator[FakeTensor]:
    """The fakes among the arguments, in flat order; `ViewOf.index` counts these."""
    for value in args:
        if type(value) is FakeTensor:
            yield value
        elif type(value) is list or type(value) is tuple:
            yield from (item for item in value if type(item) is FakeTensor)
    if kwargs:
        for value in kwargs.values():
            if type(value) is FakeTensor:
                yield value
            elif type(value) is list or type(value) is tuple:
                yield from (item for item in value if type(item) is FakeTensor)


def with_fakes(args: tuple[Any, ...], kwargs: dict[str, Any], func: Op, mode: FakeMode | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if mode is None:
        context = trace_context()
        if context is None:
            raise RuntimeError(f"{func}: a real tensor meets a fake one outside of FakeMode and of any trace context")
        mode = context.fake_mode

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
            return mode.from_tensor(value)
        if type(value) is list or type(value) is tuple:
            return type(value)([convert(item) for item in value])
        return value

    return tuple(convert(value) for value in args), {name: convert(value) for name, value in kwargs.items()}


def is_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if any(tensor.desc.env is not None for tensor in tensors_of(args, kwargs)):
        return True
    return any(type(leaf) in SYMBOLIC for value in (*args, *kwargs.values()) for leaf in _flat(value))


def _flat(value: Any) -> Any:
    return value if type(value) in (list, tuple) else (value,)


def result_tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from result_tensors(item)
