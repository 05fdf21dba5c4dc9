"""Generators of the program whose frames the evaluator runs.

In: the frame of a generator function, suspended. Out: an object that the evaluator, and C code, can advance, throw into and close; what
it yields is a value as the evaluator holds it. Invariant: its frame is run by the evaluator alone, also where C code iterates it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.frame import Frame
from fxloom_dynamo.objects.sentinels import YIELD, Raised
from fxloom_interfaces.errors import InternalError

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


class TracedGenerator:
    """A generator whose frame the evaluator runs; C code can iterate it like any other."""

    __slots__ = ("__weakref__", "_ev", "finished", "frame", "running", "saved_exception", "started")

    def __init__(self, ev: Interpreter, frame: Frame) -> None:
        self._ev = ev
        self.frame = frame
        self.started = self.finished = self.running = False
        self.saved_exception: BaseException | None = None
        ev.generators.append(self)
        ev.origins.steps[id(self)] = ev.steps - 1

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> Any:
        return self._from_native(lambda: self.advance(None))

    def send(self, value: Any) -> Any:
        return self._from_native(lambda: self.advance(value))

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        exc = kind if isinstance(kind, BaseException) else (value if isinstance(value, BaseException) else kind())
        return self._from_native(lambda: self.throw_in(exc))

    def close(self) -> None:
        self._from_native(self.close_in)

    def _from_native(self, act: Callable[[], Any]) -> Any:
        try:
            return self._ev.run_untraced(act)
        except Raised as raised:
            self._ev.throw_to_native(raised.exc)

    def advance(self, value: Any) -> Any:
        """The next yielded value; Raised(StopIteration) at the end."""
        if self.running:
            raise Raised(ValueError("generator already executing"))
        if self.finished:
            raise Raised(StopIteration())
        if not self.started and value is not None:
            raise Raised(TypeError("can't send non-None value to a just-started generator"))
        self.started = True
        self.frame.stack.append(value)
        return self._resume(lambda: self._ev.resume(self.frame))

    def throw_in(self, exc: BaseException) -> Any:
        if self.finished or not self.started:
            self.finished = True
            raise Raised(exc)
        inner = self._delegate()
        if inner is not None:
            if isinstance(inner, TracedGenerator):
                try:
                    if isinstance(exc, GeneratorExit):
                        inner.close_in()
                    else:
                        return inner.throw_in(exc)
                except Raised as raised:
                    exc = raised.exc
                    if isinstance(exc, StopIteration):  # the inner one ended: its value is that of `yield from`
                        self.frame.stack[-1] = exc.value
                        self.frame.ip = self._after_send()
                        return self._resume(lambda: self._ev.resume(self.frame))
            elif not isinstance(exc, GeneratorExit):
                graph_break("unsupported_opcode", "throw() into a generator that delegates to a foreign iterator")
        return self._resume(lambda: self._ev.throw_into(self.frame, exc))

    def close_in(self) -> None:
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self.throw_in(GeneratorExit())
        except Raised as raised:
            if isinstance(raised.exc, (GeneratorExit, StopIteration)):
                return
            raise
        raise Raised(RuntimeError("generator ignored GeneratorExit"))

    def in_protected_block(self) -> bool:
        """True when suspended where closing it runs code of the program: inside of a `try` or `with`."""
        if not self.started or self.finished:
            return False
        info = self.frame.info
        region = info.regions[self.frame.ip - 1]
        if region is None:
            return False
        return not self._ignores_closing(region.handler)

    def _ignores_closing(self, at: int) -> bool:
        """True when the handler at this instruction lets GeneratorExit pass without running code of the program.

        So do clauses for named exceptions, which GeneratorExit is not one of: `except IndexError:`.
        """
        info = self.frame.info
        instructions = info.body.instructions
        if instructions[at].opname == "PUSH_EXC_INFO":
            at += 1
        while True:
            inst = instructions[at]
            if inst.opname == "CALL_INTRINSIC_1" and inst.arg == 3:
                return True  # from 3.12 on, around the whole body: turns StopIteration into RuntimeError
            if inst.opname == "RERAISE":
                outer = info.regions[at]
                return outer is None or self._ignores_closing(outer.handler)
            if inst.opname in ("COPY", "POP_EXCEPT"):
                at += 1
                continue
            found = getattr(builtins, inst.argval, None) if inst.opname == "LOAD_GLOBAL" else None
            harmless = isinstance(found, type) and issubclass(found, Exception) and inst.argval not in self.frame.globals
            jump = instructions[at + 2] if at + 2 < len(instructions) else None
            if not harmless or instructions[at + 1].opname != "CHECK_EXC_MATCH" or jump is None or "IF_FALSE" not in jump.opname:
                return False
            at = info.targets[at + 2]

    def _resume(self, run: Callable[[], Any]) -> Any:
        ev = self._ev
        outer = ev.exceptions.current
        ev.exceptions.current = self.saved_exception or outer
        self.running = True
        try:
            signal = run()
        except Raised as raised:
            self.finished = True
            if isinstance(raised.exc, StopIteration):
                error = RuntimeError("generator raised StopIteration")
                error.__cause__ = error.__context__ = raised.exc
                raise Raised(error) from None
            raise
        finally:
            self.running = False
            inner = ev.exceptions.current
            ev.exceptions.current = outer
        if signal is YIELD:
            self.saved_exception = inner if inner is not outer else None
            return self.frame.result
        self.finished = True
        value = self.frame.result
        raise Raised(StopIteration(value) if value is not None else StopIteration())

    def _delegate(self) -> Any:
        """The iterator of a suspended `yield from`."""
        frame = self.frame
        if frame.ip < len(frame.info.ops):
            inst = frame.info.body.instructions[frame.ip]
            if inst.opname == "RESUME" and (inst.arg or 0) & 3 >= 2:
                return frame.stack[-1]
        return None

    def _after_send(self) -> int:
        """Index where a finished `yield from` goes on, the value on the stack."""
        frame = self.frame
        for index in range(frame.ip - 1, -1, -1):
            if frame.info.body.instructions[index].opname == "SEND":
                target = frame.info.targets[index]
                return target + 1 if frame.info.body.instructions[target].opname == "END_SEND" else target
        raise InternalError("dynamo.evaluate", "a delegating generator without SEND")
