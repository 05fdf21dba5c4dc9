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
| float32, 16 to 64 positions | 1.0 to 1.5 | 0.89 to 1.04 |
| float32, 128 to 2048 positions | 1.03 to 1.75 | 0.85 to 1.02 |
| bfloat16, the processor multiplies it, up to 64 positions | 1.1 to 4.5 | 0.4 to 1.6 |
| bfloat16, the processor multiplies it, from 128 positions on | 0.66 to 1.04 | 0.3 to 0.8 |
| bfloat16, it does not | 1.4 to 28 | 1.06 to 3.1 |
| bfloat16, it does not, one query (decoding) | 0.46 to 0.49 | |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.bounds import lowest
from fxloom_inductor_core.passes.patterns import Capture, Either, Match, Number, Op, Pattern, Through, find
from fxloom_inductor_core.passes.rewriting import Maker
from fxloom_inductor_core.passes.torch_calls import may_have_effect, read_torch
from fxloom_interfaces import meta
from fxloom_shapes.fake.cpu_features import onednn_computes
from fxloom_shapes.fake.sizes import statically_same_size

#: scores that are filled in below this weigh nothing beside any other; `finfo.min` of float16 is
_FORBIDDING = -6e4
#: more query times key positions than this in half types: products by the processor's own instructions are faster
_FEW_SCORES = 64 * 64

_X = Capture("x")

PRODUCT = Op("matmul", Capture("a"), Capture("b"))
EINSUM = Op("einsum", Capture("equation"), Capture("a"), Capture("b"))
#: of scores, by what it does to them; the scores are `x`
SCALED = Op(("mul", "mul_"), _X, Number("factor"), commutative=True)
DIVIDED = Op(("div", "div_"), _X, Number("divisor"))
MASKED = Op(("add", "add_"), _X, Capture("mask"), commutative=True)
BIASED_PRODUCT = Op("baddbmm", Capture("bias"), Capture("a"), Capture("b"), Number("beta"), Number("alpha"))
FILLED = Either(Op(("masked_fill", "masked_fill_"), _X, Capture("forbidden"), Capture("value")), Op("where", Capture("forbidden"), Capture("value"), _X))
KEPT = Op("where", Capture("allowed"), _X, Capture("value"))
CAST = Op("cast", _X)
WEIGHTS = Through("cast", Either(Op("dropout", Through("cast", Op("softmax", Capture("scores"), Capture("dim"))), Number("p")), Op("softmax", Capture("scores"), Capture("dim"))))
REPEATED = Op("view", Op("view", Op("view", Capture("heads"))))


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor with its axes in another order: axis i is axis order[i] of the node."""

    node: torch.fx.Node
    order: tuple[int, ...]

    def sizes(self) -> tuple[Any, ...]:
        shape = meta.get_fake(self.node).shape
        return tuple(shape[axis] for axis in self.order)

    def last_stride(self) -> Any:
        return meta.get_fake(self.node).stride(self.order[-1])


@dataclass(frozen=True, slots=True)
class Scores:
    """What goes into the softmax: q @ k.T * scale, plus `added` masks, with `filled` places (mask, value, mask forbids) put in last."""

    match: Match
    q: Operand
    k: Operand
    scale: float
    added: tuple[torch.fx.Node, ...] = ()
    filled: tuple[tuple[torch.fx.Node, float, bool], ...] = ()


def fuse_attention(graph: torch.fx.Graph, options: InductorOptions, made_for: dict[torch.fx.Node, torch.fx.Node]) -> int:
    """Edits `graph`; how many became fused. made_for: gets, for each new node, the one that it stands for."""
    if options.numerics == "exact":
        return 0
    fused = 0
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_method"):
            fused += any(_fuse(found, made_for) for found in _attentions(node))
    return fused


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention. order: of the result's axes, among (batch..., query, channel). nodes: all that goes."""

    root: torch.fx.Node
    scores: Scores
    v: Operand
    order: tuple[int, ...]
    dropout: float
    nodes: tuple[torch.fx.Node, ...]


def _attentions(root: torch.fx.Node) -> Iterator[Attention]:
    """The ways in which `root` is the product of weights and values."""
    for weights, v, order, outer in _products(root, Match(read_torch)):
        if order is None or v is None:
            continue
        if weights.order != tuple(range(len(weights.order))):
            continue
        for found in WEIGHTS.matches(weights.node, outer):
            if found["dim"] != len(weights.order) - 1:
                continue
            for scores in _scores(found["scores"], replace(found, captures={})):
                attention = Attention(root, scores, v, order, float(found.get("p", 0.0)), scores.match.nodes)
                if scores.match.is_closed():
                    yield attention


