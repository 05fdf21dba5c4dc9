"""What `locals()` of a frame of the program is, and what reading an unbound variable of it raises.

In: a frame that is evaluated. Out: a dict of its bound variables, cells' contents included; before Python 3.13 the same dict at
every call, as CPython gives it.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.bytecode.continuations import origin_of
from fxloom_dynamo.bytecode.opcode_facts import VERSION
from fxloom_dynamo.interpreter.frame import Frame
from fxloom_dynamo.objects.sentinels import ABSENT

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: `locals()` of a function gives a new dict each time
_LOCALS_ARE_NEW = VERSION >= (3, 13)


def snapshot(ev: Interpreter, frame: Frame) -> Any:
    """locals() of a frame."""
    if frame.names is not None:
        return frame.names
    found = {}
    cells = {*frame.code.co_cellvars, *frame.code.co_freevars}
    variables = tuple(dict.fromkeys((*frame.code.co_varnames, *frame.code.co_cellvars, *frame.code.co_freevars)))
    for name in variables:
        value = ev.load_local(frame, name)
        if name in cells and isinstance(value, types.CellType):
            value = ev.heap.cell_get(value)
        if value is not ABSENT:
            found[name] = value
    if frame.names_seen is None or _LOCALS_ARE_NEW:
        frame.names_seen = found
        return found
    known = frame.names_seen
    for name in variables:
        if name in found:
            known[name] = found[name]
        else:
            known.pop(name, None)
    return known


def unbound_error(name: str, code: types.CodeType) -> NameError:
    """What reading a variable without a value raises; a continuation has its function's own cells as free variables."""
    if name in origin_of(code).co_freevars:
        return NameError(f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope")
    return UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
