"""The message that a program gives to `torch._check`, known before anybody knows whether it is needed.

In: the function that makes it, which the program calls where the condition fails only. Out: its text, where the function does
nothing but put together constants and variables; None else, since running it could be seen. A number that only running the
graph tells stands in it as what tells it (`n.item()`).
"""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.symbolic import PYTHON_TYPES, unbacked
from fxloom_shapes.nodes import IntNode

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator

_SKIPPED = frozenset({"RESUME", "COPY_FREE_VARS", "CACHE", "NOP", "PUSH_NULL"})
_PLAIN = (str, int, float)


def message_text(ev: Evaluator, function: Any) -> str | None:
    """See the module's docstring."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & (0x04 | 0x08 | 0x20):
        return None
    stack: list[Any] = []
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in _SKIPPED:
            continue
        if name in ("RETURN_VALUE", "RETURN_CONST"):
            result = instruction.argval if name == "RETURN_CONST" else stack[-1]
            return result if type(result) is str else None
        if name == "LOAD_CONST":
            stack.append(instruction.argval)
        elif name == "LOAD_DEREF":
            found = _variable(ev, function, str(instruction.argval))
            if found is None:
                return None
            stack.append(found)
        elif name == "FORMAT_SIMPLE" or name == "FORMAT_VALUE" and instruction.argval == (None, False):
            stack.append(str(stack.pop()))
        elif name == "BUILD_STRING":
            count = instruction.arg or 0
            stack[len(stack) - count :] = ["".join(stack[len(stack) - count :])]
        else:
            return None
    return None


def _variable(ev: Evaluator, function: types.FunctionType, name: str) -> Any:
    """What a variable of an enclosing function holds, as it is in the text; None where that is no number or text."""
    place = function.__code__.co_freevars.index(name)
    value: Any = ev.heap.cell_get(function.__closure__[place]) if function.__closure__ else None
    if type(value) in PYTHON_TYPES and isinstance(value.node, IntNode):
        if not unbacked(value):
            return None  # its text is the number, and would leave a guard
        return value.node.env.worded_number(value.node.poly)
    return value if type(value) in _PLAIN else None
