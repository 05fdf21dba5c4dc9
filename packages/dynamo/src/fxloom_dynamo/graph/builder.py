"""The graph while it is recorded: nodes of fakes, inputs with their sources, symbols, and parts that are cut out again.

In: results of operators on fakes, and where their arguments came from. Out: nodes of an FX graph of the torch dialect, whose
placeholders carry their sources. What a call means, and whether it may be in a graph, is the business of `recorder`.

Invariant: a fake is known by identity to exactly one node; a fake that no node made is a fault of fxloom.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable
from typing import Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.graph.tensor_classes import overrides
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS, to_number
from fxloom_dynamo.objects.sentinels import Sentinel
from fxloom_dynamo.objects.value_types import is_buffer
from fxloom_interfaces import meta, symbolic_math
from fxloom_interfaces.errors import InternalError, Site
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.node_text import node_text
from fxloom_interfaces.sources import Source
from fxloom_shapes import FakeMode, FakeTensor
from fxloom_shapes.expressions.polynomials import of_atom
from fxloom_shapes.expressions.statements import symbols_of
from fxloom_shapes.fake.size_nodes import SizeNodes, symbols_made
from fxloom_shapes.symbols.messages import check_arguments
from fxloom_shapes.symbols.nodes import BoolNode
from fxloom_shapes.symbols.numbers import SYMBOLIC

_NUMBERS = (int, float, complex, bool, str, bytes, type(None))
_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, type(...), torch.finfo, torch.iinfo)


class GraphBuilder:
    """See the module's docstring. One per capture attempt."""

    def __init__(self, fake_mode: FakeMode) -> None:
        self.fake_mode = fake_mode
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()  # holds the bodies, graphs that nodes take as operands
        self._bodies = 0
        self.nodes: dict[int, torch.fx.Node] = {}
        self.inputs: list[tuple[Source, Any, torch.fx.Node]] = []
        self.numbers = SizeNodes(self._number_call, self._symbol)
        self.symbols: dict[str, torch.fx.Node] = {}
        self._sized: dict[str, tuple[torch.fx.Node, tuple[int, ...]]] = {}
        self.input_info: dict[int, tuple[FakeTensor, torch.Tensor, Source]] = {}
        self.python_type: dict[int, type] = {}
        self.overriding = False  # whether there are tensors whose class overrides torch functions
        self.versions: dict[int, tuple[int, int]] = {}  # of inputs, when the program first read them
        self.written_without_version: dict[int, FakeTensor] = {}
        self.step_of: dict[torch.fx.Node, int] = {}
        self.step: int = 0
        self.sites: Callable[[], tuple[Site, ...]] = lambda: ()
        self.predicted: torch.Tensor | None = None  # whether all predictions hold
        self._keep: list[Any] = []
        self._last_placeholder: torch.fx.Node | None = None
        self._names: set[str] = set()

    def close(self) -> None:
        """Let go of the program's tensors."""
        for held in vars(self).values():
            if isinstance(held, (dict, list)):
                held.clear()

    def know_input(self, fake: FakeTensor, real: torch.Tensor, source: Source) -> None:
        """A tensor that existed before; it becomes a placeholder when an operator first uses it."""
        self.input_info[id(fake)] = (fake, real, source)
        with DisableTorchFunction():
            self.versions[id(fake)] = fake._version, fake.storage_token.writes
        self.python_type[id(fake)] = type(real)
        self.overriding |= overrides(type(real))

    def is_written(self, fake: FakeTensor) -> bool:
        """Whether the program wrote into an input, itself or through a view."""
        with DisableTorchFunction():
            return id(fake) in self.written_without_version or (fake._version, fake.storage_token.writes) != self.versions[id(fake)]

    def writes_inputs(self) -> bool:
        """Whether the program wrote into a tensor that existed before, itself or through a view."""
        return any(self.is_written(fake) for fake, _, _ in self.input_info.values())

    def is_known(self, fake: FakeTensor) -> bool:
        return id(fake) in self.nodes or id(fake) in self.input_info

    def node_of(self, fake: FakeTensor) -> torch.fx.Node:
        """The node whose value `fake` is."""
        node = self.nodes.get(id(fake))
        if node is not None:
            return node
        if id(fake) not in self.input_info:
            raise InternalError("dynamo.record", f"a fake tensor that no node made: {fake!r}")
        _, real, source = self.input_info[id(fake)]
        node = self._placeholder(source, fake)
        meta.set_static_address(node, isinstance(real, torch.nn.Parameter) or is_buffer(source))
        self.nodes[id(fake)] = node
        self.inputs.append((source, real, node))
        return node

    def fake_of(self, node: torch.fx.Node) -> Any:
        """What a node gives on fakes."""
        return meta.get_fake(node)

    def _placeholder(self, source: Source, value: Any) -> torch.fx.Node:
        with self.graph.inserting_after(self._last_placeholder) if self._last_placeholder else self.graph.inserting_before():
            node = self.graph.placeholder(self._placeholder_name(source))
        self._last_placeholder = node
        meta.set_fake(node, value)
        meta.set_source(node, source)
        return node

    def _symbol(self, name: str) -> torch.fx.Node:
        """The node of a symbol: an input, or what made it."""
        node = self.symbols.get(name)
        if node is None:
            env = self.fake_mode.env
            if name in self._sized:
                made, place = self._sized[name]
                if len(place) > 1:
                    made = self.graph.call_function(operator.getitem, (made, place[0]))
                node = self.symbols[name] = self.graph.call_method("size", (made, place[-1]))
                if env is not None:
                    meta.set_fake(node, env.number(of_atom(env.symbols[name].atom)))
                self.step_of[node] = self.step
                return node
            if env is None or not env.symbols[name].sources:
                raise InternalError("dynamo.record", f"no node makes the number {name}")
            symbol = env.symbols[name]
            value = env.create_float(float(symbol.hint or 0.0), symbol.sources[0]) if symbol.is_float else env.number(of_atom(symbol.atom))
            node = self.symbols[name] = self._placeholder(symbol.sources[0], value)
            meta.set_static_address(node, False)
            self.inputs.append((symbol.sources[0], symbol.hint, node))
        return node

    def _number_call(self, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        node = self.graph.call_function(target, args)
        meta.set_sites(node, self.sites())
        self.step_of[node] = self.step
        return node

    def bind_symbols(self) -> None:
        """Make inputs of all numbers that the sizes of the graph's inputs are computed from."""
        env = self.fake_mode.env
        if env is None:
            return
        for _, _, node in list(self.inputs):
            fake = meta.get_fake(node)
            if type(fake) is FakeTensor and fake.desc.env is not None:
                for name, symbol in env.symbols_in([*fake.desc.size, *fake.desc.stride, fake.desc.offset]).items():
                    if symbol.sources:
                        self._symbol(name)

    def _placeholder_name(self, source: Source) -> str:
        """A readable name from the source, unique in the graph."""
        name = _name_of(source) or f"input_{len(self.inputs)}"
        if name in self._names:
            name = f"{name}_{len(self.inputs)}"
        self._names.add(name)
        return name

    def _is_new_number(self, value: Any) -> bool:
        """Whether only the run tells the number, and this call is what does: a custom operator counts something."""
        env = self.fake_mode.env
        if env is None or type(value) not in SYMBOLIC:
            return False
        names = symbols_made(env, value)
        return any(name not in self.symbols and name not in self._sized and not env.symbols[name].sources for name in names)

    def last_node(self) -> torch.fx.Node | None:
        """The last node so far; for `discard_after`."""
        return next(iter(reversed(self.graph.nodes)), None)

    def discard_after(self, last: torch.fx.Node | None, known: list[FakeTensor]) -> str:
        """Drop all nodes after `last` but placeholders.

        The name of a tensor that they read, that existed before, and that is not in `known`; empty if there is none. The
        numbers of the call, sizes among them, they may read: who makes the calls anew finds them where they are.
        """
        dropped = self._nodes_after(last)
        allowed = {self.nodes.get(id(fake)) for fake in known}
        allowed |= {node for node in self.graph.nodes if node.op == "placeholder" and type(meta.get_fake(node)) in SYMBOLIC}
        gone = set(dropped)
        foreign = next((n for node in dropped for n in node.all_input_nodes if n not in gone and n not in allowed), None)
        self._forget(dropped)
        return "" if foreign is None else str(foreign)

    def versions_now(self) -> dict[int, int]:
        """How often each tensor that the program made was written to, by the identity of its fake."""
        with DisableTorchFunction():
            fakes = {id(value): value for value in map(meta.get_fake, self.nodes.values()) if type(value) is FakeTensor}
            return {key: fake._version for key, fake in fakes.items()}

    def add_argument(self, fake: FakeTensor) -> torch.fx.Node:
        """A node for the argument of a function whose operators `outline` is going to move into a graph of their own."""
        node = self.graph.call_function(_argument_of_body, ())
        self._keep.append(fake)
        meta.set_fake(node, fake)
        self.nodes[id(fake)] = node
        return node

    def outline(
        self, last: torch.fx.Node | None, arguments: list[torch.fx.Node], outputs: list[FakeTensor]
    ) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
        """Move all nodes after `last` but placeholders into a graph of their own.

        Its placeholders are `arguments`, then what it takes from outside; its output is the tuple of `outputs`. Returns the
        `get_attr` node of the graph, and what it takes from outside.
        """
        inside = self._nodes_after(last)
        gone = set(inside)
        outside = list(dict.fromkeys(used for node in inside for used in node.all_input_nodes if used not in gone))
        results = [self.node_of(fake) for fake in outputs]
        outside += [node for node in dict.fromkeys(results) if node not in gone and node not in outside]
        body = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in [*arguments, *outside]:
            copy = copies[node] = body.placeholder(node.name)
            meta.set_fake(copy, meta.get_fake(node))
        for node in inside:
            if node not in copies:
                copies[node] = body.node_copy(node, copies.__getitem__)
                self.step_of[copies[node]] = self.step_of.get(node, self.step)
        body.output(tuple(copies[node] for node in results))
        self._forget(inside)
        name = f"body_{self._bodies}"
        self._bodies += 1
        setattr(self.root, name, graph_module(self.root, body, "Body"))
        place = self.graph.get_attr(name)
        meta.set_fake(place, None)
        self.step_of[place] = self.step
        return place, outside

    def _nodes_after(self, last: torch.fx.Node | None) -> list[torch.fx.Node]:
        """All nodes after `last` but placeholders, in order."""
        found: list[torch.fx.Node] = []
        for node in reversed(self.graph.nodes):
            if node is last:
                break
            if node.op != "placeholder":
                found.append(node)
        return found[::-1]

    def _forget(self, nodes: list[torch.fx.Node]) -> None:
        """Erase nodes, the last of the graph."""
        gone = set(nodes)
        if any(node in gone for node, _ in self._sized.values()):
            graph_break("torch_call", "a function that stands in the graph as one call makes a size that depends on values")
        if self.predicted is not None and self.nodes.get(id(self.predicted)) in gone:
            graph_break("data_dependent", "a function that stands in the graph as one call looks at a tensor's values")
        self.nodes = {key: node for key, node in self.nodes.items() if node not in gone}
        self.symbols = {name: node for name, node in self.symbols.items() if node not in gone}
        self.numbers.forget(gone)
        for node in reversed(nodes):
            self.step_of.pop(node, None)
            self.graph.erase_node(node)

    def add_effect(self, target: Callable[..., Any], *args: Any) -> torch.fx.Node:
        """Record a call that has no tensor result (a change of mode), without running it."""
        node = self.graph.call_function(target, args)
        meta.set_sites(node, self.sites())
        meta.set_fake(node, None)
        self.step_of[node] = self.step
        return node

    def _register(self, value: Any, node: torch.fx.Node) -> None:
        if isinstance(value, FakeTensor):
            if id(value) not in self.nodes and id(value) not in self.input_info:
                self.nodes[id(value)] = node
                self._keep.append(value)
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                if isinstance(item, FakeTensor) and self.is_known(item):
                    continue
                if has_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, index))
                    meta.set_sites(part, meta.get_sites(node))
                    meta.set_fake(part, item)
                    self.step_of[part] = self.step
                    self._register(item, part)
            self._keep.append(value)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            return self.node_of(value)
        kind = type(value)
        if kind in _NUMBERS or kind in _PLAIN:
            return value
        if kind in SYMBOLIC:
            return self.numbers.node_of(value)
        if kind is tuple or kind is list:
            return kind([self._argument(item) for item in value])
        if isinstance(value, torch.Size):
            return tuple([self._argument(item) for item in value])
        if isinstance(value, tuple):
            return tuple(self._argument(item) for item in value)
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        if kind is slice:
            return slice(self._argument(value.start), self._argument(value.stop), self._argument(value.step))
        if kind is range:
            return list(value)
        if isinstance(value, Sentinel):
            raise InternalError("dynamo.record", f"{value!r} as an argument")
        if isinstance(value, (torch.Generator, torch.Tensor)):
            graph_break("torch_call", f"an argument of type {kind.__qualname__} that is no traced value")
        if kind in NUMPY_SCALARS:
            number = to_number(value)
            if isinstance(number, complex) and not isinstance(value, complex):
                graph_break("torch_call", f"a {kind.__qualname__}, of which torch takes the real part, with a warning")
            return number
        for plain in (int, float, complex, str):  # enum members and other subclasses
            if isinstance(value, plain):
                return getattr(plain, "__str__" if plain is str else f"__{plain.__name__}__")(value)
        graph_break("torch_call", f"an argument of type {kind.__qualname__}")

    def check(self, condition: Any, *complaint: Any) -> None:
        """Record that the program asserts `condition`, a symbolic truth value. complaint: further arguments of `symbolic_math.check`."""
        argument = self.numbers.node_of(condition)
        if isinstance(argument, torch.fx.Node):
            self.add_effect(symbolic_math.check, argument, *map(self._argument, complaint))

    def asserted(self, statement: Any) -> None:
        """Record what an operator takes for granted of numbers that only running the graph tells (sizes of pieces, say)."""
        env = self.fake_mode.env
        assert env is not None
        names = [atom.text for atom in symbols_of(statement)]
        if all(name in self.symbols or name in self._sized or env.symbols[name].sources for name in names):
            self.check(torch.SymBool(BoolNode(env, statement)), *check_arguments(env, statement))

    def _call_after(self, name: str, node: torch.fx.Node, place: tuple[int, ...] | None) -> None:
        """Let messages call a number that only running the graph tells by what tells it."""
        assert self.fake_mode.env is not None
        item = f"[{place[0]}]" if place is not None and len(place) > 1 else ""
        size = f".size({place[-1]})" if place is not None else ""
        self.fake_mode.env.symbols[name].computed_by = f"{node_text(node)}{item}{size}"

    def _as_number(self, node: torch.fx.Node, truth: Any) -> torch.fx.Node:
        """0 or 1: operators of torch don't take a symbolic truth value for a number."""
        number = self._number_call(symbolic_math.as_int, (node,))
        meta.set_fake(number, symbolic_math.as_int(truth))
        return number




def _argument_of_body() -> Any:
    raise InternalError("dynamo.record", "an argument of a function that was to be moved into a graph of its own")


def has_tensor(value: Any) -> bool:
    """Whether a tensor is in a nest of tuples and lists."""
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(has_tensor(item) for item in value)


def _name_of(source: Source) -> str:
    text = source.name
    for word in (".__dict__", "_parameters", "_buffers", "_modules"):
        text = text.replace(word, "")
    text = text.removeprefix("L")
    keep = [char if char.isalnum() else "_" for char in text]
    text = "_".join(part for part in "".join(keep).split("_") if part)
    text = f"p_{text}" if text[:1].isdigit() else text
    if not text.isidentifier():
        return ""
    # a placeholder called `self` is what FX takes for the module itself
    return f"{text}_" if keyword.iskeyword(text) or text == "self" else text
