"""One activation of a Python function under evaluation, and what is known of its code once and for all.

In: a code object and the values of its parameters. Out: a `Frame`, which handlers change, and its `CodeInfo`: instructions with their
handlers, where they jump to, where what they raise goes, which line they are of. Invariant: a `CodeInfo` belongs to one code object and
never changes.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.bytecode import Body, Instruction, disassemble
from fxloom_dynamo.bytecode.handler_registry import handler_of
from fxloom_dynamo.bytecode.source_lines import source_line
from fxloom_interfaces.errors import Site

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Handler = Callable[["Interpreter", "Frame", Instruction], Any]


@dataclass(frozen=True, slots=True)
class ExceptionTarget:
    """Where an exception goes: index of the handler, depth the stack is cut to, whether the index is pushed below."""

    handler: int
    depth: int
    lasti: bool


class CodeInfo:
    """Instructions of a code object with handlers, and by index: where it jumps to, where its exceptions go."""

    __slots__ = ("__weakref__", "body", "index", "ops", "regions", "sites", "targets")

    def __init__(self, code: types.CodeType) -> None:
        self.body: Body = disassemble(code)
        instructions = self.body.instructions
        self.index = {id(inst): number for number, inst in enumerate(instructions)}
        self.ops: list[tuple[Handler, Instruction]] = [(handler_of(inst), inst) for inst in instructions]
        self.targets: list[int] = [
            -1 if inst.target is None else self.index[id(inst.target)] for inst in instructions
        ]
        self.sites: dict[int, Site] = {}
        self.regions: list[ExceptionTarget | None] = [None] * len(instructions)
        for region in self.body.regions:
            entry = ExceptionTarget(self.index[id(region.handler)], region.depth, region.lasti)
            for number in range(self.index[id(region.start)], self.index[id(region.end)] + 1):
                self.regions[number] = entry

    def handlers_of(self, index: int) -> list[ExceptionTarget]:
        """The program's handlers of what the instruction raises, innermost first; not what the compiler adds to end handlers."""
        found = []
        region = self.regions[index]
        while region is not None:
            if self.body.instructions[region.handler].opname == "PUSH_EXC_INFO":
                found.append(region)
            region = self.regions[region.handler]
        return found

    def ends_with(self, region: ExceptionTarget) -> bool:
        """Whether the handler is that of a `with`."""
        return self.body.instructions[region.handler + 1].opname == "WITH_EXCEPT_START"


_infos_by_id: dict[int, tuple[Any, CodeInfo]] = {}


def code_info(code: types.CodeType) -> CodeInfo:
    """The analysis of `code`, made once. Code objects compare by value, so the cache goes by identity."""
    known = _infos_by_id.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    info = CodeInfo(code)
    key = id(code)
    _infos_by_id[key] = (weakref.ref(code, lambda _: _infos_by_id.pop(key, None)), info)
    return info


class Frame:
    """locals: bound variables by name; a cell or free variable is bound to its cell. stack: the value stack.

    names: the mapping in which code that is no function's keeps its variables. names_seen: what `locals()` returned.
    ip: index of the next instruction. kw_names: names left by KW_NAMES for the next CALL.
    """

    __slots__ = (
        "builtins",
        "closure",
        "code",
        "depth",
        "function",
        "globals",
        "info",
        "ip",
        "kw_names",
        "locals",
        "names",
        "names_seen",
        "namespace",
        "result",
        "stack",
    )  # fmt: skip

    def __init__(
        self,
        code: types.CodeType,
        function: types.FunctionType | None,
        global_names: dict[str, Any],
        closure: tuple[types.CellType, ...],
        local_values: dict[str, Any],
        depth: int,
    ) -> None:
        self.code = code
        self.info = code_info(code)
        self.function = function
        self.globals = global_names
        self.closure = closure
        self.locals = local_values
        self.stack: list[Any] = []
        self.ip = 0
        self.kw_names: tuple[str, ...] = ()
        self.result: Any = None
        self.depth = depth
        self.namespace: Any = None
        self.names: Any = None
        self.names_seen: dict[str, Any] | None = None
        found = global_names.get("__builtins__")
        self.builtins: dict[str, Any] = found if isinstance(found, dict) else getattr(found, "__dict__", {})

    def close(self) -> None:
        """Drop all values."""
        self.locals.clear()
        self.stack.clear()
        self.closure = ()
        self.function = self.result = self.names = self.names_seen = None

    def pop_many(self, count: int) -> list[Any]:
        """Take the top `count` values, deepest first."""
        if not count:
            return []
        stack = self.stack
        values = stack[-count:]
        del stack[-count:]
        return values

    def site(self, index: int | None = None) -> Site:
        """The program's place of the instruction at `index` (the running one by default)."""
        number = self.ip - 1 if index is None else index
        known = self.info.sites.get(number)
        if known is not None:
            return known
        before = reversed(self.info.body.instructions[: max(number, 0) + 1])
        # the compiler's own instructions, as at the end of a handler, have no line: that of the nearest above
        line = next((inst.position.line for inst in before if inst.position.line), self.code.co_firstlineno)
        text = source_line(self.code.co_filename, line, self.globals)
        found = self.info.sites[number] = Site(self.code.co_filename, line, self.code.co_qualname, text)
        return found


@dataclass(frozen=True, slots=True)
class UnreadParameter:
    """A parameter of the captured frame that the program has not used yet."""

    original: Any
    source: Any
