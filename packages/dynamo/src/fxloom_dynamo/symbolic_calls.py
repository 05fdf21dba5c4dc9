"""Functions of torch that take a plain number, called with a symbolic one: what computes the same from operators that take it.

In: the arguments of `torch.linspace(0, 1, n)`, `F.layer_norm(x, shape, eps=e)`, `x.roll(n)` and their kind with a symbolic number
that torch's C++ code would ask for its value, so that every value would be compiled for apart. Out: the result, made of
operators that leave the number symbolic; NotImplemented where a combination is not covered, and C++ asks. Written from
the operators' documentation; results differ from the kernels' by rounding at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_interfaces import symbolic_math
from fxloom_ops.recurrent import KINDS, RECURRENT
from fxloom_shapes.symbols.numbers import SYMBOLIC

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
#: rules that serve where a size of a tensor is symbolic, too, and those that serve every call
ANY_SIZE: set[Any] = set()
ALWAYS: set[Any] = set()


def rule(*targets: Any, any_size: bool = False, always: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of functions. any_size, always: it serves calls with no symbolic number among the arguments, too."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        if any_size:
            ANY_SIZE.update(targets)
        if always:
            ALWAYS.update(targets)
        return function

    return register


def find(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
    """The rule for a call; None where it needs none."""
    try:
        found = RULES.get(func)
    except TypeError:  # not hashable
        return None
    if found is None or func in ALWAYS or _has_symbolic(args) or _has_symbolic(kwargs.values()):
        return found
    return found if func in ANY_SIZE and _is_sized(args) else None


def _has_symbolic(values: Any) -> bool:
    return any(type(v) in SYMBOLIC or isinstance(v, (list, tuple)) and _has_symbolic(v) for v in values)


def _is_sized(args: tuple[Any, ...]) -> bool:
    tensors = itertools.chain.from_iterable(arg if isinstance(arg, (list, tuple)) else (arg,) for arg in args)
    return any(isinstance(arg, Tensor) and _has_symbolic(arg.shape) for arg in tensors)


# --- sequences ---------------------------------------------------------------------------------------------------------


@rule(torch.linspace)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **options: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if isinstance(start, Tensor) or isinstance(end, Tensor) or not dtype.is_floating_point or _is_complex(start, end):
        return NotImplemented
    if _unusual(options) or type(steps) is int and steps < 2:
        return NotImplemented
    place = torch.arange(steps, dtype=dtype, **options)
    # the larger of 1: a number of steps that only running the program tells may be 1, and the line is its start then
    step = torch.scalar_tensor((end - start) / torch.sym_max(steps - 1, 1), dtype=dtype, device=place.device)
    return torch.where(place < torch.sym_max(steps // 2, 1), start + step * place, end - step * (steps - 1 - place))


@rule(torch.logspace)
def logspace(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, **options: Any) -> Any:
    line = linspace(start, end, steps, dtype=dtype, **options)
    return NotImplemented if line is NotImplemented or isinstance(base, Tensor) else torch.pow(base * 1.0, line)


def _if_single(length: Any, value: float, otherwise: Tensor) -> Tensor:
    """`otherwise`; but `value` where the length is 1, which for some lengths only running the program tells."""
    if type(length) is int or length.node.has_hint():
        return torch.full_like(otherwise, value) if length == 1 else otherwise
    return torch.where(torch.scalar_tensor(length, dtype=torch.int64, device=otherwise.device) == 1, value, otherwise)


def _is_complex(*values: Any) -> bool:
    return any(isinstance(value, complex) for value in values)


def _unusual(options: dict[str, Any]) -> bool:
    return options.get("layout") not in (None, torch.strided) or options.get("out") is not None or bool(options.get("requires_grad"))


def _window(periodic: Any, length: Any, options: dict[str, Any]) -> Tensor | None:
    """Places of a window's samples from 0 to 1; None where the usual way is right."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if _unusual(options) or not dtype.is_floating_point or type(length) is int and length < 2:
        return None
    last = length if periodic else length - 1
    return torch.arange(length, **{**options, "dtype": dtype}) / last


def _cosines(place: Tensor, *weights: float) -> Tensor:
    """Sum of weights[k] * cos(2 pi k place)"""
    result = place * 0 + weights[0]
    for number, weight in enumerate(weights[1:], 1):
        result = result + weight * torch.cos(place * (2 * math.pi * number))
    return result


