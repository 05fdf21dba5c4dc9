"""What checkpointed functions may do, and which storages a stretch of the raw log touches.

In: stretches of the raw log. Out: GraphRejected where backward would repeat an effect by running a checkpointed function again.
Invariant: the log is only read.
"""

from __future__ import annotations

from fxloom_aot.nests import values_of
from fxloom_aot.recording.recorder import Checkpoint, Entry
from fxloom_interfaces.errors import GraphRejected
from fxloom_ops.functional_variants import UNDECLARED_WRITES
from fxloom_ops.schema import schema_info
from fxloom_shapes import FakeTensor


def check_checkpoints(checkpoints: list[Checkpoint], log: list[Entry]) -> None:
    """Raise GraphRejected for a checkpointed function that does, when backward runs it again, what a graph can't do twice."""
    for found in checkpoints:
        entries = log[found.first : found.last]
        outside: set[int] = set()
        made: set[int] = set()
        for entry in entries:
            token = entry.before[1] if entry.before is not None else None
            used = [token] if token is not None else [fake.storage_token for fake in values_of([entry.args, entry.kwargs])]
            outside.update(storage.ident for storage in used if storage.ident not in made)
            made.update(fake.storage_token.ident for fake in values_of([entry.out]) if fake.storage_token.ident not in outside)
            if token is not None and token.ident in outside:
                raise GraphRejected(found.node, "a checkpointed function changes the shape of a tensor from outside in place")
        if touched_storages(entries)[0] & outside:
            raise GraphRejected(found.node, "a checkpointed function writes into a tensor from outside, and again when backward runs it")
        if not found.preserve_rng_state and any(schema_info(entry.op).seeded for entry in entries):
            raise GraphRejected(found.node, "a checkpointed function draws random numbers without preserve_rng_state")


def touched_storages(entries: list[Entry]) -> tuple[set[int], set[int]]:
    """Storages that are written, and those that as_strided or resize_ sees."""
    written: set[int] = set()
    strided: set[int] = set()
    for entry in entries:
        name = entry.op._schema.name
        if name in ("aten::as_strided", "aten::as_strided_", "aten::resize_", "aten::resize_as_") and type(entry.args[0]) is FakeTensor:
            strided.add(entry.args[0].storage_token.ident if entry.before is None else entry.before[1].ident)
        for position, argument, _ in schema_info(entry.op).writes:
            target = entry.args[position] if position < len(entry.args) else entry.kwargs.get(argument)
            if entry.before is None:
                written.update(fake.storage_token.ident for fake in values_of([target]))
        if entry.op in UNDECLARED_WRITES:
            rewrite = UNDECLARED_WRITES[entry.op](*entry.args)
            if rewrite is not None:
                written.update(entry.args[position].storage_token.ident for position in rewrite[3])
    return written, strided
