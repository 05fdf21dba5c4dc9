"""Checks that eager's kernels make besides those of sizes (`size_checks`): dtypes, numbers that do not fit them, unknown option strings.

Shape rules and Meta kernels say what a result looks like; whether 300 fits into uint8, or what `approximate="foo"` is, the kernel
itself checks when it runs. A compiled kernel has no such checks. So the eager kernel is run once for each kind of call,
on small tensors of the same dtypes and ranks (empty where the program's are), and what it raises is the program's.

In: a call on fakes that has a plan. Invariant: no generator advances, and nothing of the program's is read or written.
Checks of the values in tensors are not made here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from fxloom_interfaces.errors import OPERATOR_ERRORS
from fxloom_ops.schema import Op, schema_info
from fxloom_shapes._torch_private import disable_torch_dispatch, disable_torch_function
from fxloom_shapes.fake.descriptor import usable
from fxloom_shapes.fake.tensor import FakeTensor

aten = torch.ops.aten

#: by name without the `_` of in-place forms, beside elementwise operators and reductions
_NAMES = frozenset(
    {
        # of a number and a dtype
        "fill", "full", "full_like", "new_full", "scalar_tensor", "constant_pad_nd", "masked_fill", "index_fill",
        # elementwise, untagged
        "floor_divide", "__and__", "__or__", "hardswish",
        # of several dtypes
        "lerp", "complex", "polar", "index_add", "index_copy", "index_reduce", "gather", "scatter", "scatter_add", "scatter_reduce",
        "addmm", "addmv", "addr", "addbmm", "baddbmm", "native_layer_norm", "_aminmax", "index_select", "index_put", "_index_put_impl",
        "nll_loss_forward", "nll_loss2d_forward", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
        "native_group_norm", "searchsorted", "bucketize", "multi_margin_loss",
        # of one dtype and options
        "smooth_l1_loss", "huber_loss", "mse_loss", "soft_margin_loss", "binary_cross_entropy", "_softmax", "_log_softmax",
        "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "log_sigmoid_forward", "_prelu_kernel",
        # of parameters of a distribution
        "uniform", "normal", "random", "bernoulli", "exponential", "geometric", "log_normal", "cauchy", "rand", "randn", "randint",
        "rand_like", "randn_like", "randint_like", "native_dropout",
    }
)  # fmt: skip
#: elementwise ones that look at values, or answer with no tensor
_UNCHECKED = frozenset({"equal", "mvlgamma", "clone", "positive"})
#: tensors of positions along axes that may have one element here
_POSITIONS = frozenset({"index", "indices", "target", "sorter"})
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_passed: dict[Any, None] = {}
_PASSED_LIMIT = 50_000
#: of a sample with more than one element along each
_MOST_AXES = 8


@cache
def _needs_check(op: Op) -> bool:
    info = schema_info(op)
    name = op._schema.name
    if op.namespace != "aten" or info.data_dependent or info.dynamic_shape or info.inplace_view or info.composite:
        return False
    name = name.partition("::")[2].rstrip("_")
    if name in _UNCHECKED:
        return False
    return name in _NAMES or _elementwise_or_reduction(name)


@cache
def _elementwise_or_reduction(name: str) -> bool:
    """Whether any overload is tagged as one: those with `out=`, say, are not."""
    packet = getattr(aten, name, None)
    tags = (torch.Tag.pointwise, torch.Tag.reduction)
    return packet is not None and any(tag in getattr(packet, overload).tags for overload in packet.overloads() for tag in tags)


def check_call(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager's kernel raises for such a call. Numbers that may change are guarded to be in the dtype's range."""
    if not _needs_check(op):
        return
    names = [argument.name for argument in op._schema.arguments]
    given = [*zip(names, args), *kwargs.items()]
    try:
        key = (id(op), torch.get_default_dtype(), *((name, _kind_of(value)) for name, value in given))
        known = key in _passed
    except TypeError:  # hashes of numbers known only at run time
        return
    if not known:
        if not _run_on_samples(op, args, kwargs):
            return
        if len(_passed) >= _PASSED_LIMIT:
            _passed.clear()
        _passed[key] = None
    for name, value in given:
        if type(value) in (torch.SymInt, torch.SymFloat):
            _keep_in_range(op, args, kwargs, name, value)


def _kind_of(value: Any) -> Any:
    if type(value) is FakeTensor:
        known = _known_number(value)
        with disable_torch_dispatch():
            number = "" if known is None else str(known.item())
        return value.desc.dtype, value.desc.device, _sample_size(value.desc.size), number
    if type(value) in (list, tuple):
        return tuple(_kind_of(item) for item in value)
    if type(value) in _NUMBERS:
        return type(value), _hint(value)
    if isinstance(value, torch.Generator):
        return torch.Generator
    return type(value), value, str(value) if isinstance(value, (float, complex)) else ""  # -0.0 and NaN


def _known_number(fake: FakeTensor) -> torch.Tensor | None:
    """The value of a tensor without axes on the CPU, where it is known: a number that the program wrote, say."""
    return fake.constant if not fake.desc.size and fake.desc.device.type == "cpu" else None


def _hint(value: Any) -> Any:
    """The number that a symbolic one has in this call."""
    if not value.node.has_hint():
        raise TypeError
    return value.node.hint if not callable(value.node.hint) else value.node.hint()