@rule(torch.hann_window)
def hann_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else _if_single(window_length, 1, _cosines(place, 0.5, -0.5))


@rule(torch.hamming_window)
def hamming_window(window_length: Any, periodic: Any = True, alpha: Any = 0.54, beta: Any = 0.46, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else _if_single(window_length, 1, _cosines(place, alpha, -beta))


@rule(torch.blackman_window)
def blackman_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else _if_single(window_length, 1, _cosines(place, 0.42, -0.5, 0.08))


@rule(torch.bartlett_window)
def bartlett_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else _if_single(window_length, 1, 1 - torch.abs(2 * place - 1))


@rule(torch.kaiser_window)
def kaiser_window(window_length: Any, periodic: Any = True, beta: Any = 12.0, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    if place is None or type(beta) in SYMBOLIC:
        return NotImplemented
    top = torch.i0(torch.scalar_tensor(float(beta), dtype=place.dtype, device=place.device))
    return _if_single(window_length, 1, torch.i0(beta * torch.sqrt(torch.clamp(1 - (2 * place - 1) ** 2, min=0))) / top)


@rule(torch.vander, any_size=True)
def vander(x: Tensor, N: Any = None, increasing: Any = False) -> Any:
    if x.dim() != 1:
        return NotImplemented
    N = x.shape[0] if N is None else N
    ones = torch.ones(x.shape[0], 1, dtype=torch.promote_types(x.dtype, torch.int64), device=x.device)
    powers = torch.cat([ones, x.unsqueeze(1).expand(x.shape[0], N - 1).to(ones.dtype)], 1).cumprod(1)
    return powers if increasing else powers.flip(1)


# --- indices -----------------------------------------------------------------------------------------------------------


def _below(rows: Any, columns: Any, offset: Any) -> Any:
    """How many places of a matrix have column <= row + offset."""
    first = torch.sym_max(0, -offset)  # the first row that has one
    full = torch.sym_max(0, columns - offset)  # the first row that has all
    rising = torch.sym_max(0, torch.sym_min(rows, full) - first)
    whole = torch.sym_max(0, rows - full)
    return rising * (first + offset + 1) + rising * (rising - 1) // 2 + whole * columns


def _indices(rows: Any, columns: Any, starts: Tensor, lengths: Tensor, total: Any, dtype: Any) -> Tensor:
    line = torch.arange(rows, device=starts.device)
    row = torch.repeat_interleave(line, lengths, output_size=total)
    before = torch.cumsum(lengths, 0) - lengths - starts
    column = torch.arange(total, device=starts.device) - before[row]
    return torch.stack([row, column]).to(dtype)


@rule(torch.tril_indices)
def tril_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, **options: Any) -> Any:
    if _unusual(options):
        return NotImplemented
    ends = torch.clamp(torch.arange(row, **options) + (offset + 1), min=0).clamp(max=col)
    return _indices(row, col, torch.zeros_like(ends), ends, _below(row, col, offset), dtype)


@rule(torch.triu_indices)
def triu_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, **options: Any) -> Any:
    if _unusual(options):
        return NotImplemented
    starts = torch.clamp(torch.arange(row, **options) + offset, min=0).clamp(max=col)
    return _indices(row, col, starts, col - starts, row * col - _below(row, col, offset - 1), dtype)


@rule(torch.combinations, always=True)
def combinations(input: Tensor, r: Any = 2, with_replacement: Any = False) -> Any:
    if type(r) is not int or r != 2 or input.dim() != 1:
        return NotImplemented
    n = input.shape[0]
    first, second = triu_indices(n, n, 0 if with_replacement else 1, device=input.device).unbind()
    return torch.stack([input[first], input[second]], 1)


@rule(F.one_hot, always=True)
def one_hot(tensor: Tensor, num_classes: Any = -1) -> Any:
    """Always, since torch's own version reads the largest and the smallest class. A scatter checks each class, too."""
    if type(num_classes) is int and num_classes <= 0 and num_classes != -1 or tensor.dtype is not torch.int64:
        return NotImplemented
    if type(num_classes) is int and num_classes == -1:
        num_classes = tensor.max().item() + 1
    result = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return result.scatter(-1, tensor.unsqueeze(-1), 1)


