"""The partitioner that keeps the fewest bytes: a minimum cut between the forward inputs and the backward pass (paper 3.9).

In: a `Joint`. Out: a `Partition`. Every forward value is an edge whose capacity is what keeping it costs; every call that may
be computed again passes flow from its inputs to its results. What the backward pass needs is the sink; the placeholders, and
the results of calls that must not be computed again, are the source. A cut is then a set of values from which all that
backward needs can be made, and the minimum one keeps the fewest bytes. Computing again has a price too: an edge from the
source to the call, which is cut when the call is on the backward side.

What may be computed again is a closed list of kinds that kernels fuse or that cost one pass over memory; GEMMs,
convolutions, attention, reductions, scans, sorts and all that nobody listed run once. Random calls always do: the mask of the
forward pass is the mask of the backward pass; numbers that are functions of a seed are computed again from the seed. Nothing
here depends on the order of sets or on addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

import torch

from fxloom_aot.functional.functional_log import Call, FunctionalLog, has_effect, inputs_of
from fxloom_aot.nests import values_of
from fxloom_aot.partitioning.partition import (
    Joint,
    Partition,
    assemble,
    backward_only,
    is_constant,
    is_view,
    made_for_checkpoints,
    needed_by,
)
from fxloom_interfaces.errors import ConfigError
from fxloom_ops.choices import CHOOSE_CLASS
from fxloom_ops.philox import DRAWS
from fxloom_ops.schema import Op
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import estimate

aten = torch.ops.aten

#: Not pointwise, but one pass over memory, and kernels read through them.
_PASSES: frozenset[Op] = frozenset(
    {
        aten.clone.default, aten._to_copy.default, aten.cat.default, aten.constant_pad_nd.default, aten.where.self,
        aten.embedding.default, aten.index.Tensor, aten.gather.default, aten.index_select.default, aten.flip.default,
        aten.roll.default, aten.repeat.default, aten.tril.default, aten.triu.default, aten.select_scatter.default,
        aten.slice_scatter.default, aten.diagonal_scatter.default, aten.as_strided_scatter.default, aten.stack.default,
        CHOOSE_CLASS, *DRAWS,
    }
)  # fmt: skip

#: Pointwise calls whose arithmetic outweighs the memory that they read, by name of the operator.
_COSTLY = frozenset(
    {
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "pow", "gelu", "silu",
        "softplus", "mish", "elu", "logaddexp", "xlogy", "hypot",
    }
)  # fmt: skip

# Keeping a value costs its bytes. Computing it again costs a part of them, so that nothing is computed again without a gain, and
# what is dear only for a large gain: at 0.25 four values of the same size have to be made of what is kept in place of one.
#: additions and their kind: hidden behind the reading of what they are computed from
_PRICE_CHEAP = 0.02
#: functions of `_COSTLY`, and random numbers of a seed: as long as reading their operand from memory, or longer
_PRICE_COSTLY = 0.25
#: operators of `_PASSES`: memory is read once more
_PRICE_PASS = 0.1


@dataclass(frozen=True, slots=True)
class MinCut:
    """See the module's docstring.

    memory_budget: of the bytes that the minimum cut keeps, the part that may be kept, from 0 to 1. Below 1, calls that
    otherwise run once are computed again too, those first that free most bytes for their arithmetic; 0 keeps little more
    than the inputs. always_save: results of the calls for which this is true are kept where backward needs them, or needs
    what is computed from them, rather than computed again. always_recompute: results of these are never kept, whatever computing
    them again costs (random calls aside, and what is always saved); so are those of checkpointed functions.
    """

    memory_budget: float = 1.0
    always_save: Callable[[Call], bool] | None = None
    always_recompute: Callable[[Call], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory_budget, (int, float)) or not 0 <= self.memory_budget <= 1:
            raise ConfigError(f"memory_budget is {self.memory_budget!r}; it has to be a number between 0 and 1")
        for name in ("always_save", "always_recompute"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it has to be a function of a Call, or None")

    def __call__(self, joint: Joint) -> Partition:
        fixed = frozenset(backward_only(joint))
        needed = list({id(value): value for value in needed_by(joint, fixed)}.values())
        unkept = self._unkept(joint)
        made_again = {joint.log.origins[key].call for key in unkept}
        once = {
            number
            for number in _ancestors(joint.log, needed)
            if self._saves(joint.log.calls[number]) or (number not in made_again and not may_run_again(joint.log, number))
        }
        saved = _cut(joint, needed, once, unkept)
        if self.memory_budget < 1:
            saved = self._within_budget(joint, needed, once, saved, unkept)
        again = _computed_again(joint.log, needed, saved)
        return assemble(joint, fixed, again, saved, _report(joint, saved, again, made_again))

    def _saves(self, call: Call) -> bool:
        return self.always_save is not None and self.always_save(call)

    def _unkept(self, joint: Joint) -> dict[int, FakeTensor]:
        """The values, by identity, that must not be kept."""
        unkept = made_for_checkpoints(joint)
        if self.always_recompute is not None:
            for call in joint.log.calls:
                if not has_effect(call.op) and self.always_recompute(call):
                    unkept.update((id(value), value) for value in values_of([call.out]))
        if self.always_save is not None:
            origins, calls = joint.log.origins, joint.log.calls
            unkept = {key: value for key, value in unkept.items() if not self._saves(calls[origins[key].call])}
        return unkept

    def _within_budget(
        self, joint: Joint, needed: list[FakeTensor], once: set[int], saved: list[FakeTensor], unkept: Container[int]
    ) -> list[FakeTensor]:
        log = joint.log
        limit = self.memory_budget * _kept_bytes(joint, saved)
        while _kept_bytes(joint, saved) > limit:
            offers = [
                (_arithmetic(log, number) / max(1, _bytes(value)), number)
                for value in saved
                for number in _nearest(log, value, once)
                if not has_effect(log.calls[number].op)
                and not self._saves(log.calls[number])
            ]
            if not offers:
                break
            once.discard(min(offers)[1])
            saved = _cut(joint, needed, once, unkept)
        return saved


def _nearest(log: FunctionalLog, value: FakeTensor, once: set[int]) -> set[int]:
    """The calls of `once` that stand between `value` and cheaper ways to make it."""
    found: set[int] = set()
    seen: set[int] = set()
    todo = [log.origins[id(value)].call]
    while todo:
        number = todo.pop()
        if number < 0 or number in seen:
            continue
        seen.add(number)
        if number in once:
            found.add(number)
        else:
            todo.extend(log.origins[id(below)].call for below in inputs_of(log, number))
    return found


def may_run_again(log: FunctionalLog, number: int) -> bool:
    """True for a call of a kind that is cheap enough to be computed in both parts."""
    op = log.calls[number].op
    if has_effect(op) or number in log.symbol_calls.values():
        return False
    return torch.Tag.pointwise in op.tags or op in _PASSES or is_view(op) or is_constant(log, number)


def _ancestors(log: FunctionalLog, values: list[FakeTensor]) -> list[int]:
    """Numbers of the calls behind `values`, in order."""
    found: set[int] = set()
    todo = list(values)
    while todo:
        number = log.origins[id(todo.pop())].call
        if number >= 0 and number not in found:
            found.add(number)
            todo.extend(inputs_of(log, number))
    return sorted(found)


def _cut(joint: Joint, needed: list[FakeTensor], once: set[int], unkept: Container[int]) -> list[FakeTensor]:
    """The values of a minimum cut without `unkept` ones, in the order in which they are made."""
    log = joint.log
    network = _Network()
    values: dict[int, tuple[FakeTensor, int, int]] = {}

    def ends_of(value: FakeTensor) -> tuple[int, int]:
        known = values.get(id(value))
        if known is None:
            known = values[id(value)] = (value, network.node(), network.node())
            network.edge(known[1], known[2], math.inf if id(value) in unkept else _price_of_keeping(joint, value))
            if log.origins[id(value)].placeholder >= 0:
                network.edge(network.source, known[1], math.inf)
        return known[1], known[2]

    for value in needed:
        network.edge(ends_of(value)[1], network.sink, math.inf)
    seen: set[int] = set()
    todo = list(needed)
    while todo:
        number = log.origins[id(todo.pop())].call
        if number < 0 or number in seen:
            continue
        seen.add(number)
        call = network.node()
        for value in values_of([log.calls[number].out]):
            network.edge(call, ends_of(value)[0], math.inf)
        if number in once:
            network.edge(network.source, call, math.inf)
            continue
        network.edge(network.source, call, _price_of_computing(log, number))
        for value in inputs_of(log, number):
            network.edge(ends_of(value)[1], call, math.inf)
            todo.append(value)
    reached = network.source_side()
    kept = [value for value, start, end in values.values() if start in reached and end not in reached]
    origin = log.origins
    return sorted(kept, key=lambda value: (origin[id(value)].call, origin[id(value)].placeholder, origin[id(value)].item or 0))


def _computed_again(log: FunctionalLog, needed: list[FakeTensor], saved: list[FakeTensor]) -> set[int]:
    kept = {id(value) for value in saved}
    again: set[int] = set()
    todo = list(needed)
    while todo:
        value = todo.pop()
        number = log.origins[id(value)].call
        if id(value) not in kept and number >= 0 and number not in again:
            again.add(number)
            todo.extend(inputs_of(log, number))
    return again


# ---- prices ---------------------------------------------------------------------------------------------------------


def _numel(value: FakeTensor) -> int:
    return estimate(value.numel())


def _bytes(value: FakeTensor) -> int:
    return _numel(value) * value.dtype.itemsize


def _kept_bytes(joint: Joint, saved: list[FakeTensor]) -> int:
    """Bytes that live from forward to backward only because they are saved."""
    return sum(_bytes(value) for value in saved if not joint.lives_on(value))


def _price_of_keeping(joint: Joint, value: FakeTensor) -> float:
    origin = joint.log.origins[id(value)]
    if joint.lives_on(value):
        return 1.0  # not free, so that of two ways the shorter list wins
    held = _bytes(value)
    if value.storage_token.ident in joint.copied:  # a memory of its own, and a pass over it
        return 1.0 + (1 + _PRICE_PASS) * held
    number = origin.call
    while number >= 0 and is_view(joint.log.calls[number].op):  # a view holds the memory that it sees
        base = inputs_of(joint.log, number)[0]
        held = max(held, _bytes(base))
        number = joint.log.origins[id(base)].call
    return 1.0 + held


def _price_of_computing(log: FunctionalLog, number: int) -> float:
    call = log.calls[number]
    if is_view(call.op) or is_constant(log, number):
        return 0.0
    if call.backward:  # a derivative's own: it is computed once, in whichever part
        return 0.0
    size = sum(_bytes(value) for value in values_of([call.out]))
    name = call.op._schema.name.partition("::")[2]
    if torch.Tag.pointwise in call.op.tags:
        return size * (_PRICE_COSTLY if name in _COSTLY else _PRICE_CHEAP)
    if call.op in DRAWS:
        return size * _PRICE_COSTLY
    # others get here when a budget released them: that they are taken is the point
    return size * (_PRICE_PASS if call.op in _PASSES else _PRICE_CHEAP)


def _arithmetic(log: FunctionalLog, number: int) -> float:
    """A rough count of multiplications: exact for a matrix product, one per element of input and result for the rest."""
    call = log.calls[number]
    operands = inputs_of(log, number)
    results = list(values_of([call.out]))
    if call.op in (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default):
        return float(_numel(results[0]) * estimate(operands[-2].shape[-1]))
    if call.op is aten.convolution.default:
        weight = operands[1]
        return _numel(results[0]) * _numel(weight) / max(1, estimate(weight.shape[0]))
    return float(sum(_numel(value) for value in [*operands, *results]))


# ---- the flow network -----------------------------------------------------------------------------------------------


class _Network:
    """Collects edges; `source_side` solves. Capacities are scaled to SciPy's 32-bit integers."""

    def __init__(self) -> None:
        self.source, self.sink = 0, 1
        self._count = 2
        self._edges: dict[tuple[int, int], float] = {}

    def node(self) -> int:
        self._count += 1
        return self._count - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        if capacity > 0:
            self._edges[start, end] = self._edges.get((start, end), 0) + capacity

    def source_side(self) -> set[int]:
        """The nodes that the source still reaches when a maximum flow runs."""
        # not at the top: only training needs it, and it takes a third of a second to import
        import numpy
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if not self._edges:
            return {self.source}
        total = sum(capacity for capacity in self._edges.values() if capacity < math.inf)
        scale = min(1.0, 2**30 / max(total, 1.0))
        finite = [capacity if capacity == math.inf else max(1, round(capacity * scale)) for capacity in self._edges.values()]
        infinite = 1 + sum(int(capacity) for capacity in finite if capacity < math.inf)
        data = numpy.array([infinite if capacity == math.inf else capacity for capacity in finite], dtype=numpy.int32)
        starts, ends = (numpy.array(axis, dtype=numpy.int32) for axis in zip(*self._edges, strict=True))
        capacities = csr_array((data, (starts, ends)), shape=(self._count, self._count))
        flow = maximum_flow(capacities, self.source, self.sink).flow
        residual = capacities - flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        order = breadth_first_order(residual, self.source, return_predecessors=False)
        return {int(node) for node in order}


