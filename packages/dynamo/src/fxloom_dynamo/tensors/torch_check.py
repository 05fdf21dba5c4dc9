"""The message that a program gives to `torch._check`, known before anybody knows whether it is needed.

In: the function that makes it, which the program calls where the condition fails only. Out: its text, where the function does
nothing but put together constants and variables; none else, since running it could be seen. Numbers that only running
the graph tells stand as `{}` in the text, and are given after it.
"""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.symbolic_numbers.values import PYTHON_TYPES
from fxloom_shapes.symbols.nodes import IntNode

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

_SKIPPED = frozenset({"RESUME", "COPY_FREE_VARS", "CACHE", "NOP", "PUSH_NULL"})
_PLAIN = (str, int, float)


def message_text(ev: Interpreter, function: Any) -> tuple[Any, ...]:
    """(text, numbers...); see the module's docstring."""
    pieces = _pieces(ev, function) if isinstance(function, types.FunctionType) else None
    if pieces is None:
        return ("",)
    numbers = tuple(piece for piece in pieces if type(piece) is torch.SymInt)
    if not numbers:
        return ("".join(map(str, pieces)),)
    escaped = ["{}" if type(piece) is torch.SymInt else str(piece).replace("{", "{{").replace("}", "}}") for piece in pieces]
    return ("".join(escaped), *numbers)


def _pieces(ev: Interpreter, function: types.FunctionType) -> list[Any] | None:
    """Texts and numbers which the text is put together of."""
    code = function.__code__
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & (0x04 | 0x08 | 0x20):
        return None
    stack: list[Any] = []  # of texts as lists of pieces, and of variables
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in _SKIPPED:
            continue
        if name in ("RETURN_VALUE", "RETURN_CONST"):
            result = instruction.argval if name == "RETURN_CONST" else stack[-1]
            return result if type(result) is list else [result] if type(result) is str else None
        if name == "LOAD_CONST":
            stack.append(instruction.argval)
        elif name == "LOAD_DEREF":
            found = _variable(ev, function, str(instruction.argval))
            if found is None:
                return None
            stack.append(found)
        elif name == "FORMAT_SIMPLE" or name == "FORMAT_VALUE" and instruction.argval == (None, False):
            stack.append([stack.pop()])
        elif name == "BUILD_STRING":
            count = instruction.arg or 0
            parts = stack[len(stack) - count :]
            stack[len(stack) - count :] = [[piece for part in parts for piece in (part if type(part) is list else [part])]]
        else:
            return None
    return None


def _variable(ev: Interpreter, function: types.FunctionType, name: str) -> Any:
    """What a variable of an enclosing function holds, as it is in the text; None where that is no number or text."""
    place = function.__code__.co_freevars.index(name)
    value: Any = ev.heap.cell_get(function.__closure__[place]) if function.__closure__ else None
    if type(value) in PYTHON_TYPES and isinstance(value.node, IntNode):
        return value  # one that is known, too: its text would leave a guard
    return value if type(value) in _PLAIN else None