@rule(torch.roll, torch.Tensor.roll)
def roll(input: Tensor, shifts: Any, dims: Any = ()) -> Any:
    moves = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    axes = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    if not axes and len(moves) == 1:
        return roll(input.reshape(-1), moves, [0]).reshape(input.shape)
    if len(moves) != len(axes):
        return NotImplemented
    for move, axis in zip(moves, axes, strict=True):
        extent = input.shape[axis]
        input = input.index_select(axis, (torch.arange(extent, device=input.device) - move) % extent)
    return input


@rule(torch.diagonal, torch.Tensor.diagonal)
def diagonal(input: Tensor, offset: Any = 0, dim1: Any = 0, dim2: Any = 1) -> Any:
    if not all(isinstance(dim, int) and -input.dim() <= dim < input.dim() for dim in (dim1, dim2)):
        return NotImplemented
    a, b = (dim1, offset * 0) if offset >= 0 else (dim1, -offset)
    if offset >= 0:
        input = input.narrow(dim2, offset, torch.sym_max(input.shape[dim2] - offset, 0))
    else:
        input = input.narrow(a, b, torch.sym_max(input.shape[dim1] - b, 0))
    return torch.diagonal(input, 0, dim1, dim2)


@rule(torch.select, torch.Tensor.select)
def select(input: Tensor, dim: Any, index: Any) -> Any:
    """An index that only running the graph tells is checked as torch does; the rest is torch's."""
    if type(index) is torch.SymInt and not index.node.has_hint() and type(dim) is int and -input.dim() <= dim < input.dim():
        extent, sizes = input.shape[dim], ", ".join(["{}"] * input.dim())
        text = f"select(): index {{}} out of range for tensor of size [{sizes}] at dimension {dim}"
        for condition in (index >= -extent, index < extent):
            symbolic_math.check(condition, text, "IndexError", index, *input.shape)
    return NotImplemented


def _pieces(input: Tensor, sections: Any, dim: int) -> list[Tensor]:
    size, longer = input.shape[dim] // sections, input.shape[dim] % sections
    starts = [number * size + torch.sym_min(number, longer) for number in range(sections + 1)]
    return [input.narrow(dim, a, b - a) for a, b in itertools.pairwise(starts)]


@rule(torch.tensor_split, torch.Tensor.tensor_split, any_size=True)
def tensor_split(input: Tensor, indices_or_sections: Any = None, dim: Any = 0, *, sections: Any = None, indices: Any = None) -> Any:
    number = sections if sections is not None else indices_or_sections
    if type(number) is not int or number < 1 or input.dim() == 0:
        return NotImplemented
    return tuple(_pieces(input, number, dim))


def _split_along(axis: Callable[[Tensor], int]) -> Rule:
    def split(input: Tensor, indices_or_sections: Any) -> Any:
        if not isinstance(indices_or_sections, (list, tuple)) or input.dim() < 1:
            return NotImplemented
        return torch.tensor_split(input, tuple(indices_or_sections), axis(input))

    return split


rule(torch.hsplit, torch.Tensor.hsplit)(_split_along(lambda x: 0 if x.dim() == 1 else 1))
rule(torch.vsplit, torch.Tensor.vsplit)(_split_along(lambda x: 0))
rule(torch.dsplit, torch.Tensor.dsplit)(_split_along(lambda x: 2))


# --- products, differences, norms: C++ code that asks for plain sizes ----------------------------------------------------


@rule(torch.kron, any_size=True)
def kron(input: Tensor, other: Tensor) -> Any:
    rank = max(input.dim(), other.dim())
    if not input.is_contiguous() or not other.is_contiguous():
        return NotImplemented
    sizes = [[*[1] * (rank - x.dim()), *x.shape] for x in (input, other)]
    left = input.reshape([part for extent in sizes[0] for part in (extent, 1)])
    right = other.reshape([part for extent in sizes[1] for part in (1, extent)])
    return (left * right).reshape([a * b for a, b in zip(*sizes, strict=True)])


