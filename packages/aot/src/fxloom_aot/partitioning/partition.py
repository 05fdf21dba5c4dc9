"""Split a joint log into a forward and a backward part.

In: a `Joint`: the functional log, what of it the forward pass returns, the gradients, the tangents. Out: a `Partition`:
which calls run forward, which backward (some in both: they are computed again), and which values are kept in between.

A partitioner is any callable from the one to the other. `save_all` is the plain one, `partitioning.mincut.MinCut` the one
that keeps the fewest bytes. Both agree on what can only run backward: what depends on a tangent, and a recomputation
(checkpoint); and on what is not kept: what a checkpointed function makes for itself, except random numbers. Views are
made again from what they are views of, constants from nothing.
Invariant: every value that the backward part reads is kept, a tangent, a constant, or made by a call of the backward part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fxloom_aot.functional.functional_log import FunctionalLog, has_effect, inputs_of
from fxloom_aot.nests import values_of
from fxloom_interfaces.errors import InternalError, PluginError
from fxloom_ops.schema import Op, schema_info
from fxloom_shapes import FakeTensor


@dataclass(frozen=True, slots=True)
class Joint:
    """What is to be split.

    static: numbers of the placeholders that live on anyway (parameters, buffers). copied: memories (`storage_token.ident`) of
    which what is kept will be a copy, since the caller may write there before the backward pass, and eager's wouldn't notice.
    effects: numbers of the backward calls that count beyond their result and belong to these gradients; None for all.
    """

    log: FunctionalLog
    forward_outputs: Sequence[Any]
    gradients: Sequence[Any]
    tangents: Sequence[FakeTensor]
    static: frozenset[int] = frozenset()
    copied: frozenset[int] = frozenset()
    effects: tuple[int, ...] | None = None

    def lives_on(self, value: FakeTensor) -> bool:
        """True for a value that needs no memory of its own when it is kept."""
        return self.log.origins[id(value)].placeholder in self.static and value.storage_token.ident not in self.copied


@dataclass(frozen=True, slots=True)
class Partition:
    """forward, backward: call numbers in the order to run. saved: values that the forward part hands to the backward part.

    report: in words, what is kept and what is computed again, and why; empty for a partitioner without a choice.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    saved: tuple[FakeTensor, ...]
    report: str = ""


Partitioner = Callable[[Joint], Partition]


def save_all(joint: Joint) -> Partition:
    """The plain partition; see the module's docstring."""
    log = joint.log
    backward = backward_only(joint)
    fixed = frozenset(backward)
    again: set[int] = set()
    saved: dict[int, FakeTensor] = {}
    seen: set[tuple[int, int | None]] = set()
    todo = list(_needed_within(joint, fixed))
    for value, checkpoint in todo:
        number = log.origins[id(value)].call
        if number in fixed or (id(value), checkpoint) in seen:
            continue
        seen.add((id(value), checkpoint))
        call = log.calls[number] if number >= 0 else None
        within = call is not None and checkpoint is not None and call.checkpoint == checkpoint and not has_effect(call.op)
        # what a derivative makes of forward values it makes in backward, as in eager: what is kept suffices for the next derivative
        derivative = call is not None and call.backward and not has_effect(call.op)
        if call is not None and (within or derivative or is_view(call.op) or is_constant(log, number)):
            again.add(number)
            todo.extend((used, checkpoint) for used in inputs_of(log, number))
        elif not is_constant_value(log, value):
            saved[id(value)] = value
    return assemble(joint, fixed, again, list(saved.values()))


def assemble(joint: Joint, fixed: frozenset[int], again: set[int], saved: list[FakeTensor], report: str = "") -> Partition:
    """The partition that keeps `saved` and computes the calls `again` in the backward part, each just before its first use."""
    log = joint.log
    forward = [number for number in log.live_calls([*joint.forward_outputs, *saved], joint.effects) if number not in fixed]
    kept = {id(value) for value in saved}
    order: list[int] = []
    placed: set[int] = set()
    for last in [*sorted(fixed), None]:
        roots = [last] if last is not None else [log.origins[id(value)].call for value in values_of(list(joint.gradients))]
        stack = [(number, False) for number in reversed(roots)]
        while stack:
            number, ready = stack.pop()
            if number in placed or number < 0 or (number not in fixed and number not in again):
                continue
            if ready:
                placed.add(number)
                order.append(number)
                continue
            stack.append((number, True))
            values = [value for value in inputs_of(log, number) if id(value) not in kept]
            stack.extend((log.origins[id(value)].call, False) for value in reversed(values))
    return Partition(tuple(forward), tuple(order), tuple(saved), report)


def backward_from(joint: Joint, saved: Sequence[FakeTensor]) -> tuple[int, ...] | None:
    """The calls that make the gradients of `joint` from values that another partition kept; None if these don't suffice."""
    log = joint.log
    fixed = frozenset(backward_only(joint))
    kept = {id(value) for value in saved}
    again: set[int] = set()
    todo = [value for value in needed_by(joint, fixed) if id(value) not in kept]
    while todo:
        value = todo.pop()
        number = log.origins[id(value)].call
        if number in again or is_constant_value(log, value):
            continue
        if number < 0 or has_effect(log.calls[number].op):
            return None
        again.add(number)
        todo += [value for value in inputs_of(log, number) if id(value) not in kept]
    return assemble(joint, fixed, again, list(saved)).backward


