"""Calls that give what they are given: arithmetic with neutral numbers, views that change nothing, casts there and back.

In: a graph in the aten dialect. Out: the same graph, edited, and how many calls were replaced. Invariant: every bit of every element is
kept (but for what a NaN carries), and dtype, strides and what is memory of its own too: x + 0 stays, for it turns -0.0 into 0.0, and so
does a cast to fewer bits and back, unless `numerics="fast"` asks for less rounding. Each rule goes to something no worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.patterns import Anything, Capture, Either, Match, Number, Op, Pattern, find, read_aten
from fxloom_inductor_core.passes.rewriting import Maker, may_stand_for
from fxloom_interfaces import meta

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rule:
    """What has the form of `pattern` becomes what `replacement` says: a node that is there or is made; None declines."""

    name: str
    pattern: Pattern
    replacement: Callable[[Match, Maker, InductorOptions], torch.fx.Node | None]


def simplify(graph: torch.fx.Graph, options: InductorOptions) -> int:
    """Edits `graph`; how many calls were replaced. Nothing is left to simplify."""
    total = 0
    while changes := _simplify_once(graph, options):
        total += changes
    return total


def _simplify_once(graph: torch.fx.Graph, options: InductorOptions) -> int:
    changes = 0
    for node in list(graph.nodes):
        for rule in RULES.get(node.target, ()) if node.users else ():
            value = _apply(rule, node, options)
            if value is not None:
                node.replace_all_uses_with(value)
                changes += 1
                break
    return changes


def _apply(rule: Rule, node: torch.fx.Node, options: InductorOptions) -> torch.fx.Node | None:
    for match in find(rule.pattern, node, read_aten):
        value = rule.replacement(match, Maker(node), options)
        if value is not None and may_stand_for(value, node):
            return value
    return None


# --- neutral numbers ---

X = Capture("x", lambda value: isinstance(value, torch.fx.Node))


def _x(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """x itself; but infinite complex numbers times 1 are NaN."""
    return None if meta.get_fake(match["x"]).dtype.is_complex else match["x"]


def _is_one(value: float) -> bool:
    return value == 1


def _is_minus_zero(value: float) -> bool:
    return value == 0 and math.copysign(1.0, value) < 0


def _added_nothing(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """x + 0 -> x for whole numbers; x + -0.0 -> x for all"""
    return match["x"] if _is_whole(match["x"]) or _is_minus_zero(float(match["zero"]) * float(match["alpha"])) else None


def _subtracted_nothing(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """x - 0 -> x, for -0.0 - 0.0 is -0.0; but not x - -0.0"""
    zero = float(match["zero"]) * float(match["alpha"])
    return match["x"] if _is_whole(match["x"]) or (zero == 0 and not _is_minus_zero(zero)) else None


def _is_whole(node: torch.fx.Node) -> bool:
    dtype = meta.get_fake(node).dtype
    return not dtype.is_floating_point and not dtype.is_complex


# --- views ---


def _same_places(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """A view with the sizes of what it is a view of, in the same order: that."""
    return match["x"]


def _expanded_twice(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """expand(expand(x, a), b) -> expand(x, b)"""
    return make(aten.expand.default, match["x"], match["size"])


def _order(node: torch.fx.Node) -> list[int]:
    """The order in which a call puts the axes of its argument."""
    rank = meta.get_fake(node).dim()
    axes: list[Any] = list(range(rank))
    if node.target is aten.permute.default:
        return [axis % rank for axis in node.args[1]]  # type: ignore[union-attr, operator, misc]  # a list of ints
    first, second = (0, 1) if node.target is aten.t.default else node.args[1:3]
    if rank > 1:
        axes[first], axes[second] = axes[second], axes[first]  # type: ignore[index]  # ints
    return axes


def _ordered_twice(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """permute(permute(x, a), b) -> permute(x, a[b]), or x"""
    outer, inner = match.nodes
    first = _order(inner)
    order = [first[axis] for axis in _order(outer)]
    return match["x"] if order == sorted(order) else make(aten.permute.default, match["x"], order)


# --- casts ---

#: by dtype: bits of a significand, and the exponents that it reaches; of whole numbers, bits
_FLOATS = {torch.float16: (11, 5), torch.bfloat16: (8, 8), torch.float32: (24, 8), torch.float64: (53, 11)}
_WHOLE = {torch.int8: (7, True), torch.int16: (15, True), torch.int32: (31, True), torch.int64: (63, True), torch.uint8: (8, False)}


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of type `narrow` is one of type `wide`."""
    if narrow is wide:
        return True
    if narrow is torch.bool:
        return wide in _FLOATS or wide in _WHOLE
    if narrow in _FLOATS and wide in _FLOATS:
        return all(a >= b for a, b in zip(_FLOATS[wide], _FLOATS[narrow], strict=True))
    if narrow in _WHOLE and wide in _WHOLE:
        (bits, signed), (room, wide_signed) = _WHOLE[narrow], _WHOLE[wide]
        return room >= bits and (wide_signed or not signed)
    if narrow in _WHOLE and wide in _FLOATS:
        return _FLOATS[wide][0] >= _WHOLE[narrow][0] and wide is not torch.float16
    return False