def _products(node: torch.fx.Node, found: Match) -> Iterator[tuple[Operand, Operand | None, tuple[int, ...] | None, Match]]:
    """`node` as batches of matrix products: both factors as (batch..., rows, inner), (batch..., inner, columns); and the result's order."""
    for match in PRODUCT.matches(node, replace(found, captures={})):
        a, b = match["a"], match["b"]
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            rank = _rank(a)
            if rank == _rank(b) and rank >= 2:
                yield _plain(a), _plain(b), tuple(range(rank)), match
    for match in EINSUM.matches(node, replace(found, captures={})):
        orders = _einsum_orders(match["equation"])
        if orders is not None:
            yield Operand(match["a"], orders[0]), Operand(match["b"], orders[1]), orders[2], match


def _einsum_orders(equation: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """An equation of two factors as a batched product of the first with the second: the order of axes of both, and of the result."""
    if "." in equation or "->" not in equation or equation.count(",") != 1:
        return None
    given, out = equation.split("->")
    a, b = given.split(",")
    if any(len(set(letters)) != len(letters) for letters in (a, b, out)):
        return None
    batch = [letter for letter in out if letter in a and letter in b]
    rows, columns = [x for x in out if x in a and x not in b], [x for x in out if x in b and x not in a]
    inner = [letter for letter in a if letter in b and letter not in out]
    if len(rows) != 1 or len(columns) != 1 or len(inner) != 1 or len(a) != len(batch) + 2 or len(b) != len(a) or len(out) != len(a):
        return None
    result = [*batch, *rows, *columns]
    return (
        tuple(a.index(letter) for letter in [*batch, *rows, *inner]),
        tuple(b.index(letter) for letter in [*batch, *inner, *columns]),
        tuple(result.index(letter) for letter in out),
    )


def _scores(value: Any, found: Match, depth: int = 0) -> Iterator[Scores]:
    """The ways in which `value` is scores."""
    if not isinstance(value, torch.fx.Node) or depth > 8:
        return
    for a, b, order, match in _products(value, found):
        if order == tuple(range(len(order or ()))) and b is not None:
            yield Scores(match, a, Operand(b.node, (*b.order[:-2], b.order[-1], b.order[-2])), 1.0)
    for match in BIASED_PRODUCT.matches(value, replace(found, captures={})):
        a, b, beta = match["a"], match["b"], match["beta"]
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node) and beta in (0, 1):
            added = (match["bias"],) if beta == 1 else ()
            yield Scores(match, _plain(a), Operand(b, (0, 2, 1)), float(match["alpha"]), added)
    for step in (SCALED, DIVIDED, MASKED, FILLED, KEPT, CAST):
        for match in step.matches(value, replace(found, captures={})):
            for inner in _scores(match["x"], match, depth + 1):
                changed = _after(step, match, inner)
                if changed is not None and statically_same_size(_shape(match["x"]), _shape(value)):
                    yield changed


def _after(step: Pattern, match: Match, scores: Scores) -> Scores | None:
    """The scores when one step more is done to them; None for an order of steps that no mask can say."""
    if step is CAST:
        return scores if _is_wide(match.nodes[-1], scores) else None
    if step in (SCALED, DIVIDED):
        if scores.added or scores.filled:
            return None
        factor = match.get("factor")
        scale = float(factor) if factor is not None else _reciprocal(match["divisor"])
        return None if scale is None else replace(scores, scale=scores.scale * scale)
    if step is MASKED:
        mask = match["mask"]
        return replace(scores, added=(*scores.added, mask)) if isinstance(mask, torch.fx.Node) and not scores.filled else None
    value = _number(match["value"], match)
    mask = match.get("forbidden", match.get("allowed"))
    if value is None or not value <= _FORBIDDING or not isinstance(mask, torch.fx.Node) or meta.get_fake(mask).dtype is not torch.bool:
        return None
    return replace(scores, filled=(*scores.filled, (mask, value, step is FILLED)))


