"""Run the autograd engine over the program's fakes, and functionalize what it does.

In: outputs of the program, values that stand for their gradients, where gradients end. Out: the values of the gradients in the
functional log. A gradient that reaches a boundary goes on upstream of it in the recorded program; what that part adds to other
gradients belongs to an earlier stage, and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge

from fxloom_aot._torch_private import no_autocast, run_autograd_engine
from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.views import UnsupportedView
from fxloom_aot.recording.modes import anomaly_detection_off, restoring_modes
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.tracing.stages import Source
from fxloom_aot.tracing.upstream_gradients import drop_upstream_part
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_interfaces.telemetry import phase
from fxloom_shapes import FakeTensor, make_fake, symbolic_kernels

#: turns faults that belong to no operator into the rejection of a node
Rejecting = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class BackwardEngine:
    """See the module's docstring. first_node: a node of the program, to reject where nothing was recorded. symbolic: some size is."""

    recorder: Recorder
    state: Functionalizer
    first_node: torch.fx.Node
    symbolic: bool
    rejecting: Rejecting

    def last_node(self) -> torch.fx.Node:
        return self.recorder.last_node() or self.first_node

    def registers_hooks(self) -> bool:
        """True when the program registers hooks on its tensors."""
        module = self.first_node.graph.owning_module
        graphs = [one.graph for one in module.modules() if isinstance(one, torch.fx.GraphModule)] if module is not None else []
        return any("register_hook" in str(node.target) for graph in graphs for node in graph.nodes)

    def gradients(
        self, programs: Sequence[FakeTensor | GradientEdge], tangents: Sequence[FakeTensor], sources: Sequence[Source], autocast: Any = ()
    ) -> tuple[list[FakeTensor | None], list[int]]:
        """The values of the gradients of the sources, and the numbers of the calls made that count beyond their result.

        Another call may follow.
        """
        start, first = len(self.recorder.log), len(self.state.log.calls)
        state = self.state
        upstream: list[FakeTensor] = []
        with phase("aot.trace_backward"), restoring_modes(), symbolic_kernels(self.symbolic):
            gradients = self._run_engine(programs, tangents, sources, autocast, upstream)
        with phase("aot.functionalize"), self.rejecting(), torch.no_grad():
            before = {id(place.memory): place.memory.version for place in state.placeholders}
            state.run(self.recorder.log[start:], backward=True)  # entries carry the forward node they belong to
            for place in state.placeholders:
                if place.memory.version != before[id(place.memory)]:
                    raise UnsupportedView("the backward pass writes to an input of the forward pass")
            values = [None if gradient is None else state.read_with_strides(gradient) for gradient in gradients]
            effects = self.state.log.effects(first)
            return drop_upstream_part(self.state.log, values, tangents, upstream, effects) if upstream else (values, effects)

    def _run_engine(
        self, programs: Sequence[FakeTensor | GradientEdge], tangents: Sequence[FakeTensor], sources: Sequence[Source], autocast: Any,
        upstream: list[FakeTensor],
    ) -> Sequence[Any]:  # fmt: skip
        """The gradients of the sources, recorded. The fakes of the tangents stand in the program as well as in the log."""
        gradient_fakes = [make_fake(value.desc) for value in tangents]
        for gradient_fake, value in zip(gradient_fakes, tangents, strict=True):
            self.state.define(gradient_fake, value)
        inputs: list[Any] = [source.leaf if source.edge is None else GradientEdge(*source.edge) for source in sources]
        self.recorder.in_backward = True
        self.recorder.node = None
        try:
            # in this thread, whatever the device: the modes are those of this thread
            with (
                self.recorder, torch.autograd.set_multithreading_enabled(False), torch.no_grad(), anomaly_detection_off(),
                _autocast(autocast), self._replacing_upstream(sources, upstream) as further,
            ):  # fmt: skip
                return run_autograd_engine(programs, gradient_fakes, [*inputs, *further])[: len(inputs)]
        except (RuntimeError, ArithmeticError, GraphBreak) as error:
            # eager would raise this, or ask for the values, in its backward pass only: its forward has to run there
            node = self.recorder.cause() or self.last_node()
            raise GraphRejected(node, f"the derivative raises {type(error).__name__}: {error}") from error

    @contextmanager
    def _replacing_upstream(self, sources: Sequence[Source], upstream: list[FakeTensor]) -> Iterator[list[GradientEdge]]:
        """Within, a boundary's node that runs gets a value of its own for the gradient that came there, which goes into `upstream`.

        It runs where something that is asked for is behind it. Gives edges to ask for as well: the engine runs the hooks of a
        tensor before it takes a gradient where nobody needs the node itself, and these hooks are for all that comes to the tensor,
        in the stage that makes it.
        """
        numbers: dict[Any, list[int]] = {}
        further: list[GradientEdge] = []
        for source in sources:
            if source.edge is not None:
                node, number = source.edge
                numbers.setdefault(node, []).append(number)
                if source.hooked:
                    further += [GradientEdge(*below) for below in node.next_functions if below[0] is not None]

        def replaced(gradient: Any) -> Any:
            gradient_fake = make_fake(gradient.desc)
            upstream.append(self.state.log.placeholder(gradient.desc))
            self.state.define(gradient_fake, upstream[-1])
            return gradient_fake

        def replacing(given: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
            return lambda gradients: tuple(
                [replaced(gradient) if number in given and gradient is not None else gradient for number, gradient in enumerate(gradients)]
            )

        with ExitStack() as stack:
            for node, given in numbers.items():
                stack.callback(node.register_prehook(replacing(given)).remove)
            yield further


@contextmanager
def _autocast(state: Any) -> Iterator[None]:
    """Autocast as a backward pass is run under; off, as torch asks for, unless it is said."""
    with ExitStack() as stack:
        if not state:
            stack.enter_context(no_autocast())
        for device, dtype in state:
            stack.enter_context(torch.autocast(device, dtype))
        yield
