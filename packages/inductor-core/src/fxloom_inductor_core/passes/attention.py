"""Attention written by hand becomes `scaled_dot_product_attention`: softmax(q @ k.T * scale + mask) @ v, in all its spellings.

In: a graph in the torch dialect, so that derivatives are the fused operator's too. Out: the same graph, edited, and how many were found.
Invariant: results have eager's dtypes and strides, and are as near to the exact ones as eager's; NaN and infinity come out where they do in
eager; masks that may forbid every key of a row keep giving NaN there, which the fused operator does not give by itself.

What is recognized: products by matmul, bmm, baddbmm and einsum; scales before or behind the product, by multiplication or division;
masks that are added, filled in (`masked_fill`) or chosen (`where`); softmax in float32 with casts around it; keys and values that are
repeated for groups of heads; three-dimensional products, whose batch holds the heads. Left alone: weights that are used
otherwise, softmax over another axis, scales that are tensors, shapes that broadcast, anything between the products that may write.

It fires only where it was measured to be faster than the separate kernels (`is_faster`; one thread, kernels of this package beside
it, one process; AVX-512 with bfloat16 instructions, and the same processor without them by oneDNN's and torch's switches):

| | inference | training |
|---|---|---|
| float32, fewer than 2048 scores in all | 0.77 to 0.9 | |
| float32, 16 to 64 positions | 1.1 to 1.5 | 0.89 to 1.04 |
| float32, 128 to 2048 positions | 1.03 to 1.75 | 0.85 to 1.02 |
| bfloat16, the processor multiplies it, up to 64 positions | 1.1 to 4.5 | 0.4 to 1.6 |
| bfloat16, the processor multiplies it, from 128 positions on | 0.66 to 1.04 | 0.3 to 0.8 |
| bfloat16, it does not | 1.4 to 28 | 1.06 to 3.1 |
| bfloat16, it does not, one query (decoding) | 0.46 to 0.49 | |

On CUDA (H200, over eager's separate kernels): bfloat16 1.5 to 9.4 in inference, 0.97 to 5.2 in training; float32 is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.attention_forms import FORBIDDING, Attention, Operand, Scores, attentions, grouped_heads, rank_of
from fxloom_inductor_core.passes.bounds import lowest
from fxloom_inductor_core.passes.constants import constant_value
from fxloom_inductor_core.passes.gradient_layouts import lay_out_gradient
from fxloom_inductor_core.passes.rewriting import Maker
from fxloom_inductor_core.passes.torch_calls import is_unused, may_have_effect
from fxloom_interfaces import meta
from fxloom_shapes.fake.cpu_features import onednn_computes
from fxloom_shapes.fake.sizes import statically_same_size

#: scores (batch * heads * queries * keys) below which a call of the library costs more than it saves
_FEW_SCORES = 2048
#: above it scores are infinite, or lose to rounding what derivatives are made of
_LARGEST_SCALE = 1e4
#: queries * keys above which products by the processor's own instructions for half types are faster
_MANY_PAIRS = 64 * 64


def fuse_attention(graph: torch.fx.Graph, options: InductorOptions, made_for: dict[torch.fx.Node, torch.fx.Node]) -> int:
    """Edits `graph`; how many became fused. made_for: gets, for each new node, the one that it stands for."""
    if options.numerics == "exact":
        return 0
    fused = 0
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_method"):
            fused += any(_fuse(found, made_for) for found in attentions(node))
    return fused


def _fuse(found: Attention, made_for: dict[torch.fx.Node, torch.fx.Node]) -> bool:
    scores = found.scores
    q, k, v = scores.q, scores.k, found.v
    if not _fits(found) or not _nothing_happens_between(found.nodes, found.root):
        return False
    k, v, groups = _without_repeats(k, v, found)
    masks = [*scores.added, *[mask for mask, _, _ in scores.filled]]
    full = (*q.sizes()[:-1], found.v.sizes()[-2])
    if any(not _broadcasts(mask, full) for mask in masks):
        return False
    make = Maker(found.root, made_for)
    rank = len(q.order)
    for operation, number in scores.symbolic:
        q = replace(q, node=make(operation, q.node, number))
    trains = meta.get_fake(found.root).requires_grad
    swapped = not _is_plain_matrix(k)
    query, key, value = (_in_four(make, operand, trains, operand is k and swapped) for operand in (q, k, v))
    mask = _mask(make, scores, rank, meta.get_fake(q.node))
    if mask is not None and (trains or meta.get_fake(query).device.type != "cpu") and _may_fill_rows(scores):
        query, mask = _even_rows(make, query, mask)
    options: dict[str, Any] = {"attn_mask": mask, "dropout_p": found.dropout, "is_causal": False, "scale": scores.scale}
    if groups > 1:
        options["enable_gqa"] = True
    out = make(F.scaled_dot_product_attention, query, key, value, **options)
    if meta.get_fake(query).device.type == "cpu":
        out = make(torch.sub, out, _nothing_or_nan(make, query))
    out = make(torch.clone, out, memory_format=torch.contiguous_format)
    if rank == 3:
        out = make(torch.squeeze, out, 1)
    elif rank == 2:
        out = make(torch.squeeze, out, (0, 1))
    if found.order != tuple(range(rank)):
        out = make(torch.permute, out, found.order)
    meta.set_fake(out, meta.get_fake(found.root))
    _replace(found, out)
    return True


def _replace(found: Attention, out: torch.fx.Node) -> None:
    """Put `out` in the place of the root; what the pattern covered goes, with what only looked at it."""
    found.root.replace_all_uses_with(out)
    graph = found.root.graph
    for node in sorted(set(found.nodes), reverse=True):
        for user in list(node.users):
            if is_unused(user):
                graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


# --- where it applies ---


def _fits(found: Attention) -> bool:
    """Whether the fused operator takes these tensors, and is the faster."""
    q, k, v = found.scores.q, found.scores.k, found.v
    fakes = [meta.get_fake(operand.node) for operand in (q, k, v)]
    out = meta.get_fake(found.root)
    dtype = fakes[0].dtype
    if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16) or any(fake.dtype is not dtype for fake in (*fakes, out)):
        return False
    if len({fake.device for fake in (*fakes, out)}) > 1 or len(q.order) > 4:
        return False
    sizes = [operand.sizes() for operand in (q, k, v)]
    batches = [size[:-2] for size in sizes]
    if not all(statically_same_size(batches[0], batch) for batch in batches[1:]):
        return False
    if not statically_same_size((sizes[0][-1], sizes[1][-2]), (sizes[1][-1], sizes[2][-2])) or not statically_same_size(
        (sizes[0][-1],), (sizes[2][-1],)
    ):
        return False
    if any(_may_be_empty(extent) for size in sizes for extent in size) or not abs(found.scores.scale) <= _LARGEST_SCALE:
        return False
    if type(sizes[1][-2]) is int and sizes[1][-2] == 1:
        return False  # the CPU's kernel gives 0 for a row of nothing but -inf, which one key may make
    if any(operand.last_stride() != 1 for operand in (q, k, v)):
        return False
    if not _has_strides_of(out, found):
        return False
    trains = out.requires_grad
    masks = [*found.scores.added, *[mask for mask, _, _ in found.scores.filled]]
    if trains and any(meta.get_fake(mask).requires_grad for mask in masks):
        return False  # the fused kernels give no derivative of a mask
    if trains and not _leaves_every_row(found.scores):
        return False
    if not _mask_is_exact(found.scores, fakes[0]):
        return False
    return is_faster(fakes[0].device.type, dtype, (*batches[0], sizes[0][-2], sizes[1][-2]), trains, found.dropout)


def _mask_is_exact(scores: Scores, query: torch.Tensor) -> bool:
    """Whether the type of masks has what is added and filled in: large numbers have to hide scores altogether."""
    dtype = _mask_dtype(query)
    if dtype is torch.float16 and any(value > -math.inf for _, value, _ in scores.filled):
        return False
    return query.device.type == "cpu" or all(meta.get_fake(mask).dtype is dtype for mask in scores.added)


def _leaves_every_row(scores: Scores) -> bool:
    """Whether it is known enough of the masks for derivatives to be eager's: no row is forbidden by a large number that is added.

    Derivatives of the fused operator come from the logarithm of a row's sum, which is lost beside a large number; and where every
    score of a row was filled with -inf, eager's are partly NaN and partly 0.
    """
    large = [mask for mask in scores.added if lowest(mask) <= FORBIDDING]
    if len(large) + len(scores.filled) > 1:
        return False  # together they may forbid what neither does
    for mask in large:
        value = constant_value(mask)
        if value is None:
            return False
        best = value.double().amax(-1)
        if not bool(((best > FORBIDDING) | (best == -math.inf)).all()):
            return False
    for mask, number, forbids in scores.filled:
        if number == -math.inf:
            value = constant_value(mask)
            if value is None or bool((value if forbids else ~value).all(-1).any()):
                return False
    return True


def is_faster(device: str, dtype: torch.dtype, scores: tuple[Any, ...], trains: bool, dropout: float) -> bool:
    """Whether fused attention beats the separate kernels; measured, see the module's docstring. scores: their sizes, two or more."""
    if device == "cuda":  # not measured: other types have no fused kernel that rounds as products do
        return dtype in (torch.bfloat16, torch.float16) and not torch.are_deterministic_algorithms_enabled()
    if device != "cpu" or dropout > 0.0:
        return False  # the CPU's kernel drops nothing
    known = all(type(extent) is int for extent in scores)
    if dtype in (torch.float32, torch.float64):
        return not trains and (not known or math.prod(scores) >= _FEW_SCORES)
    if not known or scores[-2] == 1:
        return False
    if onednn_computes(dtype):
        return not trains and scores[-2] * scores[-1] <= _MANY_PAIRS
    return True