def _is_wide(cast: torch.fx.Node, scores: Scores) -> bool:
    """Whether a cast of scores loses nothing: not to fewer bits than they had."""
    dtype = meta.get_fake(cast).dtype
    given = meta.get_fake(scores.q.node).dtype
    return bool(dtype.is_floating_point and torch.promote_types(dtype, given) is dtype)


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
    query, key, value = (_in_four(make, operand) for operand in (q, k, v))
    mask, dead = _mask(make, scores, rank, meta.get_fake(q.node).dtype)
    options: dict[str, Any] = {"attn_mask": mask, "dropout_p": found.dropout, "is_causal": False, "scale": scores.scale}
    if groups > 1:
        options["enable_gqa"] = True
    out = make(F.scaled_dot_product_attention, query, key, value, **options)
    out = make(torch.clone, out, memory_format=torch.contiguous_format)
    if dead is not None:  # times 1 is exact; times NaN is what eager's softmax of nothing gives, in derivatives too
        factor = make(torch.where, dead, math.nan, 1.0)
        out = make(torch.mul, out, make("to", factor, meta.get_fake(out).dtype))
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
            if not user.users:
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
    if not statically_same_size((sizes[0][-1], sizes[1][-2]), (sizes[1][-1], sizes[2][-2])) or not statically_same_size((sizes[0][-1],), (sizes[2][-1],)):
        return False
    if any(_may_be_empty(extent) for size in sizes for extent in size):
        return False
    if any(operand.last_stride() != 1 for operand in (q, k, v)):
        return False
    if not _has_strides_of(out, found):
        return False
    trains = out.requires_grad
    masks = [*found.scores.added, *[mask for mask, _, _ in found.scores.filled]]
    if trains and any(meta.get_fake(mask).requires_grad for mask in masks):
        return False  # the fused kernels give no derivative of a mask
    return is_faster(fakes[0].device.type, dtype, sizes[0][-2], sizes[1][-2], trains, found.dropout)


def is_faster(device: str, dtype: torch.dtype, queries: Any, keys: Any, trains: bool, dropout: float) -> bool:
    """Whether fused attention beats the separate kernels; measured, see the module's docstring."""
    if device == "cuda":
        return dtype is not torch.float64
    if device != "cpu" or dropout > 0.0:
        return False  # the CPU's kernel drops nothing
    if dtype in (torch.float32, torch.float64):
        return not trains
    if type(queries) is not int or type(keys) is not int or queries == 1:
        return False
    if onednn_computes(dtype):
        return not trains and queries * keys <= _FEW_SCORES
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
    if not isinstance(fake, torch.Tensor) or not 1 <= fake.dim() <= len(full) or not (fake.dtype is torch.bool or fake.dtype.is_floating_point):
        return False
    rest = full[len(full) - fake.dim() :]
    return all((type(extent) is int and extent == 1) or statically_same_size((extent,), (whole,)) for extent, whole in zip(fake.shape, rest, strict=True))


def _without_repeats(k: Operand, v: Operand, found: Attention) -> tuple[Operand, Operand, int]:
    """Keys and values before they were repeated for the heads of each group, and how often they were; as they are, and 1, otherwise."""
    if meta.get_fake(found.root).device.type != "cpu" or len(k.order) != 4 or v.order != (0, 1, 2, 3):
        return k, v, 1
    keys, values = _heads(k), _heads(v)
    if keys is None or values is None or keys[1] != values[1]:
        return k, v, 1
    if not _nothing_happens_between((next(iter(keys[0].node.users)), next(iter(values[0].node.users))), found.root):
        return k, v, 1
    return keys[0], values[0], keys[1]


def _heads(operand: Operand) -> tuple[Operand, int] | None:
    """What was repeated along the heads, each head's repetitions next to each other, and how often."""
    swapped = _swapped(operand.node) if operand.order == (0, 1, 3, 2) else operand.node
    if swapped is None:
        return None
    for match in find(REPEATED, swapped, read_torch):
        merged, expanded, split = match.nodes
        heads = match["heads"]
        base, wide, shape = _shape(heads), _shape(expanded), _shape(merged)
        if len(base) != 4 or len(wide) != 5 or len(shape) != 4 or type(wide[2]) is not int:
            continue
        if expanded.target not in ("expand", torch.broadcast_to) or merged.target not in ("reshape", "view", "flatten", torch.reshape, torch.flatten):
            continue
        if not _inserts_axis(split, 2) or type(base[1]) is not int:
            continue
        repeated = (base[0], base[1] * wide[2], base[2], base[3])
        if statically_same_size(wide, (*base[:2], wide[2], *base[2:])) and statically_same_size(shape, repeated) and meta.get_fake(heads).stride(-1) == 1:
            return Operand(heads, (0, 1, 2, 3)), wide[2]
    if swapped.target in (torch.repeat_interleave, "repeat_interleave"):
        args = swapped.args
        heads = args[0]
        times = args[1] if len(args) > 1 else swapped.kwargs.get("repeats")
        dim = args[2] if len(args) > 2 else swapped.kwargs.get("dim")
        if type(times) is int and dim in (1, -3) and isinstance(heads, torch.fx.Node) and _rank(heads) == 4 and meta.get_fake(heads).stride(-1) == 1:
            return Operand(heads, (0, 1, 2, 3)), times
    return None


