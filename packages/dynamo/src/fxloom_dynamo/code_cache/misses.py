"""Misses of the code cache: what happens when the hook finds no entry whose guards hold.

In: a frame that has not started, of a region. Out: an entry, or the frame is left to the interpreter. The C++ hook finds and runs
entries; here is what it asks for when it finds none: the policy (skip, give up after too many compilations) and the
call into the evaluator. Compilation is serialised by one lock; running is not.
"""

from __future__ import annotations

import builtins
import dis
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo._torch_private import MODULE_CALLS, foreign_modes
from fxloom_dynamo.bytecode import Body, Instruction, assemble
from fxloom_dynamo.bytecode.disassemble import localsplus_names
from fxloom_dynamo.code_cache.compiled_region import CompiledRegion
from fxloom_dynamo.guard.entries import INPUTS_LOCAL, CapturedFrame, FrameView, Skip
from fxloom_dynamo.guard.guards import Guard, deduplicate, global_state_guard
from fxloom_dynamo.guard.messages import explain, remedy
from fxloom_dynamo.guard.tree import FrameNames, build_tree
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import RecompileLimitExceeded, Site
from fxloom_interfaces.sources import LocalSource, Source

if torch.__version__.split("+")[0] != _native.TORCH_VERSION.split("+")[0]:
    raise ImportError(
        f"fxloom-dynamo was built against torch {_native.TORCH_VERSION} and this is torch {torch.__version__}; torch's C++ API "
        "changes between releases. Build it again: python -m pip install --force-reinstall --no-deps fxloom-dynamo"
    )

#: code that the user wants skipped even where it is what he has compiled
skipped: weakref.WeakSet[types.CodeType] = weakref.WeakSet()

#: builtins that capture works with, as they are; others (`print`, `__import__`) a program may replace
_USED = frozenset(
    ["len", "isinstance", "issubclass", "getattr", "setattr", "hasattr", "delattr", "iter", "next", "any", "all", "sum", "min", "max"]
    + ["sorted", "id", "callable", "vars", "repr", "hash"]
)
_BUILTINS = tuple((name, value) for name, value in vars(builtins).items() if name in _USED or isinstance(value, type))

_lock = threading.RLock()
_frozen: ContextVar[bool] = ContextVar("fxloom_only_compiled", default=False)


@contextmanager
def only_compiled() -> Iterator[None]:
    """Within the block nothing new is compiled; frames without an entry that fits run as they are."""
    token = _frozen.set(True)
    try:
        yield
    finally:
        _frozen.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class EntryRecord:
    """What Python keeps of an entry, for explanations and reports. Holds no value of the frame it was made from."""

    captured: CapturedFrame
    guards: tuple[Guard, ...]

    def explain(self, guard: int, view: FrameView) -> str:
        """Why the guard fails on the frame, in the user's terms."""
        return explain(self.guards[guard], view)

    def remedy(self, guard: int, view: FrameView) -> str:
        """What to do about it."""
        return remedy(self.guards[guard], view)


def _builtins_replaced() -> bool:
    """True while the program has a builtin of its own in place of one that capture works with: frames run as they are."""
    current = builtins.__dict__
    for name, value in _BUILTINS:  # noqa: SIM110  # any() may be among them
        if current.get(name) is not value:
            return True
    return False


#: captures of one call: the first may change what it depends on (torch fills tables of its own when it is first used)
_TRIES = 2


class MissCallback:
    """What the hook calls, made for one region. False: an entry was installed; True: look again, another thread may have.

    None: the frame runs as it is; Ellipsis: so does what it calls.
    """

    def __init__(self, region: weakref.ref[CompiledRegion]) -> None:
        self._region = region

    def __call__(self, view: tuple[Any, ...], failures: list[tuple[EntryRecord, int]]) -> bool | types.EllipsisType | None:
        region = self._region()
        if region is None or _builtins_replaced():
            return None
        frame = FrameView(*view)
        try:
            return _compile_frame(region, frame, failures)
        finally:
            frame.locals.clear()  # the frame alone holds its arguments


