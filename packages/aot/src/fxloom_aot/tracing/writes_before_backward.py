"""Which kept values have to be copies, since the caller may write to memory between a forward pass and its backward pass.

In: the log with its split, what eager's nodes save. Out: which kept values may stay on memory that the caller can write to.

The caller holds the inputs and the outputs: parameters, which an optimizer writes in place, buffers, activations. Eager's backward
pass reads those that its nodes saved, and raises where one was written since; others it doesn't read, so that a write to them
changes nothing. A backward graph computes some values again and may read more. What it reads beyond what eager saves has to be a
copy. A checkpointed function is the exception: eager runs it again, from what its inputs are by then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fxloom_aot.functional.functional_log import FunctionalLog, inputs_of
from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.outputs import ForwardOutputs
from fxloom_interfaces.signature import OutputKind
from fxloom_shapes import FakeTensor


def exposed_memories(state: Functionalizer, found: ForwardOutputs) -> dict[int, int | None]:
    """The memories of the log that are the caller's, each with the program's memory that it is; None where the write-back writes."""
    memories: dict[int, int | None] = {}
    for spec, value, program in zip(found.specs, found.values, found.programs, strict=True):
        if type(value) is FakeTensor and program is not None and spec.kind is not OutputKind.NEW_VALUE:
            memories[value.storage_token.ident] = program.storage_token.ident
    for number, place in enumerate(state.placeholders):
        storage = state.inputs[place.input].storage
        memories[state.log.placeholders[number].storage_token.ident] = None if storage is None else storage.ident
    for spec in found.specs:
        if spec.kind is OutputKind.NEW_VALUE:
            memories[state.log.placeholders[spec.input].storage_token.ident] = None
    return memories


def read_by_checkpoints(log: FunctionalLog, calls: Sequence[Sequence[int]], gradients: Collection[FakeTensor]) -> set[int]:
    """By identity: the values that only checkpointed functions, and their derivatives, take in the backward passes `calls`."""
    within: set[int] = set()
    beside = {id(value) for value in gradients}
    for numbers in calls:
        for number in numbers:
            (within if log.calls[number].checkpoint else beside).update(id(value) for value in inputs_of(log, number))
    return within - beside


def checked_in_eager(
    exposed: Mapping[int, int | None], saved_in_eager: Mapping[int, int], values: Sequence[FakeTensor], needed: Sequence[int]
) -> set[int]:
    """By identity: those of `values` on exposed memory that eager saves too, for all outputs (a bit mask) that need them."""
    result = set()
    for value, outputs in zip(values, needed, strict=True):
        memory = exposed.get(value.storage_token.ident)
        if not outputs or (memory is not None and not outputs & ~saved_in_eager.get(memory, 0)):
            result.add(id(value))
    return result