def _sample_size(size: Sequence[Any]) -> tuple[int, ...]:
    """Extents of a sample: several elements are two, as kernels treat a lone one apart; one where two would be many in all."""
    most = 2 if len(size) <= _MOST_AXES else 1
    return tuple(min(extent, most) if type(extent) is int else most for extent in size)


def _run_on_samples(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Run the kernel on samples. False where that isn't possible on this machine."""
    names = [argument.name for argument in op._schema.arguments]
    seeded = schema_info(op).seeded
    draws = seeded and "generator" in names
    filled = draws or not seeded  # without elements nothing is drawn
    with disable_torch_function(), disable_torch_dispatch(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        try:
            real_args = [_sample(name, value, filled) for name, value in zip(names, args)]
            real_kwargs = {name: _sample(name, value, filled) for name, value in kwargs.items()}
            if draws:
                _give_generator(names.index("generator"), real_args, real_kwargs)
        except (_NoSample, NotImplementedError):
            return False
        adapt = _ADAPTED.get(op._schema.name)
        op(*(real_args if adapt is None else adapt(real_args)), **real_kwargs)
    return True


class _NoSample(Exception):
    """A tensor of this device or dtype can't be made here."""


def _sample(name: str, value: Any, filled: bool) -> Any:
    """What stands for an argument; filled: tensors have elements."""
    if type(value) is FakeTensor:
        desc = value.desc
        if not usable(desc.device.type):
            raise _NoSample
        known = _known_number(value)
        if known is not None:
            return known.clone()
        make = torch.zeros if name in _POSITIONS else torch.ones
        try:
            return make(_sample_size(desc.size) if filled else _empty(desc.size), dtype=desc.dtype, device=desc.device)
        except RuntimeError as error:
            raise _NoSample from error
    if isinstance(value, torch.Tensor):
        raise _NoSample
    if type(value) in (list, tuple):
        if name == "size":  # of a result
            return list(_sample_size(value)) if filled else _empty(value)
        return type(value)([_sample(name, item, filled) for item in value])
    if name == "device" and value is not None and not usable(torch.device(value).type):
        raise _NoSample
    return _hint(value) if type(value) in _NUMBERS else value


def _empty(size: Sequence[Any]) -> list[int]:
    """Extents of a sample without elements: what has no axes gets one."""
    return [0] * max(len(size), 1)


def _give_generator(position: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Have the call draw from a generator of its own."""
    found = next((value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    device = found if found is not None else torch.device(kwargs.get("device") or "cpu")
    if device.type == "meta":
        raise _NoSample
    own = torch.Generator(device)
    if position < len(args):
        args[position] = own
    else:
        kwargs["generator"] = own


def _padded(args: list[Any]) -> list[Any]:
    """Of `constant_pad_nd`: what is cut off does not have to be there."""
    return [args[0], [int(extent > 0) for extent in args[1]], *args[2:]]


def _normalized(args: list[Any]) -> list[Any]:
    """Of `native_layer_norm`: the samples' extents."""
    return [args[0], args[0].shape[args[0].dim() - len(args[1]) :], *args[2:]]


def _grouped(args: list[Any]) -> list[Any]:
    """Of `native_group_norm`: one group of the sample."""
    size = args[0].shape
    return [*args[:3], size[0], size[1], math.prod(size[2:]), 1, *args[7:]]


def _written(args: list[Any]) -> list[Any]:
    """Of `index_put`: one element, as only dtypes matter (`size_checks` has the rest)."""
    place = torch.zeros(1, dtype=torch.int64, device=args[0].device)
    return [args[0].new_zeros(1), [place], args[2].new_zeros(()), *args[3:]]


def _dropped(args: list[Any]) -> list[Any]:
    """Of `native_dropout`, which looks at the probability only where there are elements."""
    if args[2] is not False:
        args[0].bernoulli_(1 - args[1])
    return args


_ADAPTED: dict[str, Callable[[list[Any]], list[Any]]] = {
    "aten::constant_pad_nd": _padded, "aten::native_layer_norm": _normalized, "aten::native_dropout": _dropped,
    "aten::native_group_norm": _grouped, "aten::index_put": _written, "aten::index_put_": _written,
    "aten::_index_put_impl": _written, "aten::_index_put_impl_": _written,
}  # fmt: skip


def _keep_in_range(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any) -> None:
    """Guard a number that may change to be one that the kernel takes, where it refuses those outside of the dtype's range."""
    dtype = kwargs.get("dtype") or next((value.desc.dtype for value in args if type(value) is FakeTensor), None)
    if dtype is None or dtype is torch.bool or dtype.is_complex or dtype is torch.float64:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    low, high = limits.min, limits.max
    if type(value) is torch.SymInt and (dtype.is_floating_point and dtype is not torch.float16 or dtype is torch.int64):
        return
    outside = float(high) * 2 if type(value) is torch.SymFloat else high * 2 + 1
    names = [argument.name for argument in op._schema.arguments]
    changed = tuple(outside if n == name and given is value else given for n, given in zip(names, args))
    try:
        _run_on_samples(op, changed, {n: outside if given is value else given for n, given in kwargs.items()})
    except OPERATOR_ERRORS:  # the kernel refuses the number
        if not (value <= high and value >= low):
            value.__int__() if type(value) is torch.SymInt else value.__float__()  # inf, which some dtypes have
