"""Fakes that know their values: small operators on them are computed for real, along with the shapes.

In: an operator and its arguments. Out: real results, kept on the fakes. Invariant: a value is known only as long as nothing that
isn't known was written to its memory.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_ops.schema import Op, SchemaInfo
from fxloom_shapes._torch_private import disable_torch_dispatch
from fxloom_shapes.fake.descriptor import Descriptor, describe_contiguous, describe_tensor
from fxloom_shapes.fake.tensor import FakeTensor, make_fake
from fxloom_shapes.propagation.arguments import result_tensors, tensors_of
from fxloom_shapes.symbols.numbers import SYMBOLIC

aten = torch.ops.aten
_CPU = torch.device("cpu")
#: fakes with known values of at most this many elements are computed along
CONSTANT_NUMEL = 64
KNOWN_FACTORIES = frozenset(
    {
        aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.full.default,
        aten.zeros.default, aten.ones.default, aten.scalar_tensor.default, aten.eye.default,
    }
)  # fmt: skip


def may_be_constant(args: tuple[Any, ...]) -> bool:
    first = args[0]
    if type(first) is FakeTensor:
        return hasattr(first, "_constant") and first.constant is not None
    if (type(first) is list or type(first) is tuple) and first and type(first[0]) is FakeTensor:
        return hasattr(first[0], "_constant")
    return type(first) in (int, float, bool)  # `torch.div(12, 4)`: a number where the operator has a tensor


def _constants_of(value: Any) -> Any:
    """`value` with fakes replaced by their known values; raises LookupError when one is unknown."""
    if type(value) is FakeTensor:
        known = value.constant
        if known is None:
            raise LookupError
        return known
    if type(value) is list or type(value) is tuple:
        return type(value)([_constants_of(item) for item in value])
    if type(value) in SYMBOLIC:
        raise LookupError
    return value


def compute_constant(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator on known values, as fakes that know theirs; None when a value is unknown."""
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return None
    tensors = list(tensors_of(args, kwargs))
    if not tensors or any(tensor.desc.device != _CPU for tensor in tensors):
        return None
    with disable_torch_dispatch(), torch.no_grad():
        result = func(*real_args, **real_kwargs)

    def wrap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            fake = make_fake(describe_tensor(value, value.device))
            fake.set_constant(value)
            return fake
        if isinstance(value, (tuple, list)):
            return tuple(wrap(item) for item in value)
        return value

    return wrap(result)


def known_masks(indices: Any) -> Any:
    """The indices with masks of known value replaced by the numbers that they stand for."""
    found: list[Any] = []
    for item in indices:
        known = item.constant if type(item) is FakeTensor and item.desc.dtype is torch.bool else None
        if known is None or not known.dim():
            found.append(item)
            continue
        with disable_torch_dispatch():
            columns = known.nonzero().unbind(1)
        found += [make_fake(describe_contiguous(column.shape, torch.int64, item.desc.device)) for column in columns]
    return found


def _may_be_known(desc: Descriptor, anywhere: bool = False) -> bool:
    return (anywhere or desc.device == _CPU) and desc.env is None and numel(desc.size) <= CONSTANT_NUMEL


#: give the very numbers that they get, so that what the CPU makes of known ones is what any device does
_SAME_NUMBERS = frozenset({aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default, aten.view.default})


def _keeps_numbers(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return func in _SAME_NUMBERS and kwargs.get("dtype") in (None, args[0].desc.dtype)


def carry_constant(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Compute a small operator on known values along with the shapes."""
    outputs = list(tensors_of((out,), None))
    if func is torch.ops.aten.as_strided.default:
        return  # sees memory, which is not that of the known value
    anywhere = _keeps_numbers(func, args, kwargs)
    if not outputs or not all(_may_be_known(item.desc, anywhere) for item in outputs):
        return
    if anywhere:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return
    with disable_torch_dispatch(), torch.no_grad():
        result = list(result_tensors(func(*real_args, **real_kwargs)))
    if len(result) == len(outputs):
        for fake, value in zip(outputs, result, strict=True):
            fake.set_constant(value)


def written_constant(func: Op, info: SchemaInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What the first argument holds after an operator that writes to it; None where a value is unknown."""
    if [(position, is_out) for position, _, is_out in info.writes] != [(0, False)] or info.seeded or info.inplace_view:
        return None
    if args[0].desc.device != _CPU:
        return None
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return None
    with disable_torch_dispatch(), torch.no_grad():
        written: torch.Tensor = real_args[0].clone()
        func(written, *real_args[1:], **real_kwargs)
    return written


def numel(size: tuple[int, ...]) -> int:
    count = 1
    for extent in size:
        count *= extent
    return count