@rule(torch.take_along_dim, torch.Tensor.take_along_dim, any_size=True)
def take_along_dim(input: Tensor, indices: Tensor, dim: Any = None, *, out: Any = None) -> Any:
    if out is not None or not isinstance(indices, Tensor) or indices.dtype is not torch.int64:
        return NotImplemented
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if type(dim) is not int or input.dim() != indices.dim() or not -input.dim() <= dim < input.dim():
        return NotImplemented
    axis = dim % input.dim()
    common = [a if b == 1 else b for a, b in zip(input.shape, indices.shape, strict=True)]
    if any(extent not in (a, 1) for number, (a, extent) in enumerate(zip(common, input.shape, strict=True)) if number != axis):
        return NotImplemented  # not to be broadcast
    values = input.expand([*common[:axis], input.shape[axis], *common[axis + 1 :]])
    return values.gather(axis, indices.expand([*common[:axis], indices.shape[axis], *common[axis + 1 :]]))


@rule(torch.gradient, any_size=True)
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: Any = 1) -> Any:
    axes = list(range(input.dim())) if dim is None else list(dim) if isinstance(dim, (list, tuple)) else [dim]
    spaced = isinstance(spacing, (int, float)) or type(spacing) in SYMBOLIC
    if not spaced or edge_order != 1 or not input.is_floating_point() or any(input.shape[axis] < 2 for axis in axes):
        return NotImplemented

    def along(axis: int) -> Tensor:
        n = input.shape[axis]
        first, last = input.narrow(axis, 0, 2), input.narrow(axis, n - 2, 2)
        inner = (input.narrow(axis, 2, n - 2) - input.narrow(axis, 0, n - 2)) / spacing / 2
        edges = [(x.narrow(axis, 1, 1) - x.narrow(axis, 0, 1)) / spacing for x in (first, last)]
        return torch.cat([edges[0], inner, edges[1]], axis)

    return tuple(along(axis) for axis in axes)


def _spectral_norm(input: Tensor, ord: Any, dim: Any, keepdim: Any) -> Any:
    """Norms of matrices by their singular values."""
    axes = [axis % input.dim() for axis in dim]
    values = torch.linalg.svdvals(input.movedim(axes, (-2, -1)))
    found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
    if keepdim:
        for axis in sorted(axes):
            found = found.unsqueeze(axis)
    return found


def _pair_of_axes(input: Tensor, dim: Any) -> bool:
    whole = isinstance(dim, (list, tuple)) and len(dim) == 2 and all(-input.dim() <= axis < input.dim() for axis in dim)
    return whole and dim[0] % input.dim() != dim[1] % input.dim()


@rule(torch.linalg.matrix_norm, any_size=True)
def matrix_norm(input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: Any = False, *, dtype: Any = None, out: Any = None) -> Any:
    if ord not in ("nuc", 2, -2) or dtype is not None or out is not None or input.dim() < 2 or not _pair_of_axes(input, dim):
        return NotImplemented
    return _spectral_norm(input, ord, dim, keepdim)


@rule(torch.linalg.norm, any_size=True)
def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None, out: Any = None) -> Any:
    if ord not in ("nuc", 2, -2) or dtype is not None or out is not None:
        return NotImplemented
    axes = (0, 1) if dim is None and input.dim() == 2 else dim
    return _spectral_norm(input, ord, axes, keepdim) if _pair_of_axes(input, axes) else NotImplemented


# --- pooling, grids ----------------------------------------------------------------------------------------------------


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


@rule(torch.max_pool1d, F.max_pool1d, any_size=True)
def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False,
    return_indices: Any = False,
) -> Any:  # fmt: skip
    kernel = _one(kernel_size)
    step = kernel if stride is None or isinstance(stride, (list, tuple)) and not stride else _one(stride)
    if return_indices or input.dim() not in (2, 3) or _has_symbolic([kernel, step, _one(padding), _one(dilation)]):
        return NotImplemented
    flat = torch.max_pool2d(input.unsqueeze(-2), (1, kernel), (1, step), (0, _one(padding)), (1, _one(dilation)), bool(ceil_mode))
    return flat.squeeze(-2)


@rule(F.affine_grid)
def affine_grid(theta: Tensor, size: Sequence[Any], align_corners: Any = None) -> Any:
    if len(size) != 4 or align_corners is None or theta.dim() != 3 or theta.shape[1:] != (2, 3) or not theta.is_floating_point():
        return NotImplemented
    n, _, h, w = size
    options: dict[str, Any] = {"dtype": theta.dtype, "device": theta.device}

    def line(extent: Any) -> Tensor:
        place = _if_single(extent, 0, torch.linspace(-1, 1, extent, **options))
        return place if align_corners else place * ((extent - 1) / extent)

    x = line(w).expand(h, w)
    y = line(h).unsqueeze(1).expand(h, w)
    base = torch.stack([x, y, torch.ones(h, w, **options)], -1).view(1, h * w, 3).expand(n, h * w, 3)
    return base.bmm(theta.transpose(1, 2)).view(n, h, w, 2)


