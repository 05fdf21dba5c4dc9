"""The evaluator: runs a frame's bytecode on proxies and fakes, inlining what it calls.

In: a frame whose parameters have sources. Out: either the frame's result, or where and why it had to stop; what was
recorded lies in the recorder, what was read and changed in the heap.

Handlers move values; what operations mean is in `semantics`, `tensors` and `models`. A program's exception travels as
`Raised`, a break as `GraphBreak`; any other exception is a fault of fxloom and is not caught here.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from fxloom_dynamo import _native
from fxloom_dynamo._torch_private import outside_modes
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.evaluation import finalizers
from fxloom_dynamo.graph.modes import Modes
from fxloom_dynamo.graph.recorder import Recorder
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.guard.history import Policy
from fxloom_dynamo.interpreter.budget import SAMPLE, InstructionBudget
from fxloom_dynamo.interpreter.frame import Frame, UnreadParameter
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.interpreter.state import DelayedCalls, Exceptions, Origins, TensorState, Warnings
from fxloom_dynamo.interpreter.warning_filter import WarningFilter
from fxloom_dynamo.libraries import files, torch_functions
from fxloom_dynamo.objects import array_values
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.program_changes import changed_records, changed_slots
from fxloom_dynamo.objects.sentinels import ABSENT, YIELD, Address, FrameObject, Raised, RestartCapture, Traceback
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_dynamo.objects.unguarded import CONFUSIONS, Unguarded, as_numbers
from fxloom_dynamo.semantics import attribute_writes, attributes, calls, iteration, operators, program_warnings
from fxloom_dynamo.semantics.output import delay
from fxloom_dynamo.symbolic_numbers.values import PYTHON_TYPES, refuse_hash
from fxloom_dynamo.tensors import subclasses
from fxloom_interfaces.errors import FxloomError, GraphBreak, InternalError, Site
from fxloom_interfaces.sources import BuiltinsSource, CallSource, GlobalsSource
from fxloom_shapes import ConstraintViolated, FakeMode, FakeTensor
from fxloom_shapes.symbols.options import Tracer

_MAX_DEPTH = 120


class BreakHere(Exception):
    """The top frame reached the step at which this attempt is to break."""


class Evaluator:
    """One capture attempt. break_at: steps of the top frame (counted from 0) at which to break."""

    def __init__(
        self, config: CaptureConfig, fake_mode: FakeMode, policy: Policy, break_at: frozenset[int] = frozenset()
    ) -> None:
        self.config = config
        self.history = policy.history
        self.recorder = Recorder(fake_mode)
        self.heap = ShadowHeap(fake_mode, self.recorder.know_input, policy)
        self.modes = Modes()
        self.exceptions = Exceptions(before=sys.exception())
        self.tensors = TensorState()
        self.delayed = DelayedCalls()
        self.origins = Origins()
        self.warnings = Warnings(WarningFilter(), self.history.warned)
        self.budget = InstructionBudget(config.step_limit, lambda: self.recorder.calls)
        self.break_at = break_at
        self.break_site: Site | None = None
        self.frames: list[Frame] = []
        self.generators: list[TracedGenerator] = []
        self.parameters: dict[str, Any] = {}
        self.finalizable_locals: set[str] = set()
        self.context_variables: dict[int, tuple[Any, Any]] = {}
        self.callee: Any = None
        self.cached_calls = 0
        self.steps = 0
        self._until_sample = SAMPLE
        self._lost: GraphBreak | None = None  # raised where C code called back
        self._connect(fake_mode)

    def _connect(self, fake_mode: FakeMode) -> None:
        """Let the parts ask for what only the evaluator knows."""
        recorder, heap = self.recorder, self.heap
        recorder.sites = self.sites
        recorder.in_protected_block = self._in_protected_block
        recorder.may_be_handled_inside = self._may_be_handled_inside
        recorder.in_transform = lambda: self.tensors.transforms > 0
        recorder.amid_effects = self._has_effects
        recorder.order = self.history.order
        recorder.on_value_needed = self._keep_number
        recorder.override = self._override
        heap.site = self.site
        heap.on_fresh = self.note_made
        heap.on_lost = self._lose
        if fake_mode.env is not None:
            fake_mode.env.tracer = Tracer(self.site, recorder.on_symbol, recorder.asserted)

    def close(self) -> None:
        """Drop the program's objects: an evaluator is full of cycles, and the program may wait for the end of one."""
        for generator in self.generators:
            generator.frame.close()
        self.heap.close()
        self.recorder.close()
        for part in (self, self.exceptions, self.tensors, self.delayed, self.origins):
            for held in vars(part).values():
                if isinstance(held, (dict, list)):
                    held.clear()
        self.exceptions.current = self.exceptions.before = self.exceptions.thrown = self._lost = None

    # ------------------------------------------------------------------ places

    def _keep_number(self, method: str) -> None:
        """Capture again with numbers in the graph where an optimizer's update reads one: it only computes with them."""
        if method == "item" and not self.history.updates_by_numbers and torch_functions.is_update(self.frames[-1].code):
            self.history.updates_by_numbers = True
            raise RestartCapture(self.frames[-1].code.co_qualname)

    def _in_protected_block(self) -> bool:
        return any(frame.info.regions[frame.ip - 1] is not None for frame in self.frames)

    def _may_be_handled_inside(self) -> bool:
        """Whether a function that is inlined may handle what an operator raises at this place: in a `try`, or a `with` not of torch's."""
        for frame in self.frames[1:]:
            for region in frame.info.handlers_of(frame.ip - 1):
                manager = getattr(frame.stack[region.depth - 1], "__self__", None) if frame.info.ends_with(region) else None
                if manager is None or not f"{type(manager).__module__}.".startswith("torch."):
                    return True
        return False

    def _has_effects(self) -> bool:
        """Whether the program has changed something by now that outlives an exception."""
        heap = self.heap
        if self.delayed.after_graph or self.delayed.after_effects or self.context_variables or heap.class_writes:
            return True
        if any(namespace.written for namespace in heap.namespaces.values()):
            return True
        try:
            if changed_records(self.heap):
                return True
        except GraphBreak:  # over an iterator that can't be made again
            return True
        return any(changed_slots(record) for record in list(heap.by_proxy.values()) if record.slots)

    def sites(self) -> tuple[Site, ...]:
        """The program's stack, innermost last."""
        return tuple(frame.site() for frame in self.frames)

    def site(self) -> Site | None:
        """Where the program is, in the user's terms: not within the standard library, torch or fxloom if it can be helped."""
        for frame in reversed(self.frames):
            if not files.is_of_others(frame.code.co_filename):
                return frame.site()
        return self.frames[-1].site() if self.frames else None

    def note_made(self, obj: Any) -> None:
        """Remember where the program made an object, for a break there."""
        if type(obj) not in (types.FunctionType, types.CellType):
            self.origins.steps.setdefault(id(obj), self.steps - 1)

    # ------------------------------------------------------------------ the loop

    def run_top(self, frame: Frame) -> Any:
        """Run the captured frame. Raises BreakHere or GraphBreak with the frame as it was before the instruction."""
        self.frames.append(frame)
        self.parameters = {name: value.original for name, value in frame.locals.items()}
        self.finalizable_locals = {name for name, value in self.parameters.items() if finalizers.runs_code_at_end(value)}
        try:
            return self._loop_top(frame)
        finally:
            self.frames.pop()

    def _loop_top(self, frame: Frame) -> Any:
        ops = frame.info.ops
        while True:
            index = frame.ip
            run, inst = ops[index]
            self.recorder.step = self.steps
            if self.steps in self.break_at:
                raise BreakHere
            self.steps += 1
            frame.ip = index + 1
            try:
                self._until_sample -= 1
                if not self._until_sample:
                    self._sample(frame)
                signal = run(self, frame, inst)
            except Raised as raised:
                if self.exceptions.current is None:
                    self.exceptions.handled_since = self.steps - 1
                if not self.unwind(frame, index, raised):
                    raise
                continue
            except Exception as error:
                self.note_break(error)
                raise
            if signal is not None:
                return frame.result

    def _sample(self, frame: Frame) -> None:
        self._until_sample = SAMPLE
        if self.budget.sample(frame.code):
            graph_break("long_running", f"{self.config.step_limit} instructions without an operator, at {frame.code.co_qualname}")

    def note_break(self, error: Exception) -> None:
        """Remember the innermost place of a break (or a fault of fxloom, which becomes one)."""
        if self.break_site is None:
            self.break_site = getattr(error, "site", None) or self.site()

    def run(self, frame: Frame) -> Any:
        """Run an inlined frame to its end and return its result."""
        if self.resume(frame) is YIELD:
            raise InternalError("dynamo.evaluate", f"{frame.code.co_qualname} yields but is no generator")
        return frame.result

    def resume(self, frame: Frame) -> Any:
        """Run an inlined frame from where it stands to its next signal: RETURN or YIELD."""
        if len(self.frames) > _MAX_DEPTH:
            graph_break("recursion", f"{len(self.frames)} nested calls at {frame.code.co_qualname}")
        self.frames.append(frame)
        ops = frame.info.ops
        try:
            while True:
                index = frame.ip
                run, inst = ops[index]
                frame.ip = index + 1
                try:
                    self._until_sample -= 1
                    if not self._until_sample:
                        self._sample(frame)
                    signal = run(self, frame, inst)
                except Raised as raised:
                    if not self.unwind(frame, index, raised):
                        raise
                    continue
                except Exception as error:
                    self.note_break(error)
                    raise
                if signal is not None:
                    return signal
        finally:
            self.frames.pop()

    def unwind(self, frame: Frame, index: int, raised: Raised) -> bool:
        """Go to the handler of the instruction at `index`; False when there is none: the exception leaves the frame.

        None is entered with what an operator raised on fakes: whether the real one does, and what it says, the run tells.
        """
        exc = raised.exc
        if self.heap.unguarded and isinstance(exc, CONFUSIONS):
            self.heap.reveal()
        if not raised.settled:
            raised.settled = True
            self._set_context(exc)
        traceback = Traceback()
        self.exceptions.tracebacks[id(exc)] = (exc, traceback)
        self.origins.steps[id(traceback)] = self.steps - 1
        region = frame.info.regions[index]
        if region is None:
            return False
        failed = self.exceptions.of_operators.get(id(exc))
        if failed is not None:
            _, self.recorder.split_step, site = failed
            graph_break("operator_raises", f"{type(exc).__name__}: {exc}", site)
        del frame.stack[region.depth :]
        if region.lasti:
            frame.stack.append(index)
        frame.stack.append(exc)
        frame.ip = region.handler
        return True

    def _set_context(self, exc: BaseException) -> None:
        """An exception raised while another is handled refers to it, without a cycle (CPython's _PyErr_SetObject)."""
        handled = self.exceptions.current
        if handled is None or handled is exc:
            return
        link, seen = handled, {id(handled)}
        while (further := link.__context__) is not None and id(further) not in seen:  # a program can make a cycle
            if further is exc:
                link.__context__ = None
                break
            link = further
            seen.add(id(link))
        exc.__context__ = handled

    def handled(self) -> BaseException | None:
        """The exception that the program handles: also one whose handler has called the frame."""
        if self.exceptions.current is not None:
            return self.exceptions.current
        known = self.heap.object_source(sys)
        if self.exceptions.before is None:
            self.heap.guard(CallSource(known, getter=_handles, label="an exception is handled"), GuardKind.TRUTH, False)
            return None
        handled: BaseException = self.heap.translate(self.exceptions.before, CallSource(known, getter=_handled, label="sys.exception()"))
        return handled

    def traceback_of(self, exc: BaseException) -> Any:
        """`exc.__traceback__` as the program sees it."""
        known = self.exceptions.tracebacks.get(id(exc))
        if known is not None:
            return known[1]
        if exc.__traceback__ is None:
            return None
        return self.heap.adopt(exc.__traceback__)  # raised before the frame

    def throw_into(self, frame: Frame, exc: BaseException) -> Any:
        """Resume a suspended generator frame by raising at its yield; the loop's signal."""
        if not self.unwind(frame, frame.ip - 1, Raised(exc)):
            raise Raised(exc, settled=True)
        return self.resume(frame)

    # ------------------------------------------------------------------ running C code

    def native(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call C code. What it raises is the program's exception; Python functions that it calls back are evaluated."""
        try:
            result = _native.intercepted(self._intercept, fn, args, kwargs)
        except (GraphBreak, Raised, InternalError, BreakHere, ConstraintViolated):
            raise
        except BaseException as exc:
            if self._lost is not None:
                self._raise_lost()
            if not isinstance(exc, Exception) and exc is not self.exceptions.thrown:
                raise  # an interrupt of the evaluator, not the program's
            if isinstance(exc, RecursionError) and exc is not self.exceptions.thrown:
                graph_break("recursion", str(exc))  # the evaluator nests deeper than the program
            if self.warnings.filter.found:
                program_warnings.refuse(self)
            raise Raised(self.clean(exc)) from None
        if self._lost is not None:
            self._raise_lost()
        if self.warnings.filter.found:
            program_warnings.refuse(self)
        return result

    def _lose(self, error: GraphBreak) -> None:
        self._lost = error

    def _raise_lost(self) -> None:
        """C code may drop an exception; a break must not be lost."""
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def _intercept(
        self,
        code: types.CodeType,
        function: types.FunctionType,
        values: dict[str, Any],
        *_: Any,
    ) -> Any:
        """A Python function that C code called: evaluated, with its parameters bound already."""
        name = code.co_filename
        if files.is_ours(name) and not files.is_traced(name):
            return _native.UNSEEN
        if files.may_run_for_c_code(name, code):
            return _native.AS_IT_IS
        if self.heap.making is not None:
            self._note_class(values)
        try:
            return calls.call_bound(self, function, values)
        except Raised as raised:
            self.throw_to_native(raised.exc)
        except GraphBreak as error:
            self._lost = error
            raise

    def throw_to_native(self, exc: BaseException) -> NoReturn:
        """Raise the program's exception into the C code that called back."""
        self.exceptions.thrown = exc
        context, exc.__traceback__ = exc.__context__, None
        try:
            raise exc
        finally:
            exc.__context__ = context  # not what the evaluator happens to handle
            del exc  # no cycle through the traceback

    def raised_by_program(self, exc: BaseException) -> bool:
        """True for what the program raised, GeneratorExit and its like included, and not for a break or a fault of fxloom."""
        return exc is self.exceptions.thrown or isinstance(exc, Exception) and not isinstance(exc, FxloomError)

    def _note_class(self, values: dict[str, Any]) -> None:
        """The class that C code is making shows itself first to `__set_name__` or `__init_subclass__`."""
        for value in values.values():
            if isinstance(value, type) and (value.__name__, value.__bases__) == self.heap.making:
                if self.heap.record(value) is None and id(value) not in self.heap.by_original:
                    self.heap.add_fresh(value)

    def clean(self, exc: BaseException) -> BaseException:
        """A program's exception without the evaluator's frames, in the context of what the program handles."""
        refuse_hash(exc)
        exc.__traceback__ = None
        if isinstance(exc.__context__, Raised):
            exc.__context__ = None
        return exc

    def run_untraced(self, act: Callable[[], Any]) -> Any:
        """Run our own code that C code calls back (a traced generator's `__next__`)."""
        return _native.intercepted(None, act, (), {})

    def run_stdlib(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call Python code of the standard library that gives constants, without evaluating it; what it raises is the program's."""
        try:
            result = self.run_untraced(lambda: fn(*args, **kwargs))
        except Exception as exc:
            raise Raised(self.clean(exc)) from None
        if self.warnings.filter.found:
            program_warnings.refuse(self)
        return result

    def call_after_graph(self, function: Callable[..., Any], *args: Any) -> None:
        """Have replacement code make this call of the program's once the graph has run, in its place."""
        delay(self, function, list(args))

    def torch_native(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch; its operators are recorded by the mode."""
        if self.heap.unguarded:
            args, kwargs = as_numbers(fn, args), as_numbers(fn, kwargs)
        self.heap.fill_deep(args)
        if kwargs:
            self.heap.fill_deep(kwargs)
        try:
            result = fn(*args, **kwargs)
        except (GraphBreak, Raised, InternalError, BreakHere, ConstraintViolated):
            raise
        except RecursionError as exc:
            graph_break("recursion", str(exc))
        except Exception as exc:
            self.exceptions.of_operators[id(exc)] = (exc, self.steps - 1, self.site())
            if self.warnings.filter.found:
                program_warnings.of_torch(self)
            raise Raised(self.clean(exc)) from None
        if self.warnings.filter.found:
            program_warnings.of_torch(self)
        return result

    def record_call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Record a call of `fn` itself (an operator, a class), run on fakes."""
        if self.recorder.overriding:
            return self.torch_native(fn, *args, **kwargs)
        if self.heap.unguarded:
            args, kwargs = as_numbers(fn, args), as_numbers(fn, kwargs)
        self.heap.fill_deep(args)
        try:
            return self.recorder.call_function(fn, args, kwargs)
        except (GraphBreak, Raised, InternalError, BreakHere, ConstraintViolated):
            raise
        except RecursionError as exc:
            graph_break("recursion", str(exc))
        except Exception as exc:
            self.exceptions.of_operators[id(exc)] = (exc, self.steps - 1, self.site())
            raise Raised(self.clean(exc)) from None

    def _override(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return subclasses.call(self, func, args, kwargs, subclasses.arguments(args, kwargs))

    def run_real(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the program's on real values, as the program itself would: what it makes is no fake."""
        try:
            with outside_modes(), self.warnings.filter.passing():
                return fn(*args, **kwargs)
        except Exception as exc:
            raise Raised(self.clean(exc)) from None

    # ------------------------------------------------------------------ meaning

    def type_of(self, value: Any) -> type:
        """The class that the program sees."""
        cls = type(value)
        if cls is Array:
            return array_values.type_of(value)
        if issubclass(cls, Unguarded):
            return value.cls  # type: ignore[no-any-return]  # a class
        if cls is FakeTensor:
            return self.recorder.python_type.get(id(value), torch.Tensor)
        if cls is TracedGenerator:
            return types.GeneratorType
        if cls is Traceback:
            return types.TracebackType
        if cls is FrameObject:
            return types.FrameType
        if cls is Address:
            return int
        return PYTHON_TYPES.get(cls, cls)

    def call(self, fn: Any, args: list[Any], kwargs: dict[str, Any] | None = None) -> Any:
        return calls.call(self, fn, args, kwargs or {})

    def inline(self, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate the body of a Python function, without the model that it may have."""
        return calls.inline_function(self, fn, args, kwargs)

    def getattr(self, obj: Any, name: str) -> Any:
        return attributes.load(self, obj, name)

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        """The attribute, or `default` where reading it raises AttributeError."""
        try:
            return attributes.load(self, obj, name)
        except Raised as raised:
            if isinstance(raised.exc, AttributeError):
                self.heap.absent.append((obj, name))
                return default
            raise

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        attribute_writes.store(self, obj, name, value)

    def truth(self, value: Any) -> bool:
        return operators.truth(self, value)

    def iter(self, value: Any) -> Any:
        return iteration.iterate(self, value)

    def next(self, iterator: Any) -> Any:
        """The next item, ABSENT at the end."""
        return iteration.advance(self, iterator)

    def list_of(self, value: Any) -> list[Any]:
        """All items of an iterable."""
        iterator = self.iter(value)
        items = []
        while (item := self.next(iterator)) is not ABSENT:
            items.append(item)
        return items

    def drop_reference(self, name: str) -> NoReturn:
        """Break: the frame drops its reference to a value whose finalizer may call the program."""
        graph_break("finalizer", f"drops {name}, at whose end code of the program runs")

    def may_have_dropped_references(self) -> bool:
        """True when the program may have dropped the last reference to an object that existed before."""
        return finalizers.may_have_dropped_references(self)

    # ------------------------------------------------------------------ names

    def load_local(self, frame: Frame, name: str) -> Any:
        """A local variable, ABSENT if unbound."""
        value = frame.locals.get(name, ABSENT)
        if type(value) is UnreadParameter:
            value = frame.locals[name] = self.heap.translate(value.original, value.source)
        return value

    def global_namespace(self, frame: Frame) -> Any:
        namespace = frame.namespace
        if namespace is None:
            top = self.frames[0]
            source = GlobalsSource() if frame.globals is top.globals else None
            namespace = frame.namespace = self.heap.namespace(frame.globals, source)
        return namespace

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global or builtin; NameError if there is none."""
        value = self.heap.name_get(self.global_namespace(frame), name)
        if value is ABSENT:
            top = self.frames[0]
            source = BuiltinsSource() if frame.builtins is top.builtins else None
            value = self.heap.name_get(self.heap.namespace(frame.builtins, source), name)
            if value is ABSENT:
                error = NameError(f"name {name!r} is not defined")
                error.name = name
                raise Raised(error)
        return value


def _handled(_: Any) -> BaseException | None:
    return sys.exception()


def _handles(_: Any) -> bool:
    return sys.exception() is not None
