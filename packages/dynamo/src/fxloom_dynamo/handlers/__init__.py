"""One handler per opcode, grouped by what the opcodes are about. Importing this package fills the registry."""

from fxloom_dynamo.handlers import attributes, calls, containers, control, exceptions, generators, names, operators, stack

__all__ = ["attributes", "calls", "containers", "control", "exceptions", "generators", "names", "operators", "stack"]
