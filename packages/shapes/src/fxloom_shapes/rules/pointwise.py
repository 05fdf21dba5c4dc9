"""Elementwise operators, functional and in place. One line per operator: which type the result has.

In: the device and the operator's arguments. Out: a plan: a new tensor with the strides that TensorIterator gives it, the written
argument itself for an operator in place, or None to decline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, describe, describe_contiguous, is_empty
from fxloom_shapes.fake.layout import NUMBERS, common_dtype, elementwise_stride, is_non_overlapping_and_dense
from fxloom_shapes.fake.plans import Plan, SameAs
from fxloom_shapes.fake.sizes import broadcast
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.rules.registry import fresh, several, shape_rule
from fxloom_shapes.rules.view import copy_of

aten = torch.ops.aten
Dtype = Callable[[torch.dtype], "torch.dtype | None"]


def _same(common: torch.dtype) -> torch.dtype:
    return common


def to_float(common: torch.dtype) -> torch.dtype:
    return common if common.is_floating_point else torch.get_default_dtype()


def _only_float(common: torch.dtype) -> torch.dtype | None:
    return common if common.is_floating_point else None


def _not_bool(common: torch.dtype) -> torch.dtype | None:
    return None if common is torch.bool else common


def _integral(common: torch.dtype) -> torch.dtype | None:
    return None if common.is_floating_point else common


def _shift(common: torch.dtype) -> torch.dtype | None:
    return _not_bool(common) if _integral(common) else None


def _bool(common: torch.dtype) -> torch.dtype:
    return torch.bool


def elementwise(dtype: Dtype, operands: int) -> Callable[..., Plan | None]:
    """A rule for an operator whose first `operands` arguments are tensors or numbers; the others are options."""

    def rule(device: torch.device, *args: Any, **kwargs: Any) -> Plan | None:
        return elementwise_plan(device, dtype, args[:operands])

    return rule


def elementwise_plan(device: torch.device, dtype: Dtype, values: tuple[Any, ...]) -> Plan | None:
    """Plan of an elementwise operator on `values` (fakes and numbers), whose result type `dtype` makes of the common one."""
    descs: list[Descriptor] = []
    everything: list[Any] = []
    for value in values:
        if type(value) is FakeTensor:
            if value.desc.dtype.is_complex:
                return None
            descs.append(value.desc)
            everything.append(value.desc)
        elif isinstance(value, NUMBERS):
            everything.append(value)
        else:
            return None
    size = broadcast(*[desc.size for desc in descs])
    common = common_dtype(everything)
    result = dtype(common)
    if size is None or result is None:
        return None
    if len(descs) > 1:
        descs = _converted(descs, common if result is torch.bool else result, device)
    return fresh(size, result, device, elementwise_stride(size, descs, len(everything) - len(descs)))


def _converted(descs: list[Descriptor], dtype: torch.dtype, device: torch.device) -> list[Descriptor]:
    """The operands as the CPU's kernels see them: those of another type are converted before, which leaves no gaps in them.

    Not those of symbolic sizes, where asking for gaps would leave guards.
    """
    if device.type != "cpu":
        return descs
    return [
        describe(desc.size, elementwise_stride(desc.size, [desc], 1), dtype, device)
        if desc.dtype is not dtype and desc.env is None and not is_non_overlapping_and_dense(desc)
        else desc
        for desc in descs
    ]


def in_place(dtype: Dtype, operands: int) -> Callable[..., Plan | None]:
    """A rule for the in-place form: the first argument itself, where eager would not refuse."""

    def rule(device: torch.device, *args: Any, **kwargs: Any) -> Plan | None:
        target = args[0].desc
        everything = [value.desc if type(value) is FakeTensor else value for value in args[:operands]]
        if any(isinstance(value, Descriptor) and value.dtype.is_complex for value in everything):
            return None
        if not all(isinstance(value, (Descriptor, *NUMBERS)) for value in everything):
            return None
        size = broadcast(*[value.size for value in everything if isinstance(value, Descriptor)])
        result = dtype(common_dtype(everything))
        if size != target.size or result is None or not torch.can_cast(result, target.dtype):
            return None
        if is_empty(target.stride) or _shares_memory(args[:operands]):
            return None  # overlaps are checked by torch
        return SameAs(0)

    return rule


def _shares_memory(values: tuple[Any, ...]) -> bool:
    target = values[0]
    return any(type(value) is FakeTensor and value is not target and value.storage_token is target.storage_token for value in values[1:])


#: name -> (overload, in-place overload) are found by name; the number of operands counts tensors and numbers
_UNARY: dict[Dtype, str] = {
    _same: "abs floor ceil trunc round sign sgn positive square relu",
    _not_bool: "neg",
    to_float: "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh sigmoid erf erfc erfinv lgamma digamma",
    _only_float: "frac silu mish hardsigmoid hardswish gelu",
    _integral: "bitwise_not",
    _bool: "logical_not isnan isinf",
}
_BINARY: dict[Dtype, str] = {
    _same: "add.Tensor mul.Tensor maximum minimum fmod.Tensor fmod.Scalar remainder.Tensor remainder.Scalar pow.Tensor_Tensor "
    "pow.Tensor_Scalar add.Scalar mul.Scalar fmax fmin floor_divide floor_divide.Scalar",
    _not_bool: "sub.Tensor sub.Scalar",
    to_float: "div.Tensor div.Scalar atan2 copysign.Tensor xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self special_xlog1py "
    "special_xlog1py.other_scalar special_xlog1py.self_scalar",
    _only_float: "logaddexp logaddexp2 sigmoid_backward tanh_backward gelu_backward silu_backward mish_backward hardswish_backward "
    "hardsigmoid_backward hardtanh_backward logit_backward softplus_backward",
    _integral: "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar",
    _shift: "__lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar bitwise_left_shift.Tensor bitwise_right_shift.Tensor",
    _bool: "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar "
    "ge.Scalar logical_and logical_or logical_xor",
}


def _register(table: dict[Dtype, str], operands: int) -> None:
    for dtype, names in table.items():
        for text in names.split():
            name, _, overload = text.partition(".")
            packet = getattr(aten, name)
            shape_rule(getattr(packet, overload or "default"))(elementwise(dtype, operands))
            in_place_form = getattr(aten, name + "_", None)
            if in_place_form is not None and (overload or "default") in in_place_form.overloads():
                shape_rule(getattr(in_place_form, overload or "default"))(in_place(dtype, operands))


_register(_UNARY, 1)
_register(_BINARY, 2)
shape_rule(aten.addcmul.default, aten.lerp.Tensor)(elementwise(_not_bool, 3))
shape_rule(aten.addcdiv.default)(elementwise(_only_float, 3))
shape_rule(aten.lerp.Scalar)(elementwise(_only_float, 2))
shape_rule(aten.leaky_relu.default, aten.elu.default, aten.softplus.default, aten.celu.default)(elementwise(_only_float, 1))


@shape_rule(aten.hardtanh.default, aten.relu6.default, aten.flip.default, aten.nan_to_num.default, aten.fill.Scalar)
def into_copy(device: torch.device, x: Any, *rest: Any, **options: Any) -> Plan | None:
    """Operators that begin with `empty_like`, which also keeps the strides of an empty tensor."""
    desc, dims = x.desc, rest[0] if rest and isinstance(rest[0], (list, tuple)) else ()
    if not (desc.dtype.is_floating_point or desc.dtype is torch.int64):
        return None  # hardtanh refuses some of them
    if not all(-len(desc.size) <= dim < len(desc.size) for dim in dims) or len({dim % len(desc.size) for dim in dims}) != len(dims):
        return None
    return copy_of(desc, desc.dtype, device, None)


@shape_rule(aten.ldexp.Tensor)
def ldexp(device: torch.device, x: Any, exponent: Any) -> Plan | None:
    power = describe_contiguous(exponent.desc.size, common_dtype([2.0, exponent.desc]), device)
    size, dtype = broadcast(x.desc.size, power.size), common_dtype([x.desc, power])
    return None if size is None or dtype.is_complex else fresh(size, dtype, device, elementwise_stride(size, [x.desc, power]))


@shape_rule(aten.heaviside.default)
def heaviside(device: torch.device, x: Any, values: Any) -> Plan | None:
    return elementwise_plan(device, _same, (x, values)) if x.desc.dtype == values.desc.dtype else None


@shape_rule(aten.frexp.Tensor)
def frexp(device: torch.device, x: Any) -> Plan | None:
    plans = [copy_of(x.desc, dtype, device, None) for dtype in (x.desc.dtype, torch.int32)]
    return several(*plans) if x.desc.dtype.is_floating_point and None not in plans else None  # type: ignore[arg-type]


@shape_rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(device: torch.device, x: Any, y: Any, alpha: Any = 1) -> Plan | None:
    return elementwise_plan(device, _not_bool, (y, x))  # the order decides the strides


@shape_rule(aten.threshold_backward.default, aten.leaky_relu_backward.default)
def backward_of_sign(device: torch.device, grad: Any, x: Any, *rest: Any) -> Plan | None:
    return elementwise_plan(device, _only_float, (x, grad))  # the order decides the strides


@shape_rule(aten.elu_backward.default)
def elu_backward(device: torch.device, grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Plan | None:
    return elementwise_plan(device, _only_float, (grad, x))


@shape_rule(aten.pow.Scalar)
def pow_of_number(device: torch.device, base: Any, exponent: Any) -> Plan | None:
    desc = exponent.desc
    if isinstance(base, complex) or desc.dtype.is_complex:
        dtype = torch.result_type(base, torch.empty((0,) * len(desc.size), dtype=desc.dtype, device="meta"))
    else:
        dtype = common_dtype([base, desc])
    return fresh(desc.size, dtype, device)  # row by row, however the exponent lies


@shape_rule(aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default)
def loss_backward(device: torch.device, grad: Any, x: Any, target: Any, *rest: Any) -> Plan | None:
    """The result is made like `x`, row by row, before anything is computed."""
    size = broadcast(grad.desc.size, x.desc.size, target.desc.size)
    dtypes = {grad.desc.dtype, x.desc.dtype, target.desc.dtype}
    return fresh(size, x.desc.dtype, device) if size == x.desc.size and dtypes == {x.desc.dtype} else None


@shape_rule(aten.rrelu_with_noise.default)
def rrelu_with_noise(device: torch.device, x: Any, noise: Any, *rest: Any, **options: Any) -> Plan | None:
    return fresh(x.desc.size, x.desc.dtype, device)  # row by row, however `x` lies


@shape_rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(device: torch.device, x: Any) -> Plan | None:
    """The CPU's kernel gives contiguous results, whatever the input is."""
    if device.type != "cpu" or not x.desc.dtype.is_floating_point:
        return None
    result = fresh(x.desc.size, x.desc.dtype, device)
    return several(result, result)


