"""Reading, writing and emitting CPython bytecode, whatever the version: `opcode_facts` says how versions differ in it."""

from fxloom_dynamo.bytecode.assemble import AssemblyError, assemble
from fxloom_dynamo.bytecode.disassemble import disassemble
from fxloom_dynamo.bytecode.instruction import Body, ExceptionRegion, Instruction, Position
from fxloom_dynamo.bytecode.opcode_facts import NORMALIZED_OPNAMES

__all__ = [
    "NORMALIZED_OPNAMES",
    "AssemblyError",
    "Body",
    "ExceptionRegion",
    "Instruction",
    "Position",
    "assemble",
    "disassemble",
]