def _compile_frame(
    region: CompiledRegion, view: FrameView, failures: list[tuple[EntryRecord, int]]
) -> bool | types.EllipsisType | None:

    # Not at the top: most of the package is the evaluator, and `import fxloom_dynamo` need not load it.
    from fxloom_dynamo.evaluation.attempts import capture_frame

    code, config = view.code, region.config
    with _lock:
        entries = len(region.native.records(code))
        if entries > len(failures):
            return True  # another thread compiled the frame while this one waited
        reason = failures[0][0].explain(failures[0][1], view) if failures else ""
        if entries >= config.recompile_limit:
            if any(getattr(record.captured.info, "graph", record) is not None for record in region.native.records(code)):
                record, guard = failures[0]
                for other in _rest_of_module_call(view, failures):
                    region.native.give_up(other)
                why = f"it was compiled {entries} times (recompile_limit); the last time because {reason}"
                what_to_do = f"{record.remedy(guard, view)}, or raise recompile_limit."
                if region.history(code).only_tensors:
                    what_to_do += " The backend got a graph for each size and number, since it has no attribute takes_integers = True."
                _give_up(region, view, "recompile_limit", why, what_to_do)
            else:
                region.native.give_up(code)  # nothing is lost: there was no operator in it
            return None
        if _frozen.get() or foreign_modes():
            return None  # this call only: operators have to run one by one
        for _ in range(_TRIES):
            state = global_state_guard()
            with telemetry.phase("dynamo.frame"):
                captured = capture_frame(view, config, lambda: region.history(code), code is region.root)
            if isinstance(captured, Skip):
                return _skip(region, code, captured)
            guards = deduplicate((state, *captured.guards))
            tree = build_tree(guards, captured.inputs, FrameNames.of(code))
            failed = tree.check(_parameters(view), view.closure, view.globals, view.builtins, view.function)
            if failed < 0:
                break
        else:  # its entry would never be used
            why = f"a guard does not hold for the very call it was made from: {explain(guards[failed], view)}"
            _give_up(region, view, "guard_fails", why, "The call itself seems to change what it depends on; break the graph before that.")
            return None
        variables = localsplus_names(captured.code)
        slot = variables.index(INPUTS_LOCAL) if INPUTS_LOCAL in variables else -1
        region.native.install(code, captured.code, tree, slot, EntryRecord(captured, guards))
        if telemetry.wants_artifacts():
            _write_artifacts(code, captured.code, guards)
        telemetry.emit(telemetry.FrameCompiled(code.co_qualname, reason, _site(code)))
        return False


def _rest_of_module_call(view: FrameView, failures: list[tuple[EntryRecord, int]]) -> list[types.CodeType]:
    """The other frames of the call of a module, `forward` last, where this one is torch's and what changes is an argument.

    They are handed the same argument, so each would be compiled up to the limit again.
    """
    if view.code not in MODULE_CALLS or not failures:
        return []
    record, guard = failures[0]
    source: Source | None = record.guards[guard].source
    while source is not None and source.parent is not None:
        source = source.parent
    forward = getattr(getattr(type(view.locals.get("self")), "forward", None), "__code__", None)
    if not isinstance(source, LocalSource) or source.local not in ("args", "kwargs") or forward is None:
        return []
    return [*(code for code in MODULE_CALLS if code is not view.code), forward]


def _skip(region: CompiledRegion, code: types.CodeType, skip: Skip) -> types.EllipsisType | None:
    """Let a frame that is not captured run as it is, for as long as the reason holds."""
    if skip.closed and skip.this_call:
        return ...
    if skip.closed:
        _native.close_code(code)
    elif skip.for_good:
        _native.skip_code(code)
    elif skip.this_call and region.plain_calls.setdefault(code, 0) < region.config.recompile_limit:
        region.plain_calls[code] += 1
    else:
        region.native.give_up(code)
    return None


def _write_artifacts(before: types.CodeType, after: types.CodeType, guards: tuple[Guard, ...]) -> None:
    """Guards in words and bytecode before and after, for the debug folder."""
    for name, code in (("bytecode_before.txt", before), ("bytecode_after.txt", after)):
        head = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        telemetry.emit(telemetry.ArtifactWritten(name, f"{head}\n{dis.Bytecode(code).dis()}"))
    telemetry.emit(telemetry.ArtifactWritten("guards.txt", "".join(f"{guard}\n" for guard in guards)))


def _give_up(region: CompiledRegion, view: FrameView, kind: str, why: str, what_to_do: str) -> None:
    code = view.code
    name = code.co_qualname
    module = view.locals.get("self")
    if isinstance(module, torch.nn.Module):
        name = f"{name} of a {type(module).__qualname__}"
    place = f"{name} ({code.co_filename}:{code.co_firstlineno})"
    if region.config.fullgraph:
        raise RecompileLimitExceeded(f"fxloom does not compile {place} again: {why}. {what_to_do}")
    region.native.give_up(code)
    telemetry.emit(telemetry.GraphBroke("frame left to eager", why, what_to_do, _site(code)))
    telemetry.ran_eager(kind, why, f"fxloom runs {place} in eager from now on: {why}. {what_to_do}", _site(code))


def _parameters(view: FrameView) -> list[Any]:
    """The frame's parameters by slot; None where a slot is unbound, which no guard reads."""
    return [view.locals.get(name) for name in view.code.co_varnames]


def _site(code: types.CodeType) -> Site:
    return Site(code.co_filename, code.co_firstlineno, code.co_qualname)


def _retire_code() -> types.CodeType:
    """`NOP; return None` without RESUME: run by the hook to end a frame that it owns (3.12 and later)."""

    def template() -> None: ...

    body = [Instruction("NOP"), Instruction("LOAD_CONST", argval=None), Instruction("RETURN_VALUE")]
    return assemble(Body(body), template.__code__, name="<fxloom>")


_native.set_retire_code(_retire_code())