def _swapped(node: torch.fx.Node) -> torch.fx.Node | None:
    """What `node` is with its last two axes exchanged."""
    args = node.args
    if node.target in ("transpose", torch.transpose, "swapaxes", torch.swapaxes, "swapdims") and len(args) == 3:
        axes = [axis % 4 for axis in args[1:] if type(axis) is int]
        return args[0] if sorted(axes) == [2, 3] and isinstance(args[0], torch.fx.Node) else None
    if node.target in ("permute", torch.permute) and isinstance(args[0], torch.fx.Node):
        order = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        return args[0] if [axis % 4 for axis in order] == [0, 1, 3, 2] else None
    return None


def _inserts_axis(node: torch.fx.Node, place: int) -> bool:
    """Whether a call does nothing but insert an axis of one element at `place`."""
    if node.target in ("unsqueeze", torch.unsqueeze):
        return node.args[1:] == (place,) or node.kwargs.get("dim") == place
    index = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], tuple) else ()
    whole = slice(None, None, None)
    return len(index) > place and index[place] is None and all(item == whole for at, item in enumerate(index) if at != place)


# --- what is made ---


def _in_four(make: Maker, operand: Operand) -> torch.fx.Node:
    """The tensor as (batch, heads, positions, channels)."""
    node = operand.node
    if operand.order != tuple(range(len(operand.order))):
        node = make(torch.permute, node, operand.order)
    if len(operand.order) == 3:
        return make(torch.unsqueeze, node, 1)
    if len(operand.order) == 2:
        return make(torch.unsqueeze, make(torch.unsqueeze, node, 0), 0)
    return node


def _mask(make: Maker, scores: Scores, rank: int, dtype: torch.dtype) -> tuple[torch.fx.Node | None, torch.fx.Node | None]:
    """The mask, and which rows it may forbid altogether: True where softmax gives NaN; None where that can't be."""
    mask: torch.fx.Node | None = None
    dead: torch.fx.Node | None = None
    wide = torch.promote_types(dtype, torch.float32)
    for added in scores.added:
        one = _mask_in_four(make, added, rank)
        mask = one if mask is None else make(torch.add, mask, one)
    if mask is not None and not all(lowest(added) > -math.inf for added in scores.added):
        dead = make(torch.all, make(torch.eq, mask, -math.inf), -1, keepdim=True)
    for given, value, forbids in scores.filled:
        chosen = _mask_in_four(make, given, rank)
        if mask is None and value == -math.inf and len(scores.filled) == 1:
            mask = make(torch.logical_not, chosen) if forbids else chosen
            dead = make(torch.logical_not, make(torch.any, mask, -1, keepdim=True))
            return mask, dead
        fill = -math.inf if value == -math.inf else torch.finfo(wide).min
        rest: Any = 0.0 if mask is None else mask
        mask = make(torch.where, chosen, fill, rest) if forbids else make(torch.where, chosen, rest, fill)
        if value == -math.inf or dead is not None:
            dead = make(torch.all, make(torch.eq, mask, -math.inf), -1, keepdim=True)
    if mask is not None and meta.get_fake(mask).dtype not in (dtype, torch.float32):
        mask = make("to", mask, wide)
    elif mask is not None and dtype is torch.float64 and meta.get_fake(mask).dtype is not dtype:
        mask = make("to", mask, dtype)
    return mask, dead


def _mask_in_four(make: Maker, mask: torch.fx.Node, rank: int) -> torch.fx.Node:
    """A mask with four axes."""
    if meta.get_fake(mask).requires_grad:
        mask = make("detach", mask)
    missing = rank - _rank(mask)
    for _ in range(missing):
        mask = make(torch.unsqueeze, mask, 0)
    if rank == 3:
        return make(torch.unsqueeze, mask, 1)
    if rank == 2:
        return make(torch.unsqueeze, make(torch.unsqueeze, mask, 0), 0)
    return mask


# --- reading ---


def _plain(node: torch.fx.Node) -> Operand:
    return Operand(node, tuple(range(_rank(node))))


def _rank(node: torch.fx.Node) -> int:
    fake = meta.get_fake(node) if meta.has_fake(node) else None
    return fake.dim() if isinstance(fake, torch.Tensor) else -1


def _shape(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(meta.get_fake(node).shape)


def _reciprocal(divisor: float) -> float | None:
    return 1.0 / divisor if divisor else None


def _number(value: Any, match: Match) -> float | None:
    """A number, or what a tensor without axes is filled with."""
    if isinstance(value, torch.fx.Node):
        for found in find(Through(("cast", "view"), Op("full", Capture("value"))), value, match.reader):
            value = found["value"]
            break
    return float(value) if type(value) in (int, float) else None
