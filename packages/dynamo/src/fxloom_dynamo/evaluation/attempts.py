"""Capture of one frame: attempts, from the start each, until one ends without a surprise.

In: a frame that has not started and the region's configuration. Out: its replacement code, inputs, guards, and what
`explain` reports. An attempt that meets a break (or, in an inlined call, a refusal) is thrown away, heap and graph with
it, and the next one stops in time at that instruction of the frame.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import traceback
import types
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
import torch.fx

import fxloom_dynamo.handlers  # fills the opcode registry
import fxloom_dynamo.models.load_all  # noqa: F401  # fills the tables of models
from fxloom_dynamo._torch_private import storage_id, under_fake_mode
from fxloom_dynamo.breaks import CATALOGUE
from fxloom_dynamo.bytecode.continuations import continuation_count, first_own, origin_of
from fxloom_dynamo.bytecode.source_lines import source_line
from fxloom_dynamo.codegen.replacement import ReplacementCode
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.evaluation.evaluator import BreakHere, Evaluator
from fxloom_dynamo.evaluation.reports import ENDINGS, FAILS, RAISES, Break, FrameReport
from fxloom_dynamo.evaluation.tensor_reach import may_use_tensors
from fxloom_dynamo.graph import foreign_backends, random_state
from fxloom_dynamo.graph.modes import in_inference_mode, keep_modes
from fxloom_dynamo.graph.predicted_branches import checked
from fxloom_dynamo.graph.tensor_classes import overrides, plain, without_overrides
from fxloom_dynamo.guard.dynamic_shapes import check_nested, parse_dynamic_shapes
from fxloom_dynamo.guard.entries import GENERATORS, CapturedFrame, FrameView, Skip, without_capture
from fxloom_dynamo.guard.guards import Guard, GuardKind
from fxloom_dynamo.guard.history import History, Policy
from fxloom_dynamo.guard.sizes import size_guards
from fxloom_dynamo.interpreter import budget
from fxloom_dynamo.interpreter.frame import Frame, UnreadParameter, code_info
from fxloom_dynamo.libraries import files
from fxloom_dynamo.objects.program_changes import changed_records
from fxloom_dynamo.objects.sentinels import Raised, RestartCapture, own_dict
from fxloom_dynamo.tensors.module_hooks import runs_backward_hooks
from fxloom_interfaces import meta, regions, telemetry
from fxloom_interfaces.backend import takes_integers
from fxloom_interfaces.errors import BackendCompilerFailed, FxloomError, GraphBreak, GraphRejected, InternalError, Site, Unsupported
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.sources import LocalSource, SizeSource, Source
from fxloom_shapes import ConstraintViolated, DataDependent, EnvOptions, FakeMode, FakeTensor, SymbolEnv, TraceContext

_MAX_ATTEMPTS = 24
#: builtins that see the local variables of the frame that calls them
_READS_FRAME = frozenset({"locals", "exec", "eval"})


def capture_frame(
    view: FrameView, config: CaptureConfig, history: Callable[[], History] = History, root: bool = True
) -> CapturedFrame | Skip:
    """The replacement of a frame, or why it runs as it is.

    history: what earlier calls of its code looked like. root: it is the function that the user had compiled.
    """
    code = view.code
    if _is_compiled_code(view.globals):
        return Skip("code of a compiled graph", for_good=True, closed=True)
    if files.is_other_compiler(code.co_filename):
        return Skip("another compiler's call; what it runs is its own", for_good=True, closed=True)
    if code.co_filename.startswith("<frozen importlib"):
        return Skip("the machinery of imports; modules that it runs are no part of the region", for_good=True, closed=True)
    if code.co_name == "__torch_dispatch__":
        return Skip("the dispatcher calls it for one operator at a time", for_good=True, closed=True)
    reason = _skip_reason(code, root) or _of_torchs_class(view, root)
    if reason is not None:
        if root:
            report_uncaptured(code, config, reason)
        return Skip(reason, for_good=not root)
    if root and config.dynamic_shapes:
        check_nested(parse_dynamic_shapes(config.dynamic_shapes), view.locals)
    if runs_backward_hooks(view):
        return Skip("it calls a module that watches its gradients", this_call=True)
    if not root and not may_use_tensors(view):
        return Skip("it has nothing to do with tensors", this_call=True)
    if budget.is_long(origin_of(code)):
        return Skip(f"{code.co_qualname} evaluates long without meeting an operator")
    if continuation_count(code) > config.break_limit:
        reason = f"more than {config.break_limit} graph breaks (break_limit) in {origin_of(code).co_qualname}"
        _warn("break_limit", f"{reason}; explain() shows them", _place(origin_of(code)))
        return Skip(reason)
    collecting = gc.isenabled()
    gc.disable()  # an attempt makes tens of thousands of objects that live as long as it does
    known = history()
    try:
        found = _attempts(view, config, known)
    finally:
        known.answers.clear()
        if collecting:
            gc.enable()
    if isinstance(found, Skip) and found.report is not None:
        _report(found.report)
    if isinstance(found, Skip) and found.fault:
        _warn(found.fault, found.report.details, _place(code))
    return found


def report_uncaptured(code: types.CodeType, config: CaptureConfig, reason: str) -> None:
    """Report that the function which the user had compiled is none to be captured; Unsupported with `fullgraph`."""
    report = Break("not_captured", f"{code.co_qualname} is {reason}", _place(code))
    if config.fullgraph:
        raise Unsupported(str(report))
    _report(report)


def _place(code: types.CodeType) -> Site:
    line = code.co_firstlineno
    return Site(code.co_filename, line, code.co_qualname, source_line(code.co_filename, line))


def _report(broke: Break) -> None:
    """Report a break to whoever listens; one that is a fault of ours to the user too."""
    kind = CATALOGUE.get(broke.key)
    hint = kind.hint if kind else ""
    telemetry.emit(telemetry.GraphBroke(broke.key, broke.details, hint, broke.site))
    if broke.key == "capture_fault":
        where = f"{broke.site.function} ({broke.site.file}:{broke.site.line})" if broke.site is not None else "a function"
        text = f"fxloom made a mistake while it captured {where}, which runs in eager there: {broke.details}. {hint}"
        telemetry.ran_eager("capture_fault", broke.details, text, broke.site)


def _warn(kind: str, cause: str, site: Site) -> None:
    """Tell of a function that runs in eager from `site` on."""
    text = f"fxloom runs {site.function} ({site.file}:{site.line}) in eager from now on: {cause}"
    telemetry.ran_eager(kind, cause, text, site)


def _attempts(view: FrameView, config: CaptureConfig, history: History) -> CapturedFrame | Skip:
    code = view.code
    breaks: dict[int, Break] = {}
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            with telemetry.phase("dynamo.capture"), closing(_Attempt(view, config, history, breaks, attempt)) as running:
                return running.run()
        except _Restart as restart:
            if restart.report.key == "uninitialized" and not history.uninitialized:
                history.uninitialized = True
                return Skip(restart.report.details, closed=True, this_call=True)
            if config.fullgraph and restart.report.key not in ENDINGS:
                first = next(iter(breaks.values()), restart.report)  # what this attempt tried to end before
                raise Unsupported(str(first)) from restart.__cause__
            if restart.step in breaks:
                return Skip(f"{restart.report.key}: {restart.report.details}", restart.report)
            breaks[restart.step] = restart.report
        except RestartCapture:
            continue
        except ConstraintViolated:
            raise  # what the user promised of a size does not hold
        except _GiveUp as give_up:
            if config.fullgraph:
                first = next(iter(breaks.values()), give_up.report)  # what the last attempt tried to end before
                raise Unsupported(str(first)) from give_up.__cause__
            return Skip(f"{give_up.report.key}: {give_up.report.details}", give_up.report, fault=give_up.fault)
    report = Break("capture_fault", f"{_MAX_ATTEMPTS} attempts did not capture {code.co_qualname}", _place(code))
    if config.fullgraph:
        raise Unsupported(str(report))
    return Skip(report.details, report)


class _Restart(Exception):
    """Start again and break at `step`."""

    def __init__(self, step: int, report: Break) -> None:
        super().__init__(step)
        self.step = step
        self.report = report


class _GiveUp(Exception):
    """The frame can't be captured at all. fault: as in `Skip`."""

    def __init__(self, report: Break, fault: str = "") -> None:
        super().__init__(report)
        self.report = report
        self.fault = fault


