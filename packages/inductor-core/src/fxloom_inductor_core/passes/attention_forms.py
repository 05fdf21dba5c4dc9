"""The forms of attention written by hand: softmax(q @ k.T * scale + mask) @ v.

In: a node of the torch dialect. Out: the ways in which it is the product of weights and values, as records (`Attention`). Invariant:
nothing is changed; what a record covers is used by nothing else. Not here: whether to fuse it (`attention`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.passes.patterns import Capture, Either, Match, Number, Op, Pattern, Through, find
from fxloom_inductor_core.passes.torch_calls import is_unused, read_torch
from fxloom_interfaces import meta
from fxloom_shapes.fake.sizes import statically_same_size

#: scores that are filled in below this weigh nothing beside any other; `finfo.min` of float16 is
FORBIDDING = -6e4


def is_number(value: Any) -> bool:
    """True for a number, known or only when the program runs; not for a tensor."""
    if isinstance(value, torch.fx.Node):
        return meta.has_fake(value) and isinstance(meta.get_fake(value), (torch.SymFloat, torch.SymInt))
    return type(value) in (int, float)


_X = Capture("x")

PRODUCT = Op("matmul", Capture("a"), Capture("b"))
EINSUM = Op("einsum", Capture("equation"), Capture("a"), Capture("b"))
#: of scores, by what it does to them; the scores are `x`
SCALED = Op("mul", _X, Capture("factor", is_number), commutative=True)
DIVIDED = Op("div", _X, Capture("divisor", is_number))
MASKED = Op("add", _X, Capture("mask"), commutative=True)
BIASED_PRODUCT = Op("baddbmm", Capture("bias"), Capture("a"), Capture("b"), Number("beta"), Number("alpha"))
FILLED = Either(Op("masked_fill", _X, Capture("forbidden"), Capture("value")), Op("where", Capture("forbidden"), Capture("value"), _X))
KEPT = Op("where", Capture("allowed"), _X, Capture("value"))
CAST = Op("cast", _X)
WEIGHTS = Through(
    "cast",
    Either(
        Op("dropout", Through("cast", Op("softmax", Capture("scores"), Capture("dim"))), Number("p")),
        Op("softmax", Capture("scores"), Capture("dim")),
    ),
)
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
    """What goes into the softmax: q @ k.T * scale, plus `added` masks, with `filled` places (mask, value, mask forbids) put in last.

    symbolic: what else scales it, by numbers that are known when the program runs: (operator, number).
    """

    match: Match
    q: Operand
    k: Operand
    scale: float
    symbolic: tuple[tuple[Callable[..., Any], torch.fx.Node], ...] = ()
    added: tuple[torch.fx.Node, ...] = ()
    filled: tuple[tuple[torch.fx.Node, float, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention. order: of the result's axes, among (batch..., query, channel). nodes: all that goes."""

    root: torch.fx.Node
    scores: Scores
    v: Operand
    order: tuple[int, ...]
    dropout: float
    nodes: tuple[torch.fx.Node, ...]


def attentions(root: torch.fx.Node) -> Iterator[Attention]:
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
                if scores.match.is_closed(is_unused):
                    yield attention


def _products(node: torch.fx.Node, found: Match) -> Iterator[tuple[Operand, Operand | None, tuple[int, ...] | None, Match]]:
    """`node` as batches of matrix products: both factors as (batch..., rows, inner), (batch..., inner, columns); and the result's order."""
    for match in PRODUCT.matches(node, replace(found, captures={})):
        a, b = match["a"], match["b"]
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            rank = rank_of(a)
            if rank == rank_of(b) and rank >= 2:
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
            yield Scores(match, _plain(a), Operand(b, (0, 2, 1)), float(match["alpha"]), added=added)
    for step in (SCALED, DIVIDED, MASKED, FILLED, KEPT, CAST):
        for match in step.matches(value, replace(found, captures={})):
            for inner in _scores(match["x"], match, depth + 1):
                changed = _after(step, match, inner)
                if changed is not None and statically_same_size(shape_of(match["x"]), shape_of(value)):
                    yield changed


