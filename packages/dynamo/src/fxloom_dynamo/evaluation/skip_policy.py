"""Which frames are never captured: those that are no part of the program, and those that no replacement code could stand in for.

In: a frame that has not started. Out: why it runs as it is, as a `Skip`, or None: it is to be captured. Nothing here looks at what an
attempt to capture found out; `attempts` gives up by that.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from fxloom_dynamo.guard.entries import GENERATORS, FrameView, Skip
from fxloom_dynamo.interpreter.frame import code_info
from fxloom_dynamo.libraries import files

#: builtins that see the local variables of the frame that calls them
_READS_FRAME = frozenset({"locals", "exec", "eval"})
#: frames of their own until CPython 3.12
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


def skip_machinery(view: FrameView) -> Skip | None:
    """The skip of what compilers, imports and the dispatcher run, whoever calls it; what such a frame calls is not captured either."""
    code = view.code
    if _is_compiled_code(view.globals):
        return Skip("code of a compiled graph", for_good=True, closed=True)
    if files.is_other_compiler(code.co_filename):
        return Skip("another compiler's call; what it runs is its own", for_good=True, closed=True)
    if code.co_filename.startswith("<frozen importlib"):
        return Skip("the machinery of imports; modules that it runs are no part of the region", for_good=True, closed=True)
    if code.co_name == "__torch_dispatch__":
        return Skip("the dispatcher calls it for one operator at a time", for_good=True, closed=True)
    return None


def reason_to_skip(view: FrameView, root: bool) -> str | None:
    """Why a function runs as it is, by its code and its file. root: it is what the user had compiled, which may be anybody's."""
    return _reason_of_code(view.code, root) or _of_torchs_class(view, root)


def _is_compiled_code(global_names: dict[str, Any]) -> bool:
    """True for what runs a compiled graph: the autograd engine calls it (a graph's backward) while a region is live."""
    return str(global_names.get("__name__", "")).startswith("fxloom_")


def _reason_of_code(code: types.CodeType, root: bool) -> str | None:
    if code.co_flags & GENERATORS:
        return "a generator or coroutine"
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "a module's or class's body"
    if not _READS_FRAME.isdisjoint(code.co_names) and any(
        inst.opname == "LOAD_GLOBAL" and inst.argval in _READS_FRAME for inst in code_info(code).body.instructions
    ):
        return "a function that looks at its own frame (locals, exec or eval)"
    name = code.co_filename
    if code.co_name in _COMPREHENSIONS:
        return "a comprehension: it goes on with an iterator of the frame that it is part of, which runs as it is"
    if root:  # what the user had compiled may be anybody's, such as an optimizer's step
        return None
    if files.in_torch(name) and not files.is_module_code(name):
        return "torch's own file"
    if _is_library(name):
        return "a file of the standard library"
    return None


def _of_torchs_class(view: FrameView, root: bool) -> str | None:
    """Why the methods that `dataclasses` writes for a class of torch's are no part of the program: no file tells that they are torch's."""
    name = view.globals.get("__name__")
    written = not root and view.code.co_filename == "<string>" and isinstance(name, str)
    return "a method that was written for a class of torch's" if written and f"{name}.".startswith("torch.") else None


def _is_library(name: str) -> bool:
    return files.is_own(name) or name.startswith("<frozen") or files.in_stdlib(name)
