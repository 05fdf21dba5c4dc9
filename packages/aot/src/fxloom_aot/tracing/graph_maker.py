"""Make graphs with their signatures from a functional log: the forward graph, backward graphs.

In: the functionalizer, what `outputs` found, the calls to take. Out: `TracedGraph`s. Here it is decided what each placeholder
is and in which order they come.
Invariant: placeholders and signature have one order; a graph takes only the numbers and constants that it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.outputs import ForwardOutputs
from fxloom_aot.nests import numbers_of, values_of
from fxloom_aot.trace_result import TracedGraph
from fxloom_aot.tracing.build_fx import build_graph
from fxloom_interfaces.meta import get_source, is_static_address, set_fake
from fxloom_interfaces.signature import GraphSignature, InputKind, InputSpec, OutputKind, OutputSpec
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC, symbol_names


@dataclass(frozen=True, slots=True)
class GraphMaker:
    """See the module's docstring.

    nodes: the program's placeholders. parameters: for each, whether it was given an `nn.Parameter`. symbolic: some size is. copies: what
    backward graphs are given in the place of a value of the log, by its identity; its strides may be others.
    """

    state: Functionalizer
    nodes: Sequence[torch.fx.Node]
    parameters: Sequence[bool]
    symbolic: bool
    copies: dict[int, FakeTensor] = field(default_factory=dict)

    def forward(self, found: ForwardOutputs, calls: Sequence[int], saved: Sequence[Any]) -> TracedGraph:
        """saved: values that are no outputs of the program."""
        outputs = [*found.values, *saved]
        placed = [*self._placed(found), *self._constants_used(calls, outputs)]
        specs = (*found.specs, *[OutputSpec(OutputKind.SAVED) for _ in saved])
        inputs = tuple(spec for spec, _ in placed)
        signature = GraphSignature(inputs, specs, tuple(found.results), tuple(found.metadata), len(self.nodes))
        return self._built(signature, placed, calls, outputs)

    def backward(
        self, placed: Sequence[tuple[InputSpec, Any]], calls: Sequence[int], values: Sequence[Any], gradient_of: Sequence[int]
    ) -> TracedGraph:
        """placed: the inputs but constants. values: the gradients; gradient_of: what of, by number."""
        placed = [*placed, *self._constants_used(calls, values)]
        outputs = tuple(OutputSpec(OutputKind.GRADIENT, number) for number in gradient_of)
        signature = GraphSignature(tuple(spec for spec, _ in placed), outputs, backward=True)
        traced = self._built(signature, placed, calls, values)
        for node, (_, value) in zip(traced.gm.graph.nodes, placed, strict=False):
            if id(value) in self.copies:
                set_fake(node, self.copies[id(value)])
        return traced

    def _built(
        self, signature: GraphSignature, placed: list[tuple[InputSpec, Any]], calls: Sequence[int], values: Sequence[Any]
    ) -> TracedGraph:
        causes: dict[str, torch.fx.Node] = {}
        return TracedGraph(build_graph(self.state.log, placed, calls, values, causes), signature, causes)

    def _placed(self, found: ForwardOutputs) -> list[tuple[InputSpec, Any]]:
        """Spec and value of every placeholder of the forward graph but constants."""
        mutated = {spec.input for spec in found.specs if spec.kind is OutputKind.NEW_VALUE}
        placed = []
        for number, place in enumerate(self.state.placeholders):
            node = self.nodes[place.input]
            static = is_static_address(node)
            kind = InputKind.STORAGE if place.flat else self._kind(place.input, static)
            name = f"{node.name}_storage" if place.flat else node.name
            spec = InputSpec(kind, name, place.input, get_source(node), static, number in mutated)
            placed.append((spec, self.state.log.placeholders[number]))
        for index, given in enumerate(self.state.inputs):
            if type(given.number) in SYMBOLIC:
                node = self.nodes[index]
                spec = InputSpec(InputKind.NUMBER, node.name, index, get_source(node), symbol=str(given.number))
                placed.append((spec, given.number))
        return placed

    def _kind(self, number: int, static: bool) -> InputKind:
        if self.parameters[number]:
            return InputKind.PARAMETER
        return InputKind.BUFFER if static else InputKind.USER

    def static_placeholders(self) -> frozenset[int]:
        """Numbers of the placeholders whose memory outlives the call."""
        return frozenset(
            number
            for number, place in enumerate(self.state.placeholders)
            if is_static_address(self.nodes[place.input]) or self.parameters[place.input]
        )

    def symbols_used(self, calls: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, None]:
        """Names of the symbols that a backward graph needs, but for those that its own calls make."""
        log = self.state.log
        if not log.symbol_calls and not self.symbolic:
            return {}
        values: list[Any] = list(numbers_of([[log.calls[number].args, log.calls[number].kwargs] for number in calls]))
        for fake in values_of([*inputs, *outputs, *[log.calls[number].out for number in calls]]):
            values += [*fake.desc.size, *fake.desc.stride]
        own = set(calls)
        return {name: None for name in symbol_names(values) if log.symbol_calls.get(name) not in own}

    def numbers_used(self, used: Mapping[str, None]) -> Iterator[tuple[InputSpec, Any]]:
        """The caller's numbers among `used`, as values that the forward graph got."""
        numbers = [given.number for given in self.state.inputs if type(given.number) in SYMBOLIC]
        for position, number in enumerate(numbers, len(self.state.placeholders)):
            if str(number) in used:
                name = str(number)
                yield InputSpec(InputKind.SAVED, f"saved_{name}", position, of_input=True, symbol=name), number

    def _constants_used(self, calls: Sequence[int], outputs: Sequence[Any]) -> Iterator[tuple[InputSpec, Any]]:
        log = self.state.log
        used = {id(value) for number in calls for value in values_of([log.calls[number].args, log.calls[number].kwargs])}
        used.update(id(value) for value in values_of(list(outputs)))
        for number, (value, real) in enumerate(log.constants):
            if id(value) in used:
                yield InputSpec(InputKind.CONSTANT, f"constant_{number}", constant=real.detach()), value