# ---- words ----------------------------------------------------------------------------------------------------------


def _report(joint: Joint, saved: list[FakeTensor], again: set[int], made_again: Container[int]) -> str:
    log = joint.log
    lines = [f"kept between forward and backward: {_kept_bytes(joint, saved):,} bytes in {len(saved)} tensors"]
    for value in saved:
        origin = log.origins[id(value)]
        if origin.placeholder >= 0:
            what = f"input {origin.placeholder}" + (", lives on anyway" if joint.lives_on(value) else "")
        else:
            call = log.calls[origin.call]
            what = f"{call.op}" + ("" if may_run_again(log, origin.call) else ", runs once")
        lines.append(f"  {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}: {what}, {_bytes(value):,} bytes")
    for words, numbers in (
        ("cheaper than keeping their results", [number for number in sorted(again) if number not in made_again]),
        ("asked for (checkpoint, always_recompute)", [number for number in sorted(again) if number in made_again]),
    ):
        counted: dict[str, int] = {}
        for number in numbers:
            if not is_view(log.calls[number].op):
                counted[str(log.calls[number].op)] = counted.get(str(log.calls[number].op), 0) + 1
        lines.append(f"computed again: {sum(counted.values())} calls, {words}")
        lines.extend(f"  {count} x {name}" for name, count in sorted(counted.items()))
    return "\n".join(lines)