@shape_rule(aten.div.Tensor_mode)
def div_mode(device: torch.device, x: Any, y: Any, rounding_mode: str | None = None) -> Plan | None:
    return elementwise_plan(device, to_float if rounding_mode is None else _same, (x, y))


@shape_rule(aten.clamp.default)
def clamp(device: torch.device, x: Any, low: Any = None, high: Any = None) -> Plan | None:
    given = tuple(value for value in (low, high) if value is not None)
    if not given or not all(isinstance(value, NUMBERS) for value in given):
        return None
    dtype = common_dtype([x.desc, *given])
    if x.desc.dtype.is_complex:
        return None
    return fresh(x.desc.size, dtype, device, elementwise_stride(x.desc.size, [x.desc]))


@shape_rule(aten.clamp_min.default, aten.clamp_max.default)
def clamp_one(device: torch.device, x: Any, limit: Any) -> Plan | None:
    return clamp(device, x, limit)


@shape_rule(aten.where.self)
def where(device: torch.device, condition: Any, x: Any, y: Any) -> Plan | None:
    descs = [condition.desc, x.desc, y.desc]
    size = broadcast(*[desc.size for desc in descs])
    if size is None or condition.desc.dtype is not torch.bool or any(desc.dtype.is_complex for desc in descs):
        return None
    dtype = common_dtype(descs[1:])
    return fresh(size, dtype, device, elementwise_stride(size, [descs[0], *_converted(descs[1:], dtype, device)]))


@shape_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(device: torch.device, x: Any, mask: Any, value: Any) -> Plan | None:
    size = broadcast(x.desc.size, mask.desc.size)
    if size != x.desc.size or x.desc.dtype.is_complex:
        return None
    return fresh(size, x.desc.dtype, device)


@shape_rule(aten.masked_fill_.Scalar, aten.fill_.Scalar, aten.zero_.default)
def overwrite(device: torch.device, x: Any, *rest: Any) -> Plan | None:
    if is_empty(x.desc.stride):
        return None
    mask = rest[0] if len(rest) == 2 else None
    if type(mask) is FakeTensor and (broadcast(x.desc.size, mask.desc.size) != x.desc.size or _shares_memory((x, mask))):
        return None
    return SameAs(0)


@shape_rule(aten.copy_.default)
def copy_(device: torch.device, x: Any, source: Any, non_blocking: bool = False) -> Plan | None:
    if type(source) is not FakeTensor or broadcast(x.desc.size, source.desc.size) != x.desc.size:
        return None
    if is_empty(x.desc.stride) or (source is not x and source.storage_token is x.storage_token):
        return None
    return SameAs(0)
