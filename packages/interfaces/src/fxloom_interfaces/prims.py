"""The prims: a closed list of functional operators that a new backend has to implement in full.

A prim broadcasts nothing, promotes nothing and aliases nothing: operands of one elementwise prim have one size and one type,
and every result is a value of its own. Values have sizes but no strides. Each prim has a rule for size and type (`Prim.infer`), a
reference in eager torch (`Prim.reference`) and a line of documentation; `docs/prims.md` is printed from this register.

Calling a prim runs its reference; within `recording(recorder)` the recorder is given the call instead, and says what the result is.
So a function written in prims is a reference on real tensors, and a graph of prims on fake ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.fx

from fxloom_interfaces.errors import InternalError, IRError

LIMIT = 250
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | BOOL


@dataclass(frozen=True, slots=True)
class Meta:
    """Size and type of an operand or result."""

    size: tuple[int, ...]
    dtype: torch.dtype


Infer = Callable[..., "Meta | tuple[Meta, ...]"]


class Recorder(Protocol):
    """Takes the calls of prims in the place of their references."""

    def record(self, prim: Prim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of the call, as fakes."""
        ...


_RECORDER: ContextVar[Recorder | None] = ContextVar("fxloom_prims_recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Calls of prims go to `recorder`."""
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


def _proxy_in(values: Sequence[Any]) -> torch.fx.Proxy | None:
    """What torch.fx traces a graph with, as when a pickled one is made again; None where nothing is traced."""
    for value in values:
        if isinstance(value, torch.fx.Proxy):
            return value
        if isinstance(value, (list, tuple)) and (proxy := _proxy_in(value)) is not None:
            return proxy
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Prim:
    """One prim. infer: from operands as `Meta` and options to results; raises IRError where the rules are broken."""

    name: str
    family: str
    doc: str
    infer: Infer
    reference: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = _RECORDER.get()
        if recorder is not None:
            return recorder.record(self, args, kwargs)
        proxy = _proxy_in((*args, *kwargs.values()))
        return self.reference(*args, **kwargs) if proxy is None else proxy.tracer.create_proxy("call_function", self, args, kwargs)

    def __repr__(self) -> str:
        return f"prims.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    @property
    def __name__(self) -> str:
        return self.name


PRIMS: dict[str, Prim] = {}


def _named(name: str) -> Prim:
    return PRIMS[name]


def _define(name: str, family: str, doc: str, infer: Infer, reference: Callable[..., Any]) -> None:
    if name in PRIMS:
        raise InternalError("prims", f"two prims named {name!r}")
    if len(PRIMS) >= LIMIT:
        raise InternalError("prims", f"more than {LIMIT} prims; {name!r} has to be a decomposition")
    PRIMS[name] = Prim(name, family, doc, infer, reference)


def documentation() -> str:
    """The list as Markdown, by family."""
    lines = [f"## The {len(PRIMS)} prims", ""]
    for family in dict.fromkeys(prim.family for prim in PRIMS.values()):
        lines += [f"### {family[0].upper()}{family[1:]}", "", "| prim | meaning |", "|---|---|"]
        lines += [f"| `{prim.name}` | {prim.doc} |" for prim in PRIMS.values() if prim.family == family]
        lines.append("")
    return "\n".join(lines)


# --- rules --------------------------------------------------------------------------------------------------------------


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IRError(message)


def _elementwise(name: str, allowed: frozenset[torch.dtype], operands: int, result: torch.dtype | None = None) -> Infer:
    def infer(*args: Any, **options: Any) -> Meta:
        metas = [value for value in args[:operands] if isinstance(value, Meta)]
        _require(len(metas) == operands, f"{name} takes {operands} tensors, got {len(metas)}")
        first = metas[0]
        for meta in metas[1:]:
            _require(meta.size == first.size, f"{name}: sizes {first.size} and {meta.size} differ; prims don't broadcast")
            _require(meta.dtype == first.dtype, f"{name}: types {first.dtype} and {meta.dtype} differ; prims don't promote")
        _require(first.dtype in allowed, f"{name} is not defined for {first.dtype}")
        return Meta(first.size, result or first.dtype)

    return infer


def _axes_of(name: str, x: Meta, dims: tuple[int, ...]) -> tuple[int, ...]:
    _require(len(set(dims)) == len(dims), f"{name}: an axis is named twice in {dims}")
    _require(all(0 <= dim < len(x.size) for dim in dims), f"{name}: axes {dims} of a tensor with {len(x.size)} axes")
    return dims


def _reduction(name: str, allowed: frozenset[torch.dtype], result: torch.dtype | None = None) -> Infer:
    def infer(x: Meta, dims: Any) -> Meta:
        axes = _axes_of(name, x, tuple(dims))
        _require(bool(axes), f"{name} over no axes")
        _require(x.dtype in allowed, f"{name} is not defined for {x.dtype}")
        return Meta(tuple(extent for axis, extent in enumerate(x.size) if axis not in axes), result or x.dtype)

    return infer


def _arg_reduction(name: str) -> Infer:
    def infer(x: Meta, dim: int) -> Meta:
        (axis,) = _axes_of(name, x, (dim,))
        _require(x.dtype in NUMBERS, f"{name} is not defined for {x.dtype}")
        return Meta(x.size[:axis] + x.size[axis + 1 :], torch.int64)

    return infer


def _scan(name: str) -> Infer:
    def infer(x: Meta, dim: int) -> Meta:
        _axes_of(name, x, (dim,))
        _require(x.dtype in NUMBERS, f"{name} is not defined for {x.dtype}")
        return x

    return infer


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


# --- elementwise --------------------------------------------------------------------------------------------------------

_UNARY: tuple[tuple[str, frozenset[torch.dtype], str], ...] = (
    ("abs", NUMBERS, "absolute value"),
    ("neg", NUMBERS, "-x; integers wrap"),
    ("sign", NUMBERS, "-1, 0 or 1; 0 for NaN"),
    ("bitwise_not", INTEGERS | BOOL, "every bit turned"),
    ("floor", FLOATS, "largest integer not above x"),
    ("ceil", FLOATS, "smallest integer not below x"),
    ("trunc", FLOATS, "integer part"),
    ("round", FLOATS, "nearest integer, ties to even"),
    ("sqrt", FLOATS, "square root"),
    ("rsqrt", FLOATS, "1 / square root"),
    ("reciprocal", FLOATS, "1 / x"),
    ("exp", FLOATS, "e to the x"),
    ("exp2", FLOATS, "2 to the x"),
    ("expm1", FLOATS, "e to the x, less 1, accurate near 0"),
    ("log", FLOATS, "natural logarithm"),
    ("log1p", FLOATS, "logarithm of 1 + x, accurate near 0"),
    ("log2", FLOATS, "logarithm to base 2"),
    ("log10", FLOATS, "logarithm to base 10"),
    ("sin", FLOATS, "sine of radians"),
    ("cos", FLOATS, "cosine of radians"),
    ("tan", FLOATS, "tangent of radians"),
    ("asin", FLOATS, "inverse sine"),
    ("acos", FLOATS, "inverse cosine"),
    ("atan", FLOATS, "inverse tangent"),
    ("sinh", FLOATS, "hyperbolic sine"),
    ("cosh", FLOATS, "hyperbolic cosine"),
    ("tanh", FLOATS, "hyperbolic tangent"),
    ("asinh", FLOATS, "inverse hyperbolic sine"),
    ("acosh", FLOATS, "inverse hyperbolic cosine"),
    ("atanh", FLOATS, "inverse hyperbolic tangent"),
    ("sigmoid", FLOATS, "1 / (1 + e to the -x)"),
    ("erf", FLOATS, "error function"),
    ("erfc", FLOATS, "1 - erf(x), accurate for large x"),
    ("erfinv", FLOATS, "inverse of erf"),
    ("lgamma", FLOATS, "logarithm of |Γ(x)|"),
    ("digamma", FLOATS, "derivative of lgamma"),
    ("i0", FLOATS, "modified Bessel function of the first kind, order 0"),
    ("signbit", NUMBERS, "negative, -0.0 included?"),
)
for _name, _allowed, _doc in _UNARY:
    _result = torch.bool if _name == "signbit" else None
    _define(_name, "elementwise, one operand", _doc, _elementwise(_name, _allowed, 1, _result), getattr(torch, _name))
for _name in ("isnan", "isinf"):
    _define(_name, "elementwise, one operand", f"{_name[2:]}?", _elementwise(_name, FLOATS, 1, torch.bool), getattr(torch, _name))

_BINARY: tuple[tuple[str, str, frozenset[torch.dtype], str], ...] = (
    ("add", "add", NUMBERS, "x + y; integers wrap"),
    ("sub", "sub", NUMBERS, "x - y; integers wrap"),
    ("mul", "mul", NUMBERS, "x · y; integers wrap"),
    ("div", "true_divide", FLOATS, "x / y"),
    ("fmod", "fmod", NUMBERS, "remainder with the sign of x"),
    ("remainder", "remainder", NUMBERS, "remainder with the sign of y"),
    ("pow", "pow", NUMBERS, "x to the y"),
    ("atan2", "atan2", FLOATS, "angle of the point (y, x)"),
    ("copysign", "copysign", FLOATS, "|x| with the sign of y"),
    ("nextafter", "nextafter", FLOATS, "next number from x towards y"),
    ("maximum", "maximum", NUMBERS, "the larger; NaN if either is"),
    ("minimum", "minimum", NUMBERS, "the smaller; NaN if either is"),
    ("bitwise_and", "bitwise_and", INTEGERS | BOOL, "bits set in both"),
    ("bitwise_or", "bitwise_or", INTEGERS | BOOL, "bits set in either"),
    ("bitwise_xor", "bitwise_xor", INTEGERS | BOOL, "bits set in one"),
    ("gcd", "gcd", INTEGERS, "greatest common divisor"),
    ("shift_left", "bitwise_left_shift", INTEGERS, "x · 2 to the y"),
    ("shift_right", "bitwise_right_shift", INTEGERS, "x / 2 to the y, sign kept"),
)
for _name, _target, _allowed, _doc in _BINARY:
    _define(_name, "elementwise, two operands", _doc, _elementwise(_name, _allowed, 2), getattr(torch, _target))


_define(
    "trigamma", "elementwise, one operand", "derivative of digamma", _elementwise("trigamma", FLOATS, 1), lambda x: torch.polygamma(1, x)
)
_define("hypot", "elementwise, two operands", "length of (x, y), without overflow between", _elementwise("hypot", FLOATS, 2), torch.hypot)

#: those of `torch.special`, which has kernels for float32 and float64 alone
_SPECIAL_UNARY = {
    "erfcx": "e to the x² · erfc(x)",
    "ndtri": "inverse of the normal distribution function",
    "log_ndtr": "logarithm of the normal distribution function",
    "i0e": "e to the -|x| · i0(x)",
    "i1": "modified Bessel function of the first kind, order 1",
    "i1e": "e to the -|x| · i1(x)",
    "airy_ai": "Airy function Ai",
    "bessel_j0": "Bessel function of the first kind, order 0",
    "bessel_j1": "Bessel function of the first kind, order 1",
    "bessel_y0": "Bessel function of the second kind, order 0",
    "bessel_y1": "Bessel function of the second kind, order 1",
    "modified_bessel_i0": "modified Bessel function of the first kind, order 0",
    "modified_bessel_i1": "modified Bessel function of the first kind, order 1",
    "modified_bessel_k0": "modified Bessel function of the second kind, order 0",
    "modified_bessel_k1": "modified Bessel function of the second kind, order 1",
    "scaled_modified_bessel_k0": "e to the x · modified_bessel_k0(x)",
    "scaled_modified_bessel_k1": "e to the x · modified_bessel_k1(x)",
    "spherical_bessel_j0": "sin(x) / x",
}
_SPECIAL_BINARY = {
    "zeta": "Hurwitz zeta function of x and y",
    **{
        f"{_name}chebyshev_polynomial_{_kind}": f"Chebyshev polynomial of kind {_kind}, of x and degree y{_doc}"
        for _name, _doc in (("", ""), ("shifted_", ", shifted"))
        for _kind in "tuvw"
    },
    "hermite_polynomial_h": "physicist's Hermite polynomial of x and degree y",
    "hermite_polynomial_he": "probabilist's Hermite polynomial of x and degree y",
    "laguerre_polynomial_l": "Laguerre polynomial of x and degree y",
    "legendre_polynomial_p": "Legendre polynomial of x and degree y",
}
_WIDE = frozenset({torch.float32, torch.float64})


def _special(name: str) -> Callable[..., Any]:
    return getattr(torch.special, name, None) or getattr(torch.ops.aten, f"special_{name}")


for _name, _doc in _SPECIAL_UNARY.items():
    _allowed = FLOATS if _name in ("i0e", "i1", "i1e") else _WIDE
    _define(_name, "special functions", _doc, _elementwise(_name, _allowed, 1), _special(_name))
for _name, _doc in _SPECIAL_BINARY.items():
    _define(_name, "special functions", _doc, _elementwise(_name, _WIDE, 2), _special(_name))
_define("igamma", "special functions", "regularized lower incomplete gamma function", _elementwise("igamma", FLOATS, 2), torch.igamma)
_define("igammac", "special functions", "regularized upper incomplete gamma function", _elementwise("igammac", FLOATS, 2), torch.igammac)


def _infer_frexp(x: Meta) -> tuple[Meta, Meta]:
    _require(x.dtype in FLOATS, f"frexp is not defined for {x.dtype}")
    return x, Meta(x.size, torch.int32)


_define("frexp", "elementwise, one operand", "m and e of x = m · 2 to the e, 1/2 ≤ |m| < 1", _infer_frexp, lambda x: tuple(torch.frexp(x)))


def _floor_div(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _trunc_div(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


_define("floor_div", "elementwise, two operands", "x / y rounded down", _elementwise("floor_div", NUMBERS, 2), _floor_div)
_define("trunc_div", "elementwise, two operands", "x / y rounded to zero", _elementwise("trunc_div", NUMBERS, 2), _trunc_div)
for _name, _sign in (("eq", "="), ("ne", "≠"), ("lt", "<"), ("le", "≤"), ("gt", ">"), ("ge", "≥")):
    _define(_name, "elementwise, two operands", f"x {_sign} y", _elementwise(_name, ANY, 2, torch.bool), getattr(torch, _name))


def _infer_where(condition: Meta, x: Meta, y: Meta) -> Meta:
    _require(condition.dtype is torch.bool, f"where: the condition is {condition.dtype}")
    _require(condition.size == x.size, f"where: sizes {condition.size} and {x.size} differ; prims don't broadcast")
    result = _elementwise("where", ANY, 2)(x, y)
    assert isinstance(result, Meta)
    return result


_define("where", "elementwise, three operands", "x where the condition holds, else y", _infer_where, torch.where)
_define("fma", "elementwise, three operands", "x · y + z", _elementwise("fma", FLOATS, 3), lambda x, y, z: torch.addcmul(z, x, y))
_define(
    "convert",
    "elementwise, one operand",
    "x in another type; to integers by truncation",
    lambda x, dtype: Meta(x.size, dtype),
    lambda x, dtype: x.to(dtype, copy=True),
)
_define("copy", "elementwise, one operand", "x in memory of its own", lambda x: x, _contiguous)
_define(
    "to_device",
    "elementwise, one operand",
    "x on another device",
    lambda x, device: x,
    lambda x, device: x.to(device, copy=True, memory_format=torch.contiguous_format),
)


def _infer_bitcast(x: Meta, dtype: torch.dtype) -> Meta:
    if x.dtype.itemsize == dtype.itemsize:
        return Meta(x.size, dtype)
    _require(bool(x.size), f"bitcast: {x.dtype} without axes to {dtype}")
    nbytes = x.size[-1] * x.dtype.itemsize
    _require(nbytes % dtype.itemsize == 0, f"bitcast: a last axis of {nbytes} bytes to {dtype}")
    return Meta((*x.size[:-1], nbytes // dtype.itemsize), dtype)


_define(
    "bitcast",
    "elementwise, one operand",
    "the bits of x as another type; where its width is another one, the last axis is as much longer or shorter",
    _infer_bitcast,
    lambda x, dtype: _contiguous(x).view(dtype),
)

# --- reductions ---------------------------------------------------------------------------------------------------------

_define("sum", "reductions", "sum over axes", _reduction("sum", NUMBERS), lambda x, dims: torch.sum(x, dims, dtype=x.dtype))


def _prod(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


_define("prod", "reductions", "product over axes", _reduction("prod", NUMBERS), _prod)
_define("amax", "reductions", "largest over axes; NaN wins", _reduction("amax", NUMBERS), torch.amax)
_define("amin", "reductions", "smallest over axes; NaN wins", _reduction("amin", NUMBERS), torch.amin)
_define("any", "reductions", "true somewhere over axes", _reduction("any", BOOL), torch.any)
_define("all", "reductions", "true everywhere over axes", _reduction("all", BOOL), torch.all)
_define("argmax", "reductions", "first place of the largest along an axis", _arg_reduction("argmax"), torch.argmax)
_define("argmin", "reductions", "first place of the smallest along an axis", _arg_reduction("argmin"), torch.argmin)


def _infer_var_mean(x: Meta, dims: Any, correction: float) -> tuple[Meta, Meta]:
    meta = _reduction("var_mean", FLOATS)(x, dims)
    assert isinstance(meta, Meta)
    return meta, meta


_define(
    "var_mean",
    "reductions",
    "variance (divisor n - correction) and mean over axes",
    _infer_var_mean,
    lambda x, dims, correction: torch.var_mean(x, dims, correction=correction),
)
_define("cumsum", "scans", "running sum along an axis", _scan("cumsum"), lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype))
_define(
    "cumprod", "scans", "running product along an axis", _scan("cumprod"), lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype)
)

_define("logcumsumexp", "scans", "logarithm of the running sum of exponentials along an axis", _scan("logcumsumexp"), torch.logcumsumexp)


def _extreme_scan(name: str) -> Infer:
    def infer(x: Meta, dim: int) -> tuple[Meta, Meta]:
        _axes_of(name, x, (dim,))
        return x, Meta(x.size, torch.int64)

    return infer


_define(
    "cummax",
    "scans",
    "largest so far along an axis, NaN if there was one, and its last place",
    _extreme_scan("cummax"),
    lambda x, dim: tuple(torch.cummax(x, dim)),
)
_define(
    "cummin",
    "scans",
    "smallest so far along an axis, NaN if there was one, and its last place",
    _extreme_scan("cummin"),
    lambda x, dim: tuple(torch.cummin(x, dim)),
)


def _infer_sort(x: Meta, dim: int, descending: bool, stable: bool) -> tuple[Meta, Meta]:
    _axes_of("sort", x, (dim,))
    return x, Meta(x.size, torch.int64)


_define(
    "sort",
    "scans",
    "values and places in order along an axis",
    _infer_sort,
    lambda x, dim, descending, stable: tuple(torch.sort(x, dim=dim, descending=descending, stable=stable)),
)

# --- shape --------------------------------------------------------------------------------------------------------------


def _infer_broadcast(x: Meta, size: Any, axes: Any) -> Meta:
    size, axes = tuple(size), tuple(axes)
    _require(len(axes) == len(x.size), f"broadcast_in_dim: {len(axes)} axes for a tensor with {len(x.size)}")
    _require(list(axes) == sorted(set(axes)), f"broadcast_in_dim: axes {axes} do not ascend")
    for axis, extent in zip(axes, x.size, strict=True):
        _require(extent in (1, size[axis]), f"broadcast_in_dim: extent {extent} to {size[axis]}")
    return Meta(size, x.dtype)


def _broadcast(x: torch.Tensor, size: Any, axes: Any) -> torch.Tensor:
    shape = [1] * len(size)
    for axis, extent in zip(axes, x.shape, strict=True):
        shape[axis] = extent
    return x.reshape(shape).expand(size).clone(memory_format=torch.contiguous_format)


def _infer_reshape(x: Meta, size: Any) -> Meta:
    _require(math.prod(x.size) == math.prod(size), f"reshape: {x.size} to {tuple(size)}")
    return Meta(tuple(size), x.dtype)


def _infer_permute(x: Meta, dims: Any) -> Meta:
    _require(sorted(dims) == list(range(len(x.size))), f"permute: {tuple(dims)} of {len(x.size)} axes")
    return Meta(tuple(x.size[dim] for dim in dims), x.dtype)


def _infer_slice(x: Meta, starts: Any, limits: Any, steps: Any) -> Meta:
    _require(len(starts) == len(limits) == len(steps) == len(x.size), "slice: one start, limit and step per axis")
    for start, limit, step, extent in zip(starts, limits, steps, x.size, strict=True):
        _require(0 <= start <= limit <= extent and step > 0, f"slice: {start}:{limit}:{step} of an axis of {extent}")
    size = [(limit - start + step - 1) // step for start, limit, step in zip(starts, limits, steps, strict=True)]
    return Meta(tuple(size), x.dtype)


def _slice(x: torch.Tensor, starts: Any, limits: Any, steps: Any) -> torch.Tensor:
    return _contiguous(x[tuple(slice(*bounds) for bounds in zip(starts, limits, steps, strict=True))])


def _infer_cat(tensors: Any, dim: int) -> Meta:
    first = tensors[0]
    _axes_of("cat", first, (dim,))
    for meta in tensors[1:]:
        _require(meta.dtype == first.dtype, f"cat: types {first.dtype} and {meta.dtype} differ; prims don't promote")
        same = meta.size[:dim] + meta.size[dim + 1 :] == first.size[:dim] + first.size[dim + 1 :]
        _require(same, f"cat along {dim}: sizes {first.size} and {meta.size}")
    return Meta((*first.size[:dim], sum(meta.size[dim] for meta in tensors), *first.size[dim + 1 :]), first.dtype)


def _infer_pad(x: Meta, value: Any, low: Any, high: Any) -> Meta:
    _require(len(low) == len(high) == len(x.size), "pad: one low and one high side per axis")
    size = tuple(before + extent + after for before, extent, after in zip(low, x.size, high, strict=True))
    _require(all(extent >= 0 for extent in size), f"pad: {x.size} by {tuple(low)} and {tuple(high)}")
    return Meta(size, x.dtype)


def _pad(x: torch.Tensor, value: Any, low: Any, high: Any) -> torch.Tensor:
    sides = [side for pair in reversed(list(zip(low, high, strict=True))) for side in pair]
    return torch.constant_pad_nd(x, sides, value)


def _infer_flip(x: Meta, dims: Any) -> Meta:
    _axes_of("flip", x, tuple(dims))
    return x


_define("broadcast_in_dim", "shape", "axis i of x becomes axis axes[i] of the result, repeated", _infer_broadcast, _broadcast)
_define(
    "reshape", "shape", "the elements in row-major order in another size", _infer_reshape, lambda x, size: _contiguous(x).reshape(size)
)
_define("permute", "shape", "axes in another order", _infer_permute, lambda x, dims: _contiguous(x.permute(dims)))
_define("slice", "shape", "start, limit, step along every axis", _infer_slice, _slice)
_define("cat", "shape", "tensors one after the other along an axis", _infer_cat, torch.cat)
_define("pad", "shape", "a value around; negative sides cut", _infer_pad, _pad)
_define("flip", "shape", "axes read backwards", _infer_flip, torch.flip)

# --- creation -----------------------------------------------------------------------------------------------------------

_define(
    "full",
    "creation",
    "one value everywhere",
    lambda size, value, dtype, device: Meta(tuple(size), dtype),
    lambda size, value, dtype, device: torch.full(size, value, dtype=dtype, device=device),
)
_define(
    "iota",
    "creation",
    "start + step · i for i below length",
    lambda length, start, step, dtype, device: Meta((length,), dtype),
    lambda length, start, step, dtype, device: torch.arange(length, device=device).mul(step).add(start).to(dtype),
)
_define(
    "uniform",
    "creation",
    "random numbers in [0, 1)",
    lambda size, dtype, device: Meta(tuple(size), dtype),
    lambda size, dtype, device: torch.rand(size, dtype=dtype, device=device),
)
_define(
    "normal",
    "creation",
    "random numbers of mean 0 and deviation 1",
    lambda size, dtype, device: Meta(tuple(size), dtype),
    lambda size, dtype, device: torch.randn(size, dtype=dtype, device=device),
)

_define(
    "randint",
    "creation",
    "random integers, low included, high not",
    lambda size, low, high, dtype, device: Meta(tuple(size), dtype),
    lambda size, low, high, dtype, device: torch.randint(low, high, size, dtype=dtype, device=device),
)

# --- indexing -----------------------------------------------------------------------------------------------------------


def _infer_gather(x: Meta, dim: int, index: Meta) -> Meta:
    _axes_of("gather", x, (dim,))
    _require(index.dtype is torch.int64 and len(index.size) == len(x.size), f"gather: index {index.dtype}{list(index.size)}")
    return Meta(index.size, x.dtype)


def _infer_take_along(x: Meta, index: Meta, dim: int) -> Meta:
    _axes_of("index_select", x, (dim,))
    _require(index.dtype is torch.int64 and len(index.size) == 1, f"index_select: index {index.dtype}{list(index.size)}")
    return Meta((*x.size[:dim], index.size[0], *x.size[dim + 1 :]), x.dtype)


def _infer_scatter(x: Meta, dim: int, index: Meta, source: Meta) -> Meta:
    _axes_of("scatter", x, (dim,))
    _require(index.dtype is torch.int64 and index.size == source.size, f"scatter: index {index.size}, source {source.size}")
    _require(source.dtype == x.dtype, f"scatter: types {x.dtype} and {source.dtype} differ; prims don't promote")
    return x


_define("gather", "indexing", "x at index along an axis, elementwise", _infer_gather, torch.gather)
_define(
    "index_select",
    "indexing",
    "slices of x at index along an axis",
    _infer_take_along,
    lambda x, index, dim: torch.index_select(x, dim, index),
)
_define("scatter", "indexing", "x with source written at index along an axis", _infer_scatter, torch.scatter)
_define("scatter_add", "indexing", "x with source added at index along an axis", _infer_scatter, torch.scatter_add)
for _name, _doc in (("prod", "multiplied"), ("amax", "compared, the larger kept,"), ("amin", "compared, the smaller kept,")):
    _define(
        f"scatter_{_name}",
        "indexing",
        f"x with source {_doc} at index along an axis",
        _infer_scatter,
        lambda x, dim, index, source, _reduce=_name: torch.scatter_reduce(x, dim, index, source, _reduce),
    )


def _index_size(name: str, x: Meta, indices: Any) -> tuple[int, ...]:
    _require(0 < len(indices) <= len(x.size), f"{name}: {len(indices)} indices for a tensor with {len(x.size)} axes")
    for index in indices:
        _require(index.dtype is torch.int64 and index.size == indices[0].size, f"{name}: index {index.dtype}{list(index.size)}")
    size: tuple[int, ...] = indices[0].size
    return size


def _infer_gather_nd(x: Meta, indices: Any) -> Meta:
    return Meta((*_index_size("gather_nd", x, indices), *x.size[len(indices) :]), x.dtype)


def _infer_scatter_nd(x: Meta, indices: Any, source: Meta) -> Meta:
    size = (*_index_size("scatter_nd", x, indices), *x.size[len(indices) :])
    _require(source.size == size and source.dtype == x.dtype, f"scatter_nd: source {source}, expected {x.dtype}{list(size)}")
    return x


_define(
    "gather_nd",
    "indexing",
    "x at one index for each of its first axes, which may count from the end",
    _infer_gather_nd,
    lambda x, indices: _contiguous(x[tuple(indices)]),
)
_define(
    "scatter_nd",
    "indexing",
    "x with source written where gather_nd would read; the last of several wins, or any",
    _infer_scatter_nd,
    lambda x, indices, source: torch.index_put(x, tuple(indices), source),
)
_define(
    "scatter_nd_add",
    "indexing",
    "x with source added where gather_nd would read",
    _infer_scatter_nd,
    lambda x, indices, source: torch.index_put(x, tuple(indices), source, accumulate=True),
)


def _infer_searchsorted(line: Meta, values: Meta, right: bool) -> Meta:
    _require(line.dtype == values.dtype, f"searchsorted: types {line.dtype} and {values.dtype} differ; prims don't promote")
    _require(len(line.size) == 1 or line.size[:-1] == values.size[:-1], f"searchsorted: sizes {line.size} and {values.size}")
    return Meta(values.size, torch.int64)


_define(
    "searchsorted",
    "indexing",
    "how many of the numbers of an ascending line, one for all or one for each row of values, are less (right: not greater)",
    _infer_searchsorted,
    lambda line, values, right: torch.searchsorted(line, values, right=right),
)

# --- products -----------------------------------------------------------------------------------------------------------


def _infer_mm(a: Meta, b: Meta) -> Meta:
    _require(len(a.size) == len(b.size) == 2 and a.size[1] == b.size[0], f"mm: {a.size} by {b.size}")
    _require(a.dtype == b.dtype, f"mm: types {a.dtype} and {b.dtype} differ; prims don't promote")
    return Meta((a.size[0], b.size[1]), a.dtype)


def _infer_bmm(a: Meta, b: Meta) -> Meta:
    _require(len(a.size) == len(b.size) == 3 and a.size[2] == b.size[1] and a.size[0] == b.size[0], f"bmm: {a.size} by {b.size}")
    _require(a.dtype == b.dtype, f"bmm: types {a.dtype} and {b.dtype} differ; prims don't promote")
    return Meta((a.size[0], a.size[1], b.size[2]), a.dtype)


def _infer_convolution(x: Meta, weight: Meta, stride: Any, padding: Any, dilation: Any, groups: int) -> Meta:
    rank = len(x.size) - 2
    _require(rank >= 1 and len(weight.size) == rank + 2 and x.dtype == weight.dtype, f"convolution: {x} by {weight}")
    _require(x.size[1] == weight.size[1] * groups, f"convolution: {x.size[1]} channels, weight {weight.size}, {groups} groups")
    size = [
        (x.size[axis + 2] + 2 * padding[axis] - dilation[axis] * (weight.size[axis + 2] - 1) - 1) // stride[axis] + 1
        for axis in range(rank)
    ]
    return Meta((x.size[0], weight.size[0], *size), x.dtype)


def _convolution(x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> torch.Tensor:
    zeros = [0] * (x.dim() - 2)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, zeros, groups)


_define("mm", "products", "product of two matrices", _infer_mm, torch.mm)
_define("bmm", "products", "products of two batches of matrices", _infer_bmm, torch.bmm)
_define(
    "convolution",
    "products",
    "cross-correlation of x (N, C, ...) with weight (O, C / groups, ...)",
    _infer_convolution,
    _convolution,
)


def _infer_transposed(
    x: Meta, weight: Meta, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: int
) -> Meta:
    rank = len(x.size) - 2
    _require(rank >= 1 and len(weight.size) == rank + 2 and x.dtype == weight.dtype, f"transposed_convolution: {x} by {weight}")
    _require(x.size[1] == weight.size[0], f"transposed_convolution: {x.size[1]} channels, weight {weight.size}")
    size = [
        (x.size[axis + 2] - 1) * stride[axis] - 2 * padding[axis] + dilation[axis] * (weight.size[axis + 2] - 1) + output_padding[axis] + 1
        for axis in range(rank)
    ]
    return Meta((x.size[0], weight.size[1] * groups, *size), x.dtype)


_define(
    "transposed_convolution",
    "products",
    "gradient of a convolution for its input: x (N, O, ...) with weight (O, C / groups, ...) to (N, C, ...)",
    _infer_transposed,
    lambda x, weight, stride, padding, output_padding, dilation, groups: torch.convolution(
        x, weight, None, stride, padding, dilation, True, output_padding, groups
    ),
)

#: the prims as attributes: `p.add(x, y)`
p = SimpleNamespace(**PRIMS)


def __getattr__(name: str) -> Prim:
    """`fxloom_interfaces.prims.add` is a prim, by which name the code of graphs calls it."""
    try:
        return PRIMS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
