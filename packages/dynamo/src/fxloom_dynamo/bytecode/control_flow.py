"""Where control goes on after instructions whose way out differs between Python versions.

In: instructions and the target of a FOR_ITER. Out: the index of the instruction that runs next when the iterator is exhausted.
"""

from __future__ import annotations

from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.opcode_facts import POPS_AFTER_END_FOR


def exhausted_index(instructions: list[Instruction], target: int) -> int:
    """Where an exhausted FOR_ITER goes on, its iterator popped: 3.12 and 3.13 skip the clean-up at the target."""
    if instructions[target].opname == "END_FOR":
        target += 1
        if POPS_AFTER_END_FOR and instructions[target].opname == "POP_TOP":
            target += 1
    return target
