"""Rules for slices, splits, products, pooling, grids and padding with symbolic numbers.

In: arguments as torch's function takes them, with a symbolic number or size among them. Out: as for `registry`, whose rules these
are: the result, computed by operators that leave it symbolic; NotImplemented where a combination of arguments is not covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.factories import if_single
from fxloom_dynamo.symbolic_numbers.registry import Rule, holds_symbolic, rule
from fxloom_interfaces import symbolic_math
from fxloom_shapes.symbols.numbers import SYMBOLIC

# --- indices -----------------------------------------------------------------------------------------------------------


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
    if return_indices or input.dim() not in (2, 3) or holds_symbolic([kernel, step, _one(padding), _one(dilation)]):
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
        place = if_single(extent, 0, torch.linspace(-1, 1, extent, **options))
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
    if size is not None or recompute_scale_factor or antialias or packet is None or len(factors) != axes or not holds_symbolic(factors):
        return NotImplemented
    if not has_corners and align_corners is not None:
        return NotImplemented
    sizes = [symbolic_math.trunc(extent * factor * 1.0) for extent, factor in zip(input.shape[2:], factors, strict=True)]
    return packet.default(input, sizes, *([bool(align_corners)] if has_corners else []), *factors)

# --- padding, diagonals, masks -----------------------------------------------------------------------------------------------------


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


@rule(torch.Tensor.fill_diagonal_, any_size=True)
def fill_diagonal_(input: Tensor, fill_value: Any, wrap: Any = False) -> Any:
    if input.dim() != 2 or wrap:
        return NotImplemented
    input.diagonal().fill_(fill_value)
    return input


@rule(torch.masked_select, torch.Tensor.masked_select, any_size=True)
def masked_select(input: Tensor, mask: Tensor, *, out: Any = None) -> Any:
    """Its derivative looks at sizes."""
    if out is not None or mask.dtype is not torch.bool or input.shape != mask.shape or not input.dim():
        return NotImplemented
    return input[mask]
