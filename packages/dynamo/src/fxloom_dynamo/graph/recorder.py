"""Recording of torch calls into an FX graph of the torch dialect.

In: calls of torch's public functions on fakes, wherever they come from: a `TorchFunctionMode` is on while the program is
evaluated, so an operator called by C code (`map(torch.sin, xs)`, `sum(tensors)`) is recorded like one that the evaluator
calls itself. Out: a graph whose placeholders carry their sources, and the fake of every node.

Invariant: a fake is known by identity to exactly one node; a fake that no node made is a fault of ours.
What only asks for metadata (`x.shape`, `x.dtype`) is answered from the fake and leaves no node; what needs the values of
a tensor is a graph break.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

import fxloom_dynamo.symbolic_numbers.families  # noqa: F401  # fills the table of rules
from fxloom_dynamo._torch_private import DisableTorchFunction, TensorBase, TorchFunctionMode, device_constructors
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.directives import Directive, directive_for
from fxloom_dynamo.graph import number_arguments, raising, symbolic_data, symbolic_float_calls, symbolic_index
from fxloom_dynamo.graph.leaves import Leaves
from fxloom_dynamo.graph.symbolic_data import is_symbolic_data
from fxloom_dynamo.graph.symbolic_index import is_symbolic_index
from fxloom_dynamo.graph.tensor_classes import overrides
from fxloom_dynamo.guard.dynamic_shapes import EffectOrder
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS, to_number
from fxloom_dynamo.objects.sentinels import Sentinel
from fxloom_dynamo.objects.unguarded import LOOK_AT_TYPES
from fxloom_dynamo.objects.value_types import is_buffer
from fxloom_dynamo.symbolic_numbers import registry
from fxloom_interfaces import meta, symbolic_math
from fxloom_interfaces.errors import GraphBreak, InternalError, Site
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.node_text import node_text
from fxloom_interfaces.sources import Source
from fxloom_shapes import FakeMode, FakeTensor, symbolic_kernels
from fxloom_shapes.expressions.polynomials import of_atom
from fxloom_shapes.expressions.statements import symbols_of
from fxloom_shapes.fake.size_nodes import SizeNodes, symbols_made
from fxloom_shapes.propagation.data_dependent import unbacked_number
from fxloom_shapes.propagation.propagate import statistics
from fxloom_shapes.symbols.messages import check_arguments
from fxloom_shapes.symbols.nodes import BoolNode
from fxloom_shapes.symbols.numbers import SYMBOLIC
from fxloom_shapes.symbols.options import QueryOrigin

if TYPE_CHECKING:
    from fxloom_dynamo.graph.predicted_branches import Prediction

_NUMBERS = (int, float, complex, bool, str, bytes, type(None))
#: what shows the gradient of an intermediate, or changes it: what was made of it must not be in one graph with it
_WATCHES_GRADIENTS = frozenset({"register_hook", "retain_grad", "_backward_hooks", "grad_fn"})
_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, type(...), torch.finfo, torch.iinfo)

#: method of TensorBase -> Python operator that says the same and reads better in a graph
_OPERATORS: dict[str, Callable[..., Any]] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
}


class Recorder:
    """See the module's docstring. One per capture attempt."""

    def __init__(self, fake_mode: FakeMode) -> None:
        self.fake_mode = fake_mode
        self.draws_before = statistics.draws
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
        self.versions: dict[int, tuple[int, int]] = {}  # of inputs, when the program first read them
        self.quietly_written: dict[int, FakeTensor] = {}
        self.step_of: dict[torch.fx.Node, int] = {}
        self.step: int = 0
        self.split_step: int | None = None  # where a break belongs that is raised later
        self.regions = 0  # that are open and have to end in the graph
        self.devices: list[torch.device] = []  # of `with torch.device(...)` regions: where factories put tensors
        self.labels: list[torch.fx.Node] = []  # the beginnings of open regions with names for a profiler
        self.leaves = Leaves(self)
        self.overriding = False  # whether there are tensors whose class overrides torch functions
        self.plain = 0  # depth of places where none is overridden
        self.override: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] = lambda func, args, kwargs: NotImplemented
        self.calls = 0
        self.mode = _RecordingMode(self)
        self.sites: Callable[[], tuple[Site, ...]] = lambda: ()
        self.in_protected_block: Callable[[], bool] = lambda: False
        self.in_transform: Callable[[], bool] = lambda: False  # whether a function that torch.func transforms is evaluated
        self.on_unknown: Callable[[str], None] = lambda method: None  # before a break at a method that asks for values
        self.order = EffectOrder.FREE
        self.amid_effects: Callable[[], bool] = lambda: False
        self.raises_amid = False  # whether an operator may raise after an effect, or where the program handles it
        self.protected = False  # whether some operator is called in a `try` or `with` of the program's
        self.handled_inside = False  # whether an inlined function may handle what some operator raises
        self.may_be_handled_inside: Callable[[], bool] = lambda: False
        self.predictions: list[Prediction] = []
        self.predicted: torch.Tensor | None = None  # whether all of them hold
        self._keep: list[Any] = []
        self._last_placeholder: torch.fx.Node | None = None
        self._names: set[str] = set()
        self._modes: ExitStack | None = None
        self._symbolic = self._in_symbolic = False

    # ------------------------------------------------------------------ inputs

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
            return id(fake) in self.quietly_written or (fake._version, fake.storage_token.writes) != self.versions[id(fake)]

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

    # ------------------------------------------------------------------ symbolic numbers

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
        """Make inputs of all numbers that the sizes of the graph's inputs are made of."""
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

    # ------------------------------------------------------------------ calls

    def call_function(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `target` on fakes and record it as it stands."""
        self._enter_symbolic()
        with DisableTorchFunction():
            return self._record("call_function", target, target, args, kwargs)

    def call_method(self, name: str, run: Callable[..., Any], *args: Any) -> Any:
        """Record a call of a method, which `run` makes on fakes."""
        self._enter_symbolic()
        with DisableTorchFunction():
            return self._record("call_method", name, run, args, {})

    def _record(
        self, op: str, target: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        _refuse_real(args)
        if kwargs:
            _refuse_real(tuple(kwargs.values()))
        if target in symbolic_index.OPERATORS:
            symbolic_index.expect_inside(*args[:2])
            if is_symbolic_index(self, args[1]):
                with DisableTorchFunction():
                    return symbolic_index.OPERATORS[target](self, *args)
        with self._in_operator():
            value = run(*args, **kwargs)
        if not has_tensor(value) and value is not None and not _is_effect(target) and not self._is_new_number(value):
            return value  # metadata: answered by the fake
        node = self.graph.create_node(op, target, self._argument(args), self._argument(_with_dtype(target, args, kwargs, value)))
        self._keep.append((args, kwargs))
        self._note(node, value)
        self._register(value, node)
        return value

    def _in_operator(self) -> AbstractContextManager[None]:
        """What is asked of sizes within the block is an operator's question."""
        env = self.fake_mode.env
        if env is None:
            return nullcontext()
        env.assumptions.clear()
        return env.queried_by(QueryOrigin.OPERATOR)

    def _is_new_number(self, value: Any) -> bool:
        """Whether only the run tells the number, and this call is what does: a custom operator counts something."""
        env = self.fake_mode.env
        if env is None or type(value) not in SYMBOLIC:
            return False
        names = symbols_made(env, value)
        return any(name not in self.symbols and name not in self._sized and not env.symbols[name].sources for name in names)

    def record_as(self, target: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """Record a call of `target` whose result on fakes is known to be `value`."""
        return self._record("call_function", target, lambda *_: value, args, {})

    def record_node(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outputs: tuple[Any, ...]
    ) -> None:
        """Record a call on nodes whose results on fakes are known to be `outputs`."""
        node = self.graph.create_node("call_function", target, args, kwargs)
        self._note(node, outputs)
        self._register(outputs, node)

    def refuse_method(self, name: str, tensor: Any) -> NoReturn:
        """Break for a method that is not modelled."""
        if name in _WATCHES_GRADIENTS:
            self.split_before(tensor)
        graph_break("torch_call", f"Tensor.{name} is not modelled")

    def split_before(self, tensor: Any) -> None:
        """The break that is about to be raised belongs where `tensor` was made, if the program made it.

        A graph is one node for autograd: what it returns has gradients of its own, apart from what else it returns.
        """
        node = self.nodes.get(id(tensor))
        if node is not None and node.op != "placeholder":
            self.split_step = self.step_of.get(node)

    def begin_region(self) -> None:
        """A `with` block begins that has to end in the graph: a break in it belongs here."""
        if not self.regions:
            self.split_step = self.step
        self.regions += 1

    def end_region(self) -> None:
        """The end of the innermost region."""
        if not self.regions:
            graph_break("torch_call", "the end of a region that began before")
        self.regions -= 1
        if not self.regions:
            self.split_step = None

    def mark(self) -> torch.fx.Node | None:
        """The last node so far; for `take_back`."""
        return next(iter(reversed(self.graph.nodes)), None)

    def take_back(self, mark: torch.fx.Node | None, known: list[FakeTensor]) -> str:
        """Drop all nodes behind `mark` but placeholders.

        The name of a tensor that they read, that existed before, and that is not in `known`; empty if there is none. The
        numbers of the call, sizes among them, they may read: who makes the calls anew finds them where they are.
        """
        dropped = self._behind(mark)
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
        """A node for the argument of a function whose operators `cut_out` is going to move into a graph of their own."""
        node = self.graph.call_function(_argument_of_body, ())
        self._keep.append(fake)
        meta.set_fake(node, fake)
        self.nodes[id(fake)] = node
        return node

    def cut_out(
        self, mark: torch.fx.Node | None, arguments: list[torch.fx.Node], outputs: list[FakeTensor]
    ) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
        """Move all nodes behind `mark` but placeholders into a graph of their own.

        Its placeholders are `arguments`, then what it takes from outside; its output is the tuple of `outputs`. Returns the
        `get_attr` node of the graph, and what it takes from outside.
        """
        inside = self._behind(mark)
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

    def _behind(self, mark: torch.fx.Node | None) -> list[torch.fx.Node]:
        """All nodes behind `mark` but placeholders, in order."""
        found: list[torch.fx.Node] = []
        for node in reversed(self.graph.nodes):
            if node is mark:
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

    def handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the mode does for one call of a torch function."""
        _refuse_real(args)
        if self.overriding and not self.plain:
            with self.mode:
                result = self.override(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if self.devices and kwargs.get("device") is None and func in device_constructors():
            kwargs = {**kwargs, "device": self.devices[-1]}
        if isinstance(func, types.MethodWrapperType):  # a property's __get__, __set__ or __delete__
            return self._property(func, args)
        name: str = _PYTHON_METHODS.get(func) or getattr(func, "__name__", None) or ""
        owner = getattr(func, "__objclass__", None)
        if name in number_arguments.NAMES:
            with DisableTorchFunction():
                rewritten = number_arguments.rewrite(self, name, args, kwargs)
            if rewritten is not NotImplemented:
                return rewritten
        rule = registry.find(func, args, kwargs)
        if rule is not None:
            with self.mode:
                made = rule(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return symbolic_float_calls.call(self, func, args, kwargs, lambda: self._call(func, name, owner, args, kwargs))

    def _call(self, func: Any, name: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call as it is."""
        if func is torch.Tensor.detach_ or func is torch.detach_:
            known = self.input_info.get(id(args[0]))
            if known is not None and (args[0].requires_grad or known[1]._is_view()):
                graph_break("torch_call", "detach_ changes a tensor that existed before")
        if owner is TensorBase or _is_tensor_method(func):
            if name in _ASKS_VALUES:
                return self._value(func, name, args, kwargs)
            if name == "is_inference":
                return self._is_inference(args[0])
            if name == "requires_grad_" and self.leaves.is_untold(args[0]):
                return func(*args, **kwargs)
            if name == "requires_grad_" and id(args[0]) in self.input_info:
                if args[0].requires_grad == (args[1] if len(args) > 1 else kwargs.get("requires_grad", True)):
                    return args[0]
                graph_break("torch_call", "requires_grad_ changes a tensor that existed before")
            if name == "storage_offset":
                self._rely_on_offset(args[0])
            if name in ("_is_view", "is_set_to") and any(id(given) in self.input_info for given in args):
                graph_break("torch_call", f"Tensor.{name} of an input: how it came to be is not looked at")
            if name == "new_tensor" and is_symbolic_data(args[1:]):
                like = kwargs | {name: kwargs.get(name) or getattr(args[0], name) for name in ("dtype", "device")}
                with DisableTorchFunction():
                    made = symbolic_data.tensor(self, args[1], like)
                if made is not NotImplemented:
                    return made
            if name in UNMODELLED_METHODS:
                self.refuse_method(name, args[0])
            if name in _OPERATORS:
                return self._record("call_function", _OPERATORS[name], func, args, kwargs)
            if name in _PLAIN_METHODS:
                return func(*args, **kwargs)
            if not isinstance(args[0], FakeTensor):
                return self._record("call_function", func, func, args, kwargs)
            return self._record("call_method", name, func, args, kwargs)
        if (func is torch.tensor or func is torch.as_tensor) and is_symbolic_data(args):
            with DisableTorchFunction():
                made = symbolic_data.tensor(self, args[0], kwargs)
            if made is not NotImplemented:
                return made
        if func in _REFUSED or directive_for(func) is Directive.DISALLOW:
            graph_break("torch_call", f"{getattr(func, '__module__', 'torch')}.{name}")
        return self._record("call_function", func, func, args, kwargs)

    def _property(self, func: Any, args: tuple[Any, ...]) -> Any:
        name = func.__self__.__name__
        what = func.__name__
        if what == "__get__":
            if name in _REFUSED_PROPERTIES:
                if name in _WATCHES_GRADIENTS:
                    self.split_before(args[0])
                graph_break("torch_call", f"Tensor.{name} is not modelled")
            if name == "grad":
                return self._grad(args[0])
            value = func(*args)
            if not isinstance(value, FakeTensor):
                return value
            return self._record("call_function", builtins.getattr, lambda *_: value, (args[0], name), {})
        graph_break("torch_call", f"writing Tensor.{name} is not modelled")

    def _grad(self, tensor: Any) -> Any:
        if id(tensor) in self.input_info:
            graph_break("torch_call", "reading .grad of an input is not modelled")
        return None  # made inside: backward() is a graph break, so it has none

    def _is_inference(self, tensor: Any) -> bool:
        """Whether the tensor was made in inference mode: the fake of one that was not may be made in it."""
        known = self.input_info.get(id(tensor))
        if known is None:
            graph_break("torch_call", "Tensor.is_inference of a tensor made inside")
        with DisableTorchFunction():
            return known[1].is_inference()

    def _rely_on_offset(self, tensor: Any) -> None:
        """The program looks at where a tensor begins in its storage, which may be that of inputs."""
        if type(tensor) is not FakeTensor or self.fake_mode.env is None:
            return
        for fake, real, source in self.input_info.values():
            if fake.storage_token is tensor.storage_token:
                self.fake_mode.env.rely_on_offset(source, int(real.storage_offset()))

    def _value(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`bool(x)`, `x.item()` and the like: known for small constants, else a break."""
        try:
            env = self.fake_mode.env
            scalars = env is not None and env.options.capture_scalars
            if name == "tolist" and scalars and type(args[0]) is FakeTensor and args[0].constant is None:
                return self._numbers_of(args[0])
            if type(args[0]) is FakeTensor and name in FakeTensor.__dict__:
                func = getattr(FakeTensor, name)
            value = func(*args, **kwargs)
            if type(value) in SYMBOLIC:
                node = self.graph.create_node("call_method", name, self._argument(args), self._argument(kwargs))
                self._note(node, value)
            return value
        except GraphBreak as error:
            self.on_unknown(name)
            graph_break("data_dependent", error.details or f"Tensor.{name} needs the values of a tensor")

    def number_in(self, tensor: FakeTensor) -> Any:
        """The number that the graph reads out of a tensor of one element, whether or not the program's `.item()` is captured."""
        assert self.fake_mode.env is not None
        node = self.graph.create_node("call_method", "item", self._argument((tensor,)), {})
        number = unbacked_number(self.fake_mode.env, tensor)
        self._note(node, number)
        return number

    def _numbers_of(self, tensor: FakeTensor) -> Any:
        """`tolist()`: one number after the other."""
        if not tensor.dim():
            return self._value(torch.Tensor.item, "item", (tensor,), {})
        rows = self._record("call_method", "unbind", torch.Tensor.unbind, (tensor,), {})
        return [self._numbers_of(row) for row in rows]

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

    def _note(self, node: torch.fx.Node, value: Any) -> None:
        """`node` was recorded, and gave `value`."""
        self.leaves.check(node, value)
        meta.set_sites(node, self.sites())
        meta.set_fake(node, value)
        self.step_of[node] = self.step
        self.calls += 1
        self.quietly_written.update({id(fake): fake for fake in raising.quietly_written(node)})
        if self.in_protected_block():
            self.protected = True
            self.handled_inside = self.handled_inside or self.may_be_handled_inside()
        if self.order is EffectOrder.NOTED and not self.raises_amid:
            self.raises_amid = raising.may_raise(node) and (self.in_protected_block() or self.amid_effects())
        elif self.order is EffectOrder.SPLIT and self.writes_inputs():
            name = node.target if node.op == "call_method" else node.name
            graph_break("writes_and_raises", f"{name} writes into a tensor that is too large to be copied first, or has a history")
        for name, place in symbols_made(self.fake_mode.env, value).items():
            if name not in self.symbols and name not in self._sized:
                self._call_after(name, node, place)
            if place is None and name not in self.symbols:
                self.symbols[name] = self._as_number(node, value) if type(value) is torch.SymBool else node
            elif place is None:
                continue
            else:
                self._sized.setdefault(name, (node, place))

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

    # ------------------------------------------------------------------ the end

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Torch calls within the block are recorded."""
        with self.fake_mode, self.mode, ExitStack() as self._modes:
            yield
        self._modes = None

    def on_symbol(self) -> None:
        """From the first symbolic size on, operators have to run on such.

        From the next operator, that is: the block is left with the recording, and one that is entered within an operator's own
        such block would put that one's state back, for good.
        """
        self._symbolic = self._symbolic or self._modes is not None

    def _enter_symbolic(self) -> None:
        if self._symbolic and self._modes is not None and not self._in_symbolic:
            self._in_symbolic = True
            self._modes.enter_context(symbolic_kernels(True))


_ASKS_VALUES = frozenset(
    {"__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "tolist", "numpy", "__array__", "is_nonzero"}
)
#: methods of Tensor that change what no graph can say, or tell what only a real tensor knows
UNMODELLED_METHODS = frozenset(
    {"backward", "register_hook", "data_ptr", "untyped_storage", "storage", "set_", "resize", "resize_", "resize_as",
     "resize_as_", "resize_as_sparse_", "sparse_resize_", "sparse_resize_and_clear_", "share_memory_", "__reduce_ex__",
     "register_post_accumulate_grad_hook", "retain_grad", "__deepcopy__", "__repr__", "__format__", "__str__", "to_sparse",
     "apply_", "map_", "map2_", "as_subclass", "_make_subclass", "numpy", "pin_memory", "__dlpack__", "__dlpack_device__"}
)
#: Python methods of Tensor that only arrange calls of others: run them, what they call is recorded
_PLAIN_METHODS = frozenset({"__len__", "__hash__", "dim_order"})
_REFUSED_PROPERTIES = frozenset({"grad_fn", "_backward_hooks", "__cuda_array_interface__", "_version", "volatile", "_base"})


def _refused() -> frozenset[Any]:
    names = ("manual_seed", "seed", "initial_seed", "save", "load", "from_numpy", "frombuffer", "from_dlpack", "set_default_dtype",
             "set_default_device", "set_rng_state", "get_rng_state", "autograd.backward", "compile", "equal",
             "allclose", "resize_as_", "resize_as_sparse_", "use_deterministic_algorithms", "set_num_threads", "as_tensor", "asarray")
    found = []
    for name in names:
        obj: Any = torch
        for part in name.split("."):
            obj = getattr(obj, part)
        found.append(obj)
    return frozenset(found) - {torch.as_tensor, torch.asarray}


_REFUSED = _refused()


class _RecordingMode(TorchFunctionMode):
    """Hands every call of a torch function to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recorder._enter_symbolic()
        return self.recorder.handle(func, args, kwargs or {})


#: methods of Tensor written in Python, some of which (`__pow__`) carry the name of the function that they wrap
_PYTHON_METHODS: dict[Any, str] = {
    method: name for name, method in vars(torch.Tensor).items() if isinstance(method, types.FunctionType)
}


def _is_tensor_method(func: Any) -> bool:
    if isinstance(func, types.FunctionType):
        return func in _PYTHON_METHODS
    return isinstance(func, types.WrapperDescriptorType) and issubclass(torch.Tensor, func.__objclass__)


def _argument_of_body() -> Any:
    raise InternalError("dynamo.record", "an argument of a function that was to be moved into a graph of its own")


def _is_effect(target: Any) -> bool:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name in ("setitem", "__setitem__") or (name.endswith("_") and not name.endswith("__"))


def _with_dtype(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> dict[str, Any]:
    """The keywords of a call with the dtype that its result has by NumPy's numbers, which become Python's in the graph."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name not in LOOK_AT_TYPES or type(value) is not FakeTensor or kwargs.get("dtype") is not None:
        return kwargs
    numbers = [leaf.item() for leaf in tree_leaves((args, kwargs)) if type(leaf) in NUMPY_SCALARS]
    if not value.dtype.is_complex and any(type(number) is complex for number in numbers):
        graph_break("torch_call", f"{name} takes the real part of a complex number, with a warning")
    return {**kwargs, "dtype": value.dtype} if numbers else kwargs


def _refuse_real(values: Any) -> None:
    """A tensor that is no fake must not reach an operator: it would run for real."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            continue
        if kind is tuple or kind is list:
            _refuse_real(value)
        elif isinstance(value, torch.Tensor):
            graph_break("unsupported_tensor", f"a {kind.__qualname__} ({value.layout}) that capture does not model")


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