def name_of(plugin: Any) -> str:
    """What to call somebody's compiler or partitioner in an error."""
    return str(getattr(plugin, "__qualname__", type(plugin).__qualname__))


def check_partition(joint: Joint, part: Partition, partitioner: Partitioner) -> None:
    """Raise PluginError for a partition by which one of the graphs could not be made."""
    name = name_of(partitioner)
    if not isinstance(part, Partition):
        raise PluginError(name, f"a partitioner returns a Partition; it returned {part!r}")
    log = joint.log
    tangents = {id(value) for value in joint.tangents}

    def check(part_name: str, calls: Sequence[int], given: set[int], outputs: Sequence[Any], what: str) -> None:
        made = set(given)
        for number in calls:
            if not 0 <= number < len(log.calls):
                raise PluginError(name, f"the {part_name} part has call {number}; there are {len(log.calls)}")
            for value in inputs_of(log, number):
                if id(value) not in made and not is_constant_value(log, value):
                    raise PluginError(name, f"call {number} ({log.calls[number].op}) of the {part_name} part takes {value!r}, {what}")
            made.update(id(value) for value in values_of([log.calls[number].out]))
        for value in values_of(list(outputs)):
            if id(value) not in made and not is_constant_value(log, value):
                raise PluginError(name, f"the {part_name} part is to give {value!r}, {what}")

    forward = {id(value) for value in log.placeholders} - tangents
    saved = {id(value) for value in part.saved}
    check("forward", part.forward, forward, [*joint.forward_outputs, *part.saved], "which no call before it makes")
    check("backward", part.backward, saved | tangents, joint.gradients, "which is not saved, and which no call before it makes")


def is_constant_value(log: FunctionalLog, value: FakeTensor) -> bool:
    """True for a value that belongs to both graphs, as the tensors that the program found."""
    origin = log.origins[id(value)]
    return origin.call < 0 and origin.placeholder < 0


def backward_only(joint: Joint) -> set[int]:
    """Numbers of the calls that can't run before the tangents are known, or that are meant to run then."""
    log = joint.log
    tangents = {id(value) for value in joint.tangents}
    backward: set[int] = set()
    for number in log.live_calls(list(joint.gradients), joint.effects):
        call = log.calls[number]
        # the program's own random calls are forward whatever needs them
        if (
            call.region
            or (call.backward and has_effect(call.op))
            or any(id(value) in tangents or log.origins[id(value)].call in backward for value in inputs_of(log, number))
        ):
            if call.region and schema_info(call.op).seeded:
                raise InternalError("aot partition", "a recomputed region draws random numbers", node=str(call.op))
            backward.add(number)
    return backward


def made_for_checkpoints(joint: Joint) -> dict[int, FakeTensor]:
    """The values, by identity, that checkpointed functions and their derivatives make and no other part of forward uses."""
    log = joint.log
    if not any(call.checkpoint for call in log.calls):
        return {}
    shown = {id(value) for value in values_of(list(joint.forward_outputs))}
    for number, call in enumerate(log.calls):
        if not call.backward:
            for value in inputs_of(log, number):
                origin = log.origins[id(value)].call
                if origin >= 0 and log.calls[origin].checkpoint != call.checkpoint:
                    shown.add(id(value))
    return {
        id(value): value
        for call in log.calls
        if call.checkpoint and not has_effect(call.op)
        for value in values_of([call.out])
        if id(value) not in shown
    }


def needed_by(joint: Joint, fixed: frozenset[int]) -> Iterator[FakeTensor]:
    """The values that the calls `fixed`, or the gradients themselves, take from the forward part; some more than once."""
    return (value for value, _ in _needed_within(joint, fixed))


def _needed_within(joint: Joint, fixed: frozenset[int]) -> Iterator[tuple[FakeTensor, int | None]]:
    """As `needed_by`, with the checkpoint that the call which takes the value is part of; None for none."""
    log = joint.log
    tangents = {id(value) for value in joint.tangents}
    for number in [*sorted(fixed), None]:
        values = inputs_of(log, number) if number is not None else list(values_of(list(joint.gradients)))
        for value in values:
            if id(value) not in tangents and log.origins[id(value)].call not in fixed:
                yield value, log.calls[number].checkpoint or None if number is not None else None


def is_view(op: Op) -> bool:
    """True when the result of `op` is its first argument seen otherwise, so making it again costs nothing."""
    returned = op._schema.returns
    return len(returned) == 1 and returned[0].alias_info is not None and not schema_info(op).writes


def is_constant(log: FunctionalLog, number: int) -> bool:
    """True for a call that needs no input (a filled or counted tensor): making it again is as good as saving it."""
    return not inputs_of(log, number) and not schema_info(log.calls[number].op).seeded
