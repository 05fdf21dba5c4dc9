"""Capture of one frame: attempts, each from the start, until one ends without a graph break or a refused inlining.

In: a frame that has not started and the region's configuration. Out: its replacement code, inputs, guards, and what `explain`
reports; or a `Skip`. An attempt that meets a break (or, in an inlined call, a refusal) is thrown away, heap and graph with it, and the
next one stops in time at that instruction of the frame. Invariant: an attempt does nothing that the program could see.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
import torch.fx

import fxloom_dynamo.handlers  # fills the opcode registry
import fxloom_dynamo.models.load_all  # noqa: F401  # fills the tables of models
from fxloom_dynamo._torch_private import under_fake_mode
from fxloom_dynamo.breaks import break_error
from fxloom_dynamo.bytecode.continuations import continuation_count, first_own, origin_of
from fxloom_dynamo.codegen.replacement import ReplacementCode
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.evaluation.aliasing_guards import guard_object_aliasing, guard_tensor_aliasing
from fxloom_dynamo.evaluation.break_events import place_of, report_break, report_uncaptured, warn_of_eager
from fxloom_dynamo.evaluation.evaluator import BreakHere, Evaluator
from fxloom_dynamo.evaluation.frame_reports import ENDINGS, FAILS, RAISES, Break, FrameReport
from fxloom_dynamo.evaluation.skip_policy import reason_to_skip, skip_machinery
from fxloom_dynamo.evaluation.tensor_reach import may_use_tensors
from fxloom_dynamo.graph import foreign_backends, random_state
from fxloom_dynamo.graph.modes import in_inference_mode, keep_modes
from fxloom_dynamo.graph.predicted_branches import checked
from fxloom_dynamo.graph.tensor_classes import overrides, plain, without_overrides
from fxloom_dynamo.guard.dynamic_shapes import check_nested, parse_dynamic_shapes
from fxloom_dynamo.guard.entries import CapturedFrame, FrameView, Skip, without_capture
from fxloom_dynamo.guard.history import History, Policy
from fxloom_dynamo.guard.sizes import size_guards
from fxloom_dynamo.interpreter import budget
from fxloom_dynamo.interpreter.frame import Frame, UnreadParameter
from fxloom_dynamo.objects.sentinels import Raised, RestartCapture
from fxloom_dynamo.tensors.module_hooks import runs_backward_hooks
from fxloom_interfaces import meta, regions, telemetry
from fxloom_interfaces.backend import takes_integers
from fxloom_interfaces.errors import BackendCompilerFailed, FxloomError, GraphBreak, GraphRejected, InternalError, Site, Unsupported
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.sources import LocalSource
from fxloom_shapes import ConstraintViolated, DataDependent, EnvOptions, FakeMode, FakeTensor, SymbolEnv, TraceContext

_MAX_ATTEMPTS = 24


def capture_frame(
    view: FrameView, config: CaptureConfig, history: Callable[[], History] = History, root: bool = True
) -> CapturedFrame | Skip:
    """The replacement of a frame, or why it runs as it is.

    history: what earlier calls of its code looked like. root: it is the function that the user had compiled.
    """
    code = view.code
    machinery = skip_machinery(view)
    if machinery is not None:
        return machinery
    reason = reason_to_skip(view, root)
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
        warn_of_eager("break_limit", f"{reason}; explain() shows them", place_of(origin_of(code)))
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
        report_break(found.report)
    if isinstance(found, Skip) and found.fault:
        warn_of_eager(found.fault, found.report.details, place_of(code))
    return found


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
    report = Break("capture_fault", f"{_MAX_ATTEMPTS} attempts did not capture {code.co_qualname}", place_of(code))
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


def _refuse_a_look(error: BaseException | None) -> None:
    """Raise what the user asked for when a dimension is looked at that nothing may look at."""
    if isinstance(error, DataDependent) and error.violated is not None:
        raise error.violated from error


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
                raise self._restart(break_error("recursion", str(error)), ev.steps - 1) from error
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
                raise self._restart(break_error("torch_call", details, ev.site()), ev.steps)
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
        guard_object_aliasing(ev.heap)
        guard_tensor_aliasing(ev.heap, ev.recorder)
        ev.heap.guard_classes()
        assert self.context.env is not None
        ev.heap.guards += size_guards(self.context.env)
        self.history.note_specialized(self.context.env.specialized_sources())
        frame_report = FrameReport(view.code.co_qualname, self.gm, broke, self.number, ev.steps)
        if self.gm is not None:
            telemetry.emit(telemetry.GraphCaptured(view.code.co_qualname, ev.recorder.calls, len(ev.heap.guards), self._site(frame)))
        if broke is not None and broke.key not in ENDINGS:
            report_break(broke)
        captured = CapturedFrame(code, inputs, tuple(ev.heap.guards), frame_report)
        if self.config.on_capture is not None:
            self.config.on_capture(captured)
        if self.config.on_heap is not None:
            self.config.on_heap(ev.heap)
        return captured

    def close(self) -> None:
        """Drop the program's objects. Nothing else refers to the attempt; the collector would find it much later."""
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
                report_break(report)

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
        return without_capture(compiled, self.view.code.co_qualname)

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
        return _GiveUp(Break("backend_rejected", details, place_of(self.view.code)), "backend_failed")

def _fault(error: Exception) -> GraphBreak:
    """A mistake of capture's own: nothing has run yet, so the program goes on as it is, and the report says so."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return break_error("capture_fault", f"{type(error).__name__}: {error} ({where})")


def _backend_name(backend: Any) -> str:
    return getattr(backend, "__name__", type(backend).__name__)