#: mode -> operator, with the number of axes to be filled in, and whether it is told about corners
_UPSAMPLING = {
    "nearest": ("upsample_nearest{}d", False), "nearest-exact": ("_upsample_nearest_exact{}d", False),
    "linear": ("upsample_linear{}d", True), "bilinear": ("upsample_bilinear{}d", True), "bicubic": ("upsample_bicubic{}d", True),
    "trilinear": ("upsample_trilinear{}d", True),
}  # fmt: skip


@rule(F.interpolate)
def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: Any = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None, antialias: Any = False,
) -> Any:  # fmt: skip
    """With factors that change: kernels take them as plain floats."""
    axes = input.dim() - 2
    factors = list(scale_factor) if isinstance(scale_factor, (list, tuple)) else [scale_factor] * axes
    name, has_corners = _UPSAMPLING.get(mode, ("", False))
    packet = getattr(torch.ops.aten, name.format(axes), None)
    if size is not None or recompute_scale_factor or antialias or packet is None or len(factors) != axes or not _has_symbolic(factors):
        return NotImplemented
    if not has_corners and align_corners is not None:
        return NotImplemented
    sizes = [symbolic_math.trunc(extent * factor * 1.0) for extent, factor in zip(input.shape[2:], factors, strict=True)]
    return packet.default(input, sizes, *([bool(align_corners)] if has_corners else []), *factors)


# --- statistics --------------------------------------------------------------------------------------------------------


def extent_along(input: Tensor, dim: Any) -> Any:
    axes = dim if isinstance(dim, (list, tuple)) else range(input.dim()) if dim is None else [dim]
    return math.prod([input.shape[axis] for axis in axes or range(input.dim())])


def _variance(input: Tensor, dim: Any, correction: Any, keepdim: Any) -> Any:
    if type(correction) not in SYMBOLIC:
        return NotImplemented
    count = extent_along(input, dim)
    dims = {} if dim is None else {"dim": dim}
    plain = torch.var(input, correction=0, keepdim=keepdim, **dims) if dims or keepdim else torch.var(input, correction=0)
    divisor = torch.scalar_tensor(torch.sym_max(count - correction, 0), dtype=torch.float64, device=input.device)
    return plain * (count / divisor).to(plain.dtype)


@rule(torch.var, torch.Tensor.var)
def var(input: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: Any = False) -> Any:
    return _variance(input, dim, correction, keepdim)


@rule(torch.std, torch.Tensor.std)
def std(input: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: Any = False) -> Any:
    variance = _variance(input, dim, correction, keepdim)
    return variance if variance is NotImplemented else torch.sqrt(variance)


@rule(torch.quantile, torch.Tensor.quantile)
def quantile(input: Tensor, q: Any, dim: Any = None, keepdim: Any = False, *, interpolation: Any = "linear") -> Any:
    if type(q) not in SYMBOLIC:
        return NotImplemented
    place = torch.scalar_tensor(q, dtype=input.dtype, device=input.device)
    return torch.quantile(input, place, dim, keepdim, interpolation=interpolation)


# --- attention, odds and ends -------------------------------------------------------------------------------------------


@rule(F.pad)
def pad(input: Tensor, pad: Any, mode: Any = "constant", value: Any = None) -> Any:
    if mode != "constant":
        return NotImplemented
    cut = constant_pad_nd(input, pad)
    return torch.constant_pad_nd(input, pad, value) if cut is NotImplemented and type(value) in SYMBOLIC else cut


