"""Liveness of local variables: which of them the rest of a function may still read.

In: a code object and the index of an instruction. Out: names that may be read at or after it before they are written, on any
path, those through exception handlers included.
"""

from __future__ import annotations

import types
import weakref

from fxloom_dynamo.bytecode.opcode_facts import NO_FALL_THROUGH, READS_LOCAL
from fxloom_dynamo.interpreter.frame import CodeInfo, code_info

_cache: dict[int, tuple[weakref.ref[types.CodeType], list[frozenset[str]]]] = {}


def live_locals(code: types.CodeType, index: int) -> frozenset[str]:
    """Names that may be read at or after instruction `index` before they are written."""
    known = _cache.get(id(code))
    if known is None or known[0]() is not code:
        key = id(code)
        known = (weakref.ref(code, lambda _: _cache.pop(key, None)), _analyse(code_info(code)))
        _cache[key] = known
    return known[1][index]


def _analyse(info: CodeInfo) -> list[frozenset[str]]:
    instructions = info.body.instructions
    count = len(instructions)
    empty: frozenset[str] = frozenset()
    live = [empty] * (count + 1)
    changed = True
    while changed:
        changed = False
        for index in range(count - 1, -1, -1):
            inst = instructions[index]
            after = empty
            if inst.opname not in NO_FALL_THROUGH:
                after = live[index + 1]
            if info.targets[index] >= 0:
                after = after | live[info.targets[index]]
            region = info.regions[index]
            if inst.opname == "STORE_FAST":
                after = after - {inst.argval}
            elif inst.opname in READS_LOCAL:
                after = after | {inst.argval}
            if region is not None:
                after = after | live[region.handler]
            if after != live[index]:
                live[index] = after
                changed = True
    return live[:count]
