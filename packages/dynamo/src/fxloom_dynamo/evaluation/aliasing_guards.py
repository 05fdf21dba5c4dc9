"""Guards on aliasing: which of the objects that a capture used are one object, and which tensors share storage.

In: the shadow heap and the recorder, once a capture has ended. Out: guards, added to those of the heap. Objects that were different when
captured, one of them written, are still different when the entry is used: else a write by one name would have to be seen by the other.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_dynamo._torch_private import storage_id
from fxloom_dynamo.graph.recorder import Recorder
from fxloom_dynamo.guard.guards import Guard, GuardKind
from fxloom_dynamo.objects.program_changes import changed_records
from fxloom_dynamo.objects.sentinels import own_dict
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_interfaces.sources import SizeSource, Source


def guard_object_aliasing(heap: ShadowHeap) -> None:
    """What the program writes to must not be what it reads under another name."""
    written = {id(record.original) for record, _ in changed_records(heap)}
    if not written:
        return
    groups: dict[type, list[Any]] = {}
    for record in heap.by_proxy.values():
        if record.kind in ("list", "dict", "set", "deque", "OrderedDict", "defaultdict", "instance", "iterator"):
            groups.setdefault(type(record.original), []).append(record)
    for records in groups.values():
        own = any(
            id(record.original) in written or id(_dict_of(record.original)) in written
            for record in records
        )
        sources = [record.source for record in records if not _constant(record.source)]
        if own and len(sources) > 1:
            heap.guards.append(Guard(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]), None))

def guard_tensor_aliasing(heap: ShadowHeap, recorder: Recorder) -> None:
    """Tensors that were different objects still are; where the graph writes, sharing of storage is as it was."""
    known = [(real, source) for _, real, source in recorder.input_info.values() if not _constant(source)]
    if len(known) < 2:
        return
    sources = [source for _, source in known]
    heap.guards.append(Guard(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]), None))
    if not recorder.writes_inputs():
        return
    by_storage: dict[int, list[tuple[torch.Tensor, Source]]] = {}
    for real, source in known:
        if real.layout is torch.strided:
            by_storage.setdefault(storage_id(real), []).append((real, source))
    leaders = [members[0][1] for members in by_storage.values()]
    if len(leaders) > 1:
        heap.guards.append(Guard(leaders[0], GuardKind.DISTINCT_STORAGES, tuple(leaders[1:]), None))
    for members in by_storage.values():
        if len(members) > 1:
            together = [source for _, source in members]
            heap.guards.append(Guard(together[0], GuardKind.SAME_STORAGE, tuple(together[1:]), None))
            for real, source in members:
                offset = SizeSource(source, "storage_offset")
                heap.guards.append(Guard(offset, GuardKind.EQUALITY, real.storage_offset(), None))


def _dict_of(obj: Any) -> Any:
    return own_dict(obj) if type(obj).__dictoffset__ else None


def _constant(source: Any) -> bool:
    while source.parent is not None:
        source = source.parent
    return type(source).__name__ == "ObjectSource"