def _cast_twice(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """to(to(x, a), b) -> to(x, b) where a holds all of x's type; and x itself where b is that type"""
    x, between, last = match["x"], match["a"], match["b"]
    given = meta.get_fake(x).dtype
    if between is None or last is None:
        return None
    exact = holds(between, given)
    fast = options.numerics == "fast" and given in _FLOATS and between in _FLOATS and last is given
    if not (exact or fast):
        return None
    return x if last is given else make(aten._to_copy.default, x, dtype=last)


def _cast(x: Pattern, name: str) -> Op:
    """_to_copy to another dtype and nothing else."""
    return Op(aten._to_copy.default, x, Capture(name))


# --- copies ---

#: views that pick and order elements, whatever the strides of what they see
_ANY_STRIDES = frozenset(
    {
        aten.permute.default, aten.expand.default, aten.unsqueeze.default, aten.transpose.int, aten.t.default, aten.squeeze.dim,
        aten.squeeze.dims, aten.select.int, aten.slice.Tensor,
    }
)  # fmt: skip


def _copied_twice(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """clone(views(clone(x))) -> clone(views(x)), or views(x) where that lies so already: the order of memory comes from the last copy"""
    steps: list[torch.fx.Node] = []
    value: Any = match["x"]
    while isinstance(value, torch.fx.Node) and value.target in _ANY_STRIDES and len(value.users) == 1:
        steps.append(value)
        value = value.args[0]
    if not isinstance(value, torch.fx.Node) or value.target is not aten.clone.default:
        return None
    value = value.args[0]
    for step in reversed(steps):
        value = make(step.target, value, *step.args[1:], **step.kwargs)
    if may_stand_for(value, match.nodes[0]):
        return value  # type: ignore[no-any-return]
    return make(aten.clone.default, value, memory_format=match["memory_format"])


def _chosen_from_one(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """where(c, x, x) -> x"""
    return match["x"]


def _joined_one(match: Match, make: Maker, options: InductorOptions) -> torch.fx.Node | None:
    """cat([x]) -> x"""
    parts = match["parts"]
    return parts[0] if isinstance(parts, (list, tuple)) and len(parts) == 1 else None




def _ordered(x: Pattern) -> Either:
    return Either(
        Op(aten.permute.default, x, Anything()), Op(aten.transpose.int, x, Anything(), Anything()), Op(aten.t.default, x)
    )  # fmt: skip


_NUMBER_ZERO = Number("zero", lambda value: value == 0)
_ONE = Number("", _is_one)
_PLAIN_FORMAT = Capture("memory_format", lambda value: value is torch.contiguous_format)
_SQUEEZES = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)

_ALL = [
    Rule("mul_one", Op((aten.mul.Tensor, aten.mul.Scalar), X, _ONE), _x),
    Rule("div_one", Op((aten.div.Tensor, aten.div.Scalar), X, _ONE), _x),
    Rule("pow_one", Op(aten.pow.Tensor_Scalar, X, _ONE), _x),
    Rule("add_zero", Op((aten.add.Tensor, aten.add.Scalar), X, _NUMBER_ZERO, Number("alpha")), _added_nothing),
    Rule("sub_zero", Op((aten.sub.Tensor, aten.sub.Scalar), X, _NUMBER_ZERO, Number("alpha")), _subtracted_nothing),
    Rule("negated_twice", Op(aten.neg.default, Op(aten.neg.default, X)), _x),
    Rule("inverted_twice", Op(aten.logical_not.default, Op(aten.logical_not.default, X)), _x),
    Rule("inverted_bits_twice", Op(aten.bitwise_not.default, Op(aten.bitwise_not.default, X)), _x),
    Rule("chosen_from_one", Op(aten.where.self, Anything(), X, X), _chosen_from_one),
    Rule("joined_one", Op(aten.cat.default, Capture("parts"), Anything()), _joined_one),
    Rule("expanded_twice", Op(aten.expand.default, Op(aten.expand.default, X, Anything()), Capture("size")), _expanded_twice),
    Rule("whole_slice", Op(aten.slice.Tensor, X, Anything(), Anything(), Anything(), 1), _same_places),
    Rule("same_view", Either(*[Op(op, X, Anything()) for op in (aten.view.default, aten.expand.default)]), _same_places),
    Rule("nothing_squeezed", Either(Op(_SQUEEZES[0], X), *[Op(op, X, Anything()) for op in _SQUEEZES[1:]]), _same_places),
    Rule("ordered_twice", _ordered(_ordered(X)), _ordered_twice),
    Rule("cast_twice", _cast(_cast(X, "a"), "b"), _cast_twice),
    Rule("copied_twice", Op(aten.clone.default, X, _PLAIN_FORMAT), _copied_twice),
]


def _by_target() -> dict[Any, tuple[Rule, ...]]:
    found: dict[Any, tuple[Rule, ...]] = {}
    for rule in _ALL:
        alternatives = rule.pattern.alternatives if isinstance(rule.pattern, Either) else (rule.pattern,)
        for alternative in alternatives:
            assert isinstance(alternative, Op)
            for target in alternative.targets:
                found[target] = (*found.get(target, ()), rule)
    return found


#: by operator of the root, in the order in which they are tried
RULES = _by_target()