def _has_strides_of(out: torch.Tensor, found: Attention) -> bool:
    """Whether the result lies as contiguous memory whose axes were put in order."""
    inner = [0] * out.dim()
    for place, axis in enumerate(found.order):
        inner[axis] = out.shape[place]
    strides: list[Any] = [1] * len(inner)
    for axis in range(len(inner) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * inner[axis + 1]
    return statically_same_size(tuple(strides[axis] for axis in found.order), out.stride())


def _may_be_empty(extent: Any) -> bool:
    if isinstance(extent, torch.SymInt):
        return not extent.node.has_hint()  # symbols with a value are two or more
    return bool(extent == 0)


def _nothing_happens_between(nodes: Sequence[torch.fx.Node], root: torch.fx.Node) -> bool:
    """Whether everything may be computed at the root: nothing writes, or changes a mode, from the first covered node on."""
    inside = set(nodes)
    node = root
    todo = len(inside)
    while True:
        if node in inside:
            todo -= 1
            if not todo:
                return True
        elif may_have_effect(node):
            return False
        node = node.prev


def _broadcasts(mask: torch.fx.Node, full: tuple[Any, ...]) -> bool:
    """Whether a mask has axes, each of one element or as long as that of the scores."""
    if not isinstance(mask, torch.fx.Node) or not meta.has_fake(mask):
        return False
    fake = meta.get_fake(mask)
    if (
        not isinstance(fake, torch.Tensor)
        or not 1 <= fake.dim() <= len(full)
        or not (fake.dtype is torch.bool or fake.dtype.is_floating_point)
    ):
        return False
    rest = full[len(full) - fake.dim() :]
    return all(
        (type(extent) is int and extent == 1) or statically_same_size((extent,), (whole,))
        for extent, whole in zip(fake.shape, rest, strict=True)
    )


def _without_repeats(k: Operand, v: Operand, found: Attention) -> tuple[Operand, Operand, int]:
    """Keys and values before they were repeated for the heads of each group, and how often they were; as they are, and 1, otherwise."""
    if meta.get_fake(found.root).device.type != "cpu" or len(k.order) != 4 or v.order != (0, 1, 2, 3):
        return k, v, 1
    keys, values = grouped_heads(k), grouped_heads(v)
    if keys is None or values is None or keys[1] != values[1]:
        return k, v, 1
    if not _nothing_happens_between((next(iter(keys[0].node.users)), next(iter(values[0].node.users))), found.root):
        return k, v, 1
    return keys[0], values[0], keys[1]


# --- what is made ---


def _in_four(make: Maker, operand: Operand, trains: bool, swapped: bool) -> torch.fx.Node:
    """The tensor as (batch, heads, positions, channels). swapped: it was a factor with its last two axes the other way round."""
    node = operand.node
    if operand.order != tuple(range(len(operand.order))):
        node = make(torch.permute, node, operand.order)
    if trains:
        node = make(lay_out_gradient, node, swapped)
    if len(operand.order) == 3:
        return make(torch.unsqueeze, node, 1)
    if len(operand.order) == 2:
        return make(torch.unsqueeze, make(torch.unsqueeze, node, 0), 0)
    return node


def _is_plain_matrix(operand: Operand) -> bool:
    """Whether it is a contiguous matrix. Derivatives of products of matrices lie as the matrices do, those of batches don't."""
    if len(operand.order) != 2:
        return False
    stride = meta.get_fake(operand.node).stride()
    return statically_same_size(tuple(stride[axis] for axis in operand.order), (operand.sizes()[1], 1))


def _nothing_or_nan(make: Maker, query: torch.fx.Node) -> torch.fx.Node:
    """For each row 0, or NaN where the query is not finite, as every score of the row then is.

    The CPU's kernel passes NaN over when it looks for a row's greatest score, and gives 0 where it finds none.
    """
    if meta.get_fake(query).requires_grad:
        query = make("detach", query)
    return make(torch.sum, make(torch.mul, query, 0.0), -1, keepdim=True)


def _mask(make: Maker, scores: Scores, rank: int, query: torch.Tensor) -> torch.fx.Node | None:
    """The mask that the fused operator adds. Rows that -inf forbids altogether are NaN in it, as softmax makes them."""
    mask: torch.fx.Node | None = None
    dtype = query.dtype
    wide = _mask_dtype(query)
    for added in scores.added:
        one = _mask_in_four(make, added, rank)
        mask = one if mask is None else make(torch.add, mask, one)
    may_forbid_rows = not all(lowest(added) > -math.inf for added in scores.added)
    for given, value, forbids in scores.filled:
        chosen = _mask_in_four(make, given, rank)
        fill = -math.inf if value == -math.inf else torch.finfo(wide).min
        if mask is None:
            rest = make(torch.full, (), 0.0, dtype=wide, device=query.device)
        else:
            rest = mask if meta.get_fake(mask).dtype is wide else make("to", mask, wide)
        mask = make(torch.where, chosen, fill, rest) if forbids else make(torch.where, chosen, rest, fill)
        may_forbid_rows |= value == -math.inf
    if mask is None:
        return None
    if meta.get_fake(mask).dtype not in (dtype, wide):
        mask = make("to", mask, wide)
    if may_forbid_rows:
        forbidden = make(torch.all, make(torch.eq, mask, -math.inf), -1, keepdim=True)
        mask = make(torch.where, forbidden, math.nan, mask)
    return mask


def _mask_dtype(query: torch.Tensor) -> torch.dtype:
    """What masks are made in. The CPU's kernel takes float32 beside half types; CUDA's read every mask in the type of the query."""
    return torch.promote_types(query.dtype, torch.float32) if query.device.type == "cpu" else query.dtype


def _may_fill_rows(scores: Scores) -> bool:
    """Whether masks may give all keys of a row the least number, beside which scores are lost."""
    return any(value > -math.inf for _, value, _ in scores.filled) or any(lowest(mask) <= FORBIDDING for mask in scores.added)


def _even_rows(make: Maker, query: torch.fx.Node, mask: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Query and mask where rows that the least number fills weigh all keys alike without it, and give no gradient.

    CUDA's kernels go beyond the range of numbers with it, and every backward kernel loses the sum of such a row.
    """
    even = make(torch.all, make(torch.le, mask, torch.finfo(meta.get_fake(mask).dtype).min), -1, keepdim=True)
    alike = make(torch.where, make(torch.eq, mask, -math.inf), mask, 0.0)
    return make(torch.mul, query, make(torch.logical_not, even)), make(torch.where, even, alike, mask)


def _mask_in_four(make: Maker, mask: torch.fx.Node, rank: int) -> torch.fx.Node:
    """A mask with four axes."""
    if meta.get_fake(mask).requires_grad:
        mask = make("detach", mask)
    missing = rank - rank_of(mask)
    for _ in range(missing):
        mask = make(torch.unsqueeze, mask, 0)
    if rank == 3:
        return make(torch.unsqueeze, mask, 1)
    if rank == 2:
        return make(torch.unsqueeze, make(torch.unsqueeze, mask, 0), 0)
    return mask
