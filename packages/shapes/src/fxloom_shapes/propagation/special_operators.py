"""Operators that propagation of metadata does not cover: they read numbers, or change a tensor's own metadata.

In: an operator of `SPECIAL_OPERATORS`, its arguments and the mode that runs it, if any. Out: what the operator returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_ops.assertions import CHECK
from fxloom_ops.schema import Op
from fxloom_shapes._torch_private import disable_torch_dispatch
from fxloom_shapes.errors import DataDependent, NoFakeKernel
from fxloom_shapes.fake.descriptor import describe, describe_tensor
from fxloom_shapes.fake.tensor import FakeTensor, make_fake
from fxloom_shapes.propagation.active_context import symbols_of_context
from fxloom_shapes.propagation.arguments import with_fakes
from fxloom_shapes.propagation.data_dependent import unbacked_number
from fxloom_shapes.propagation.known_values import numel

if TYPE_CHECKING:
    from fxloom_shapes.propagation.mode import FakeMode

aten = torch.ops.aten
_CPU = torch.device("cpu")
Handler = Callable[[Op, tuple[Any, ...], dict[str, Any], "FakeMode | None"], Any]


def _read_scalar(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Any:
    value = args[0].constant if type(args[0]) is FakeTensor else args[0]
    if value is None:
        env = symbols_of_context(mode)
        captured = env is not None and (env.options.capture_scalars or (env.retracing and env.options.capture_indices))
        number = unbacked_number(env, args[0]) if env is not None and captured else None
        if number is not None:
            return number
        raise DataDependent(str(func), "reading a number out of a tensor (.item(), int(), float(), bool(), if)")
    with disable_torch_dispatch():
        return value.item()


def _assert_scalar(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> None:
    """A check of numbers when the graph runs; its statement was taken as a fact when it was made."""


def _run_for_real(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Any:
    """Names a stretch of the trace for a profiler; there are no tensors in it."""
    with disable_torch_dispatch():
        return func(*args, **kwargs)


def _lift_fresh(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> FakeTensor:
    """`torch.tensor(...)` ends here: a real tensor that nothing else knows becomes a fake that knows its value."""
    value = args[0]
    if type(value) is FakeTensor:
        return value
    fake = make_fake(describe_tensor(value, value.device))
    if value.device == _CPU:
        with disable_torch_dispatch():
            fake.set_constant(value.detach().clone())
    return fake


#: what kernels in C++ ask of a tensor whose sizes are symbolic, by way of the dispatcher: no calls of the program
SIZE_QUERIES = frozenset({aten.size.default, aten.stride.default})


def _plain_numbers(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> list[int]:
    """The sizes or strides for a kernel in C++ that only takes plain ones: the call is specialized to those that it has."""
    desc = args[0].desc
    numbers = desc.size if func is aten.size.default else desc.stride
    if any(type(number) is not int and not number.node.has_hint() for number in numbers):
        raise DataDependent(str(func), "an operator that only takes plain sizes, of a tensor with one known only at run time")
    return [int(number) for number in numbers]


def _change_metadata(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> FakeTensor:
    """In-place metadata operators: `t_`, `squeeze_`, `set_`, `resize_` ..."""
    target = args[0]
    if type(target) is not FakeTensor:
        args, kwargs = with_fakes(args, kwargs, func, mode)
        target = args[0]
    if func._schema.name == "aten::set_":
        return _set_storage(func, target, args[1:])
    if func._schema.name in ("aten::resize_", "aten::resize_as_"):
        needed = numel(tuple(args[1] if func is aten.resize_.default else args[1].desc.size))
        if needed > numel(target.desc.size):
            raise NoFakeKernel(str(func), "a resize to more elements than the tensor has; the new ones are undefined")
    with disable_torch_dispatch():
        func(*args, **kwargs)
    desc = target.desc
    target.desc = describe(tuple(torch.Tensor.size(target)), target.stride(), desc.dtype, desc.device, target.storage_offset(), desc.bits)
    known = getattr(target, "_constant", None)
    if known is not None:
        target._constant = None
    return target


def _set_storage(func: Op, target: FakeTensor, rest: tuple[Any, ...]) -> FakeTensor:
    if len(rest) != 1 or type(rest[0]) is not FakeTensor or rest[0].desc.dtype != target.desc.dtype:
        raise NoFakeKernel(str(func), "set_ with a storage; only set_(tensor) of the same dtype is modelled")
    source = rest[0]
    if source.desc.bits != target.desc.bits:
        raise NoFakeKernel(str(func), "set_ of a lazily conjugated or negated view")
    try:
        with disable_torch_dispatch():
            aten.as_strided_.default(target, source.desc.size, source.desc.stride, source.desc.offset)
    except RuntimeError as error:  # what C++ knows of a fake's memory is what it was made with
        raise NoFakeKernel(str(func), "set_ of a tensor that is larger than the one it replaces") from error
    target.desc = source.desc
    target.storage_token = source.storage_token
    if source.constant is not None:
        target.set_constant(source.constant)
    elif target.constant is not None:
        target._constant = None
    return target


SPECIAL_OPERATORS: dict[Op, Handler] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.lift_fresh.default: _lift_fresh,
    aten._assert_scalar.default: _assert_scalar,
    CHECK: _assert_scalar,
    **dict.fromkeys(SIZE_QUERIES, _plain_numbers),
}
for _name in (
    "t_",
    "transpose_",
    "squeeze_",
    "unsqueeze_",
    "as_strided_",
    "set_",
    "resize_",
    "resize_as_",
    "swapdims_",
    "swapaxes_",
    "detach_",
):
    for _overload in getattr(aten, _name).overloads():
        SPECIAL_OPERATORS[getattr(getattr(aten, _name), _overload)] = _change_metadata
for _name in ("_record_function_enter", "_record_function_enter_new", "_record_function_exit"):
    for _overload in getattr(torch.ops.profiler, _name).overloads():
        SPECIAL_OPERATORS[getattr(getattr(torch.ops.profiler, _name), _overload)] = _run_for_real