@rule(torch.constant_pad_nd)
def constant_pad_nd(input: Tensor, pad: Any, value: Any = 0) -> Any:
    """Where nothing is padded the result is a clone, with the strides of `input`. It is asked where that matters."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    dense = input.is_contiguous() or input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()])
    if dense or len(pad) % 2 or len(pad) > 2 * input.dim() or any(type(e) in SYMBOLIC and not e.node.has_hint() for e in pad):
        return NotImplemented
    if any(extent > 0 for extent in pad):
        return NotImplemented
    for number in range(len(pad) // 2):
        axis, before, after = input.dim() - 1 - number, pad[2 * number], pad[2 * number + 1]
        input = input.narrow(axis, -before, input.shape[axis] + before + after)
    return input.clone()


@rule(torch.nan_to_num, torch.Tensor.nan_to_num)
def nan_to_num(input: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None, *, out: Any = None) -> Any:
    if out is not None or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented

    def number(given: Any, default: float) -> Any:
        """In the type of `input`, an infinity where it does not fit, which `torch.where` refuses."""
        return torch.scalar_tensor(default if given is None else given, dtype=torch.float64, device=input.device).to(input.dtype)

    ends = torch.finfo(input.dtype)
    result = torch.where(input.isnan(), number(nan, 0.0), input)
    result = torch.where(input == math.inf, number(posinf, ends.max), result)
    return torch.where(input == -math.inf, number(neginf, ends.min), result)


@rule(torch.isclose, torch.Tensor.isclose)
def isclose(input: Tensor, other: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Any:
    if input.dtype != other.dtype or not input.is_floating_point() or equal_nan or not rtol >= 0 or not atol >= 0:
        return NotImplemented
    apart = (input - other).abs()
    return (input == other) | (apart.isfinite() & (apart <= atol + (rtol * other).abs()))


@rule(torch.logit, torch.Tensor.logit, torch.special.logit)
def logit(input: Tensor, eps: Any = None, *, out: Any = None) -> Any:
    plain = out is None and input.dtype in (torch.float32, torch.float64)
    if type(eps) not in SYMBOLIC or not plain or not eps >= 0 or not eps <= 1:
        return NotImplemented
    # not `clamp`, for which the upper end counts where the ends cross; what is outside has no derivative
    return torch.logit(torch.where(input < eps, eps, torch.where(input > 1 - eps, 1 - eps, input)))


@rule(F.cosine_similarity)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: Any = 1, eps: Any = 1e-08) -> Any:
    """Norms are at least eps, but differentiated as if they were what they are."""
    if type(eps) not in SYMBOLIC or x1.dtype != x2.dtype or not x1.is_floating_point() or not eps >= 0:
        return NotImplemented
    x1, x2 = torch.broadcast_tensors(x1, x2)
    norms = [torch.linalg.vector_norm(x, 2, dim, keepdim=True) for x in (x1, x2)]
    raised = [torch.where(norm < eps, norm + (eps - norm).detach(), norm) for norm in norms]
    parts = [x / norm for x, norm in zip((x1, x2), raised, strict=True)]
    return (parts[0] * parts[1]).sum(dim)


@rule(torch.Tensor.fill_diagonal_, any_size=True)
def fill_diagonal_(input: Tensor, fill_value: Any, wrap: Any = False) -> Any:
    if input.dim() != 2 or wrap:
        return NotImplemented
    input.diagonal().fill_(fill_value)
    return input


def _opmath(dtype: torch.dtype) -> torch.dtype:
    """The type that kernels compute in: a half type goes on to float32, and the number beside it is not rounded to the half type."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@rule(torch.celu, F.celu)
def celu(input: Tensor, alpha: Any = 1.0, inplace: Any = False) -> Any:
    """Its derivative asks for alpha."""
    if type(alpha) not in SYMBOLIC or inplace or alpha == 0.0:
        return NotImplemented
    x = input.to(_opmath(input.dtype))
    return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0) / alpha)).to(input.dtype)


@rule(F.softshrink)
def softshrink(input: Tensor, lambd: Any = 0.5) -> Any:
    if input.dtype == _opmath(input.dtype) or not lambd >= 0.0:
        return NotImplemented
    return F.softshrink(input.to(_opmath(input.dtype)), lambd).to(input.dtype)


@rule(torch.round, torch.Tensor.round, torch.special.round)
def round_to_decimals(input: Tensor, *, decimals: Any = 0, out: Any = None) -> Any:
    return NotImplemented if out is not None else torch.ops.aten.round.decimals(input, decimals=decimals)


@rule(torch.round_, torch.Tensor.round_)
def round_to_decimals_in_place(input: Tensor, *, decimals: Any = 0) -> Any:
    return input.copy_(round_to_decimals(input.clone(), decimals=decimals))


@rule(torch.polygamma, torch.special.polygamma)
def polygamma(n: Any, input: Tensor, *, out: Any = None) -> Any:
    return NotImplemented if out is not None or n < 0 else torch.ops.aten.polygamma.default(n, input)