def _after(step: Pattern, match: Match, scores: Scores) -> Scores | None:
    """The scores when one step more is done to them; None for an order of steps that no mask can say."""
    if step is CAST:
        return scores if _is_wide(match.nodes[-1], scores) else None
    if step in (SCALED, DIVIDED):
        if scores.added or scores.filled:
            return None
        operation, number = (operator.mul, match["factor"]) if step is SCALED else (operator.truediv, match["divisor"])
        if isinstance(number, torch.fx.Node):
            return replace(scores, symbolic=(*scores.symbolic, (operation, number)))
        return replace(scores, scale=operation(scores.scale, number)) if number or step is SCALED else None
    if step is MASKED:
        mask = match["mask"]
        return replace(scores, added=(*scores.added, mask)) if isinstance(mask, torch.fx.Node) and not scores.filled else None
    value = _number(match["value"], match)
    mask = match.get("forbidden", match.get("allowed"))
    if value is None or not value <= FORBIDDING or not isinstance(mask, torch.fx.Node) or meta.get_fake(mask).dtype is not torch.bool:
        return None
    return replace(scores, filled=(*scores.filled, (mask, value, step is FILLED)))


def _is_wide(cast: torch.fx.Node, scores: Scores) -> bool:
    """Whether a cast of scores loses nothing: not to fewer bits than they had."""
    dtype = meta.get_fake(cast).dtype
    given = meta.get_fake(scores.q.node).dtype
    return bool(dtype.is_floating_point and torch.promote_types(dtype, given) is dtype)


def _plain(node: torch.fx.Node) -> Operand:
    return Operand(node, tuple(range(rank_of(node))))


def rank_of(node: torch.fx.Node) -> int:
    fake = meta.get_fake(node) if meta.has_fake(node) else None
    return fake.dim() if isinstance(fake, torch.Tensor) else -1


def shape_of(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(meta.get_fake(node).shape)


def _number(value: Any, match: Match) -> float | None:
    """A number, or what a tensor without axes is filled with."""
    if isinstance(value, torch.fx.Node):
        for found in find(Through(("cast", "view"), Op("full", Capture("value"))), value, match.reader):
            value = found["value"]
            break
    return float(value) if type(value) in (int, float) else None


def grouped_heads(operand: Operand) -> tuple[Operand, int] | None:
    """What was repeated along the heads, each head's repetitions next to each other, and how often."""
    swapped = _swapped(operand.node) if operand.order == (0, 1, 3, 2) else operand.node
    if swapped is None:
        return None
    for match in find(REPEATED, swapped, read_torch):
        merged, expanded, split = match.nodes
        heads = match["heads"]
        base, wide, shape = shape_of(heads), shape_of(expanded), shape_of(merged)
        if len(base) != 4 or len(wide) != 5 or len(shape) != 4 or type(wide[2]) is not int:
            continue
        if expanded.target not in ("expand", torch.broadcast_to) or merged.target not in (
            "reshape",
            "view",
            "flatten",
            torch.reshape,
            torch.flatten,
        ):
            continue
        if not _inserts_axis(split, 2) or type(base[1]) is not int:
            continue
        repeated = (base[0], base[1] * wide[2], base[2], base[3])
        if (
            statically_same_size(wide, (*base[:2], wide[2], *base[2:]))
            and statically_same_size(shape, repeated)
            and meta.get_fake(heads).stride(-1) == 1
        ):
            return Operand(heads, (0, 1, 2, 3)), wide[2]
    if swapped.target in (torch.repeat_interleave, "repeat_interleave"):
        args = swapped.args
        heads = args[0]
        times = args[1] if len(args) > 1 else swapped.kwargs.get("repeats")
        dim = args[2] if len(args) > 2 else swapped.kwargs.get("dim")
        if (
            type(times) is int
            and dim in (1, -3)
            and isinstance(heads, torch.fx.Node)
            and rank_of(heads) == 4
            and meta.get_fake(heads).stride(-1) == 1
        ):
            return Operand(heads, (0, 1, 2, 3)), times
    return None


def _swapped(node: torch.fx.Node) -> torch.fx.Node | None:
    """What `node` is with its last two axes exchanged."""
    args = node.args
    if node.target in ("transpose", torch.transpose, "swapaxes", torch.swapaxes, "swapdims") and len(args) == 3:
        axes = [axis % 4 for axis in args[1:] if isinstance(axis, int)]
        return args[0] if sorted(axes) == [2, 3] and isinstance(args[0], torch.fx.Node) else None
    if node.target in ("permute", torch.permute) and isinstance(args[0], torch.fx.Node):
        order: Any = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        return args[0] if [axis % 4 for axis in order] == [0, 1, 3, 2] else None
    return None


def _inserts_axis(node: torch.fx.Node, place: int) -> bool:
    """Whether a call does nothing but insert an axis of one element at `place`."""
    if node.target in ("unsqueeze", torch.unsqueeze):
        return bool(node.args[1:] == (place,) or node.kwargs.get("dim") == place)
    index = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], tuple) else ()
    whole = slice(None, None, None)
    return len(index) > place and index[place] is None and all(item == whole for at, item in enumerate(index) if at != place)