def _is_compiled_code(global_names: dict[str, Any]) -> bool:
    """True for what runs a compiled graph: the autograd engine calls it (a graph's backward) while a region is live."""
    package = str(global_names.get("__name__", "")).partition(".")[0]
    return package.startswith("fxloom_") and package != __package__


#: frames of their own until CPython 3.12
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


def _skip_reason(code: types.CodeType, root: bool) -> str | None:
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


def _refuse_a_look(error: BaseException | None) -> None:
    """Raise what the user asked for when a dimension is looked at that nothing may look at."""
    if isinstance(error, DataDependent) and error.violated is not None:
        raise error.violated from error


_CONTEXTLIB = contextlib.__file__


def _is_library(name: str) -> bool:
    return files.is_own(name) or name.startswith("<frozen") or files.in_stdlib(name)


class _Attempt:
    """One run of the evaluator over the frame."""

    def __init__(
        self, view: FrameView, config: CaptureConfig, history: History, breaks: dict[int, Break], number: int
    ) -> None:
        self.view = view
        self.config = config
        self.breaks = breaks
        self.number = number
        takes_numbers = config.backend is None or takes_integers(config.backend)  # others would trace with the numbers at hand
        by_itself = config.fullgraph and takes_numbers
        scalars, shapes = config.capture_scalar_outputs, config.capture_dynamic_output_shape_ops
        env = SymbolEnv(
            EnvOptions(
                duck=config.duck_shapes,
                capture_scalars=(by_itself if scalars is None else scalars) or history.updates_by_numbers,
                capture_shapes=by_itself if shapes is None else shapes,
                capture_indices=takes_numbers,
                one_graph=config.fullgraph,
                compiled_values={} if config.fullgraph else history.specialized,
            )
        )
        # a real call for a device that is not there has to raise what eager raises
        self.context = TraceContext(FakeMode(env, absent_devices=not config.runs or under_fake_mode()), env)
        self.history = history
        policy = Policy(history, config.dynamic, parse_dynamic_shapes(config.dynamic_shapes), history.only_tensors)
        self.ev = Evaluator(config, self.context.fake_mode, policy, frozenset(breaks))
        self.gm: torch.fx.GraphModule | None = None

    def run(self) -> CapturedFrame:
        view, ev = self.view, self.ev
        local_values = {name: UnreadParameter(value, LocalSource(name)) for name, value in view.locals.items()}
        frame = Frame(view.code, view.function, view.globals, view.closure, local_values, 0)
        frame.builtins = view.builtins
        broke: Break | None = None
        with self.context.activate():
            try:
                with ev.modes.capturing(), ev.recorder.recording(), ev.warnings.filter.taking(ev.heap):
                    ev.run_top(frame)
            except BreakHere:
                broke = self.breaks[ev.steps]
                if frame.ip < first_own(view.code, frame.info.body.instructions):
                    raise _GiveUp(broke) from None
            except RestartCapture:
                raise
            except GraphBreak as error:
                _refuse_a_look(error)
                ev.heap.reveal_for(error.key)
                raise self._restart(error, ev.steps - 1) from error
            except RecursionError as error:
                raise self._restart(GraphBreak("recursion", str(error)), ev.steps - 1) from error
            except ConstraintViolated:
                raise
            except Exception as fault:
                if isinstance(fault, FxloomError) and not isinstance(fault, InternalError):
                    raise
                ev.heap.reveal_for("capture_fault")
                raise self._restart(_fault(fault), ev.steps - 1) from fault
            except Raised as raised:
                details = f"{type(raised.exc).__name__}: {raised.exc}"
                if id(raised.exc) in ev.exceptions.of_operators:
                    _, step, site = ev.exceptions.of_operators[id(raised.exc)]
                    raise _Restart(step, Break(FAILS, details, site or self._site(frame))) from raised.exc
                raise _Restart(ev.steps - 1, Break(RAISES, details, self._site(frame))) from raised.exc
            if ev.recorder.regions:
                details = "a region (torch.device, inference mode, DisableTorchFunctionSubclass) that does not end in the graph"
                raise self._restart(GraphBreak("torch_call", details, ev.site()), ev.steps)
            if ev.heap.arrays_from_outside and ev.recorder.writes_inputs():
                # their memory may be that of other arrays and tensors
                raise _GiveUp(Break("mutates_foreign_state", "writes while NumPy arrays are among the inputs", self._site(frame)))
            if ev.modes.inference_begins is not None and ev.recorder.calls != ev.modes.calls_in_inference:
                step, site = ev.modes.inference_begins
                raise _Restart(step, Break("torch_call", "inference mode for a part of a graph", site))
            if broke is not None and ev.exceptions.current is not None:
                step = ev.exceptions.handled_since
                raise _Restart(step, Break(RAISES, f"a break inside of an except block ({broke.key})", broke.site))
            self._check_generators(frame)
            try:
                ev.recorder.bind_symbols()
                residual = ReplacementCode(ev, frame, self._compile)
                code, inputs = residual.finish_return() if broke is None else residual.finish_break(frame.ip, self._unless_it_raises(broke))
            except RestartCapture:
                raise
            except GraphBreak as error:
                _refuse_a_look(error)
                ev.heap.reveal_for(error.key)
                raise self._cannot_end(error, frame) from error
            except RecursionError as error:
                raise _GiveUp(Break("recursion", str(error), self._site(frame))) from error
            except (FxloomError, ConstraintViolated, _Restart, _GiveUp):
                raise
            except Exception as fault:
                ev.heap.reveal_for("capture_fault")
                raise _GiveUp(Break("capture_fault", _fault(fault).details, self._site(frame))) from fault
        self._guard_aliasing()
        self._guard_tensor_aliasing()
        ev.heap.guard_classes()
        assert self.context.env is not None
        ev.heap.guards += size_guards(self.context.env)
        self.history.note_specialized(self.context.env.specialized_sources())
        frame_report = FrameReport(view.code.co_qualname, self.gm, broke, self.number, ev.steps)
        if self.gm is not None:
            telemetry.emit(telemetry.GraphCaptured(view.code.co_qualname, ev.recorder.calls, len(ev.heap.guards), self._site(frame)))
        if broke is not None and broke.key not in ENDINGS:
            _report(broke)
        captured = CapturedFrame(code, inputs, tuple(ev.heap.guards), frame_report)
        if self.config.on_capture is not None:
            self.config.on_capture(captured)
        if self.config.on_heap is not None:
            self.config.on_heap(ev.heap)
        return captured

    def close(self) -> None:
        """Let go of the program's objects. Nothing else refers to the attempt; the collector would find it much later."""
        if self.config.on_heap is None:
            self.ev.close()
            self.context.fake_mode.close()
        vars(self).clear()

    def _site(self, frame: Frame) -> Site | None:
        return frame.site()

    def _restart(self, error: GraphBreak, step: int) -> _Restart:
        site = error.site or self.ev.break_site
        earlier = self.ev.recorder.split_step
        if earlier is not None and earlier < step and earlier not in self.breaks:
            step = earlier
        return _Restart(step, Break(error.key, error.details, site))

    def _unless_it_raises(self, broke: Break) -> Callable[[], None] | None:
        """What to call when the instruction at which the frame ends, for good as it seems, does not raise after all."""
        if broke.key != FAILS:
            return None
        report = Break("operator_raises", broke.details, broke.site)
        fullgraph, reported = self.config.fullgraph, False

        def survived() -> None:
            nonlocal reported
            if fullgraph:
                raise Unsupported(str(report))
            if not reported:
                reported = True
                _report(report)

        return survived

    def _cannot_end(self, error: GraphBreak, frame: Frame) -> Exception:
        """A live object can't be made again: break where it was made, if that is known."""
        report = Break(error.key, error.details, error.site or self._site(frame))
        for blamed in self.ev.origins.not_rebuilt:
            if blamed not in self.breaks:
                return _Restart(blamed, report)
        for generator in self.ev.generators:
            step = self.ev.origins.steps.get(id(generator))
            if error.key == "cannot_rebuild" and "TracedGenerator" in error.details and step is not None:
                if step not in self.breaks:
                    return _Restart(step, report)
        return _GiveUp(report)

    def _check_generators(self, frame: Frame) -> None:
        """A suspended generator with a pending `finally` or `with` runs code when it is dropped.

        When that is only the frame's own variables tell, not those of continuations: the frame runs as it is.
        """
        for generator in self.ev.generators:
            if generator.in_protected_block():
                details = f"a generator ({generator.frame.code.co_qualname}) that is suspended in a try or with block"
                raise _GiveUp(Break("cannot_rebuild", details, self._site(frame)))

    # ------------------------------------------------------------------ the graph

    def _compile(self, outputs: list[FakeTensor]) -> Callable[..., Any] | None:
        recorder = self.ev.recorder
        self._refuse_predictions()
        if not recorder.calls and not outputs:
            return None
        graph = recorder.graph
        results: list[torch.Tensor] = [*outputs, *([] if recorder.predicted is None else [recorder.predicted])]
        graph.output(tuple(recorder._argument(value) for value in results))
        output = next(iter(reversed(graph.nodes)))
        meta.set_fake(output, tuple(results))
        gm = graph_module(recorder.root, graph, "Captured")
        self.gm = gm
        if self.ev.modes.inference_begins is None:
            compiled = self._call_backend(gm)
        else:
            with torch.inference_mode():
                compiled = in_inference_mode(self._call_backend(gm))
        if recorder.overriding:
            reals = [real for _, real, _ in recorder.inputs]
            places = tuple(at for at, real in enumerate(reals) if isinstance(real, torch.Tensor) and overrides(type(real)))
            compiled = without_overrides(compiled, places)
        if recorder.predicted is not None:
            compiled = checked(compiled, random_state.generators(recorder) if random_state.draws(recorder) else [])
        if any(node.target in regions.MODE_CHANGES for node in graph.nodes if node.op == "call_function"):
            compiled = keep_modes(compiled, self.ev.modes.entry)
        return without_capture(compiled)

    def _refuse_predictions(self) -> None:
        """A graph that writes must not run where the program might have raised before: break at the first such branch."""
        recorder = self.ev.recorder
        if not recorder.predictions or not recorder.writes_inputs():
            return
        first = recorder.predictions[0]
        report = Break("data_dependent", "a branch on a tensor's values that may raise, in a graph that writes to its inputs", first.site)
        raise _GiveUp(report) if first.step in self.breaks else _Restart(first.step, report)

    def _call_backend(self, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        backend = self.config.backend
        if backend is None:
            return gm.forward
        example_inputs = [plain(real) if isinstance(real, torch.Tensor) else real for _, real, _ in self.ev.recorder.inputs]
        # whoever traces the graph runs its changes of modes
        call = keep_modes(backend, self.ev.modes.entry)
        foreign = not takes_integers(backend)
        if foreign and not all(isinstance(given, torch.Tensor) for given in example_inputs):
            with telemetry.phase("dynamo.backend"):
                given_back = foreign_backends.offer(call, gm, len(example_inputs))
            if given_back is None:
                self.history.only_tensors = True
                raise RestartCapture("a backend that gets graphs of tensors only")
            return given_back
        try:
            with telemetry.phase("dynamo.backend"):
                compiled = call(gm, example_inputs)
        except GraphRejected as error:
            _refuse_a_look(error.__cause__)
            step = self.ev.recorder.step_of.get(error.node)
            if step is None or step in self.breaks:
                raise self._failed(error) from error
            site = meta.get_site(error.node)
            raise _Restart(step, Break(FAILS if error.raises else "backend_rejected", error.reason, site)) from error
        except ConstraintViolated:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if not callable(compiled):
            raise self._failed(TypeError(f"returned a {type(compiled).__name__}, no callable"))
        if foreign and not foreign_backends.returns_graph(compiled, gm):
            self.history.only_tensors = True
        return compiled

    def _failed(self, error: Exception) -> Exception:
        """What to raise when the backend did not compile the graph."""
        name = _backend_name(self.config.backend)
        if not self.config.suppress_errors:
            return BackendCompilerFailed(name, error)
        details = f"backend {name!r} failed (suppress_errors): {type(error).__name__}: {error}"
        return _GiveUp(Break("backend_rejected", details, _place(self.view.code)), "backend_failed")

    def _guard_aliasing(self) -> None:
        """What the program writes to must not be what it reads under another name."""
        heap = self.ev.heap
        written = {id(record.original) for record, _ in changed_records(self.ev.heap)}
        if not written:
            return
        groups: dict[type, list[Any]] = {}
        for record in heap.by_proxy.values():
            if record.kind in ("list", "dict", "set", "deque", "OrderedDict", "defaultdict", "instance", "iterator"):
                groups.setdefault(type(record.original), []).append(record)
        for records in groups.values():
            own = any(
                id(record.original) in written or id(_dict_of(record.original)) in written
                for record in records
            )
            sources = [record.source for record in records if not _constant(record.source)]
            if own and len(sources) > 1:
                heap.guards.append(Guard(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]), None))


    def _guard_tensor_aliasing(self) -> None:
        """Tensors that were different objects still are; where the graph writes, sharing of storage is as it was."""
        heap, recorder = self.ev.heap, self.ev.recorder
        known = [(real, source) for _, real, source in recorder.input_info.values() if not _constant(source)]
        if len(known) < 2:
            return
        sources = [source for _, source in known]
        heap.guards.append(Guard(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]), None))
        if not recorder.writes_inputs():
            return
        by_storage: dict[int, list[tuple[torch.Tensor, Source]]] = {}
        for real, source in known:
            if real.layout is torch.strided:
                by_storage.setdefault(storage_id(real), []).append((real, source))
        leaders = [members[0][1] for members in by_storage.values()]
        if len(leaders) > 1:
            heap.guards.append(Guard(leaders[0], GuardKind.DISTINCT_STORAGES, tuple(leaders[1:]), None))
        for members in by_storage.values():
            if len(members) > 1:
                together = [source for _, source in members]
                heap.guards.append(Guard(together[0], GuardKind.SAME_STORAGE, tuple(together[1:]), None))
                for real, source in members:
                    offset = SizeSource(source, "storage_offset")
                    heap.guards.append(Guard(offset, GuardKind.EQUALITY, real.storage_offset(), None))


def _fault(error: Exception) -> GraphBreak:
    """A mistake of capture's own: nothing has run yet, so the program goes on as it is, and the report says so."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return GraphBreak("capture_fault", f"{type(error).__name__}: {error} ({where})")


def _dict_of(obj: Any) -> Any:
    return own_dict(obj) if type(obj).__dictoffset__ else None


def _constant(source: Any) -> bool:
    while source.parent is not None:
        source = source.parent
    return type(source).__name__ == "ObjectSource"


def _backend_name(backend: Any) -> str:
    return getattr(backend, "__name__", type(backend).__name__)