@rule(torch.lerp, torch.Tensor.lerp)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Any:
    if type(weight) not in SYMBOLIC:
        return NotImplemented
    wide = _opmath(input.dtype)
    if end.dtype != input.dtype:
        return NotImplemented  # eager refuses it
    return torch.lerp(input.to(wide), end.to(wide), torch.scalar_tensor(weight, dtype=wide, device=input.device)).to(input.dtype)


def _is_late(*tensors: Tensor) -> bool:
    """Some size is told by running the program only."""
    extents: list[Any] = [extent for tensor in tensors for extent in tensor.shape]
    return any(type(extent) is not int and not extent.node.has_hint() for extent in extents)


@rule(torch.masked_select, torch.Tensor.masked_select, any_size=True)
def masked_select(input: Tensor, mask: Tensor, *, out: Any = None) -> Any:
    """Its derivative looks at sizes."""
    if out is not None or mask.dtype is not torch.bool or input.shape != mask.shape or not input.dim():
        return NotImplemented
    return input[mask]


@rule(F.scaled_dot_product_attention, any_size=True)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False, *,
    scale: Any = None, enable_gqa: Any = False,
) -> Any:  # fmt: skip
    if _is_late(query, key, value):
        return NotImplemented if enable_gqa else _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if type(dropout_p) is torch.SymFloat and dropout_p > 0.0:
        if enable_gqa or query.device.type != "cpu":
            return NotImplemented
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if type(scale) not in SYMBOLIC:
        return NotImplemented
    scaled = query * (scale * query.shape[-1] ** 0.5)
    return F.scaled_dot_product_attention(scaled, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> Any:
    """softmax(q @ k.T * scale + mask) @ v. Which kernel is the fastest torch decides by lengths, which are not known."""
    if mask is not None and is_causal:
        return NotImplemented
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)
        mask = rows[:, None] >= torch.arange(key.shape[-2], device=query.device)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None:  # of nothing but what is masked out: 0
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    if type(dropout_p) in SYMBOLIC or dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return weights.to(value.dtype) @ value


# --- recurrent layers --------------------------------------------------------------------------------------------------


def _stack(
    kind: str, output: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], options: tuple[bool, int, bool], layers: int,
    dropout: Any,
) -> list[Tensor]:  # fmt: skip
    """Layer upon layer, with dropout between them."""
    lasts = []
    own, rows = len(weights) // layers, states[0].shape[0] // layers
    for layer in range(layers):
        first = [state.narrow(0, layer * rows, rows) for state in states]
        output, *last = RECURRENT(kind, output, first, list(weights[layer * own : (layer + 1) * own]), *options)
        lasts.append(last)
        if layer < layers - 1:
            output = torch.dropout(output, dropout, True)
    return [output, *(torch.cat(parts) for parts in zip(*lasts, strict=True))]


def _recurrent(kind: str) -> Rule:
    def layer(
        input: Tensor, states: Any, weights: Any, biases: Any, layers: Any = None, dropout: Any = 0.0, train: Any = False,
        bidirectional: Any = False, batch_first: Any = False,
    ) -> Any:  # fmt: skip
        """One operator for any length; of packed sequences, dropout on a GPU (which has numbers of its own) and autocast torch's."""
        state = list(states) if isinstance(states, (list, tuple)) else [states]
        given = [input, *state, *(weights if isinstance(weights, (list, tuple)) else [])]
        if type(layers) is not int or input.dim() != 3 or torch.is_autocast_enabled(input.device.type):
            return NotImplemented
        drops = layers > 1 and train and dropout != 0
        if drops and input.device.type != "cpu":
            return NotImplemented
        if any(tensor.dtype != input.dtype or tensor.device != input.device for tensor in given) or not input.is_floating_point():
            return NotImplemented
        steps = input.transpose(0, 1) if batch_first else input
        if drops:
            made = _stack(kind, steps, state, list(weights), (bool(biases), 1, bool(bidirectional)), layers, dropout)
        else:
            made = RECURRENT(kind, steps, state, list(weights), bool(biases), layers, bool(bidirectional))
        output, *last = made
        return (output.transpose(0, 1) if batch_first else output, *last)

    return layer


for _kind in KINDS:
    rule(getattr(torch, _kind), always=True)(_recurrent(_kind))
