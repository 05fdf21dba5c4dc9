"""Recording of torch calls into an FX graph of the torch dialect.

In: calls of torch's public functions on fakes, wherever they come from: a `TorchFunctionMode` is on while the program is
evaluated, so an operator called by C code (`map(torch.sin, xs)`, `sum(tensors)`) is recorded like one that the evaluator
calls itself. Out: a graph whose placeholders carry their sources, and the fake of every node.

Invariant: a fake is known by identity to exactly one node; a fake that no node made is a fault of fxloom.
What only asks for metadata (`x.shape`, `x.dtype`) is answered from the fake and leaves no node; what needs the values of
a tensor is a graph break.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

import fxloom_dynamo.symbolic_numbers.load_all  # noqa: F401  # fills the table of rules
from fxloom_dynamo._torch_private import DisableTorchFunction, TensorBase, TorchFunctionMode, device_constructors, torchs_default
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.directives import Directive, directive_for
from fxloom_dynamo.graph import number_arguments, symbolic_data, symbolic_float_calls, symbolic_index, writes_and_raises
from fxloom_dynamo.graph.builder import GraphBuilder, has_tensor
from fxloom_dynamo.graph.leaves import Leaves
from fxloom_dynamo.graph.symbolic_data import is_symbolic_data
from fxloom_dynamo.graph.symbolic_index import is_symbolic_index
from fxloom_dynamo.guard.history import EffectOrder
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS
from fxloom_dynamo.objects.unguarded import LOOK_AT_TYPES
from fxloom_dynamo.symbolic_numbers import registry
from fxloom_interfaces import meta
from fxloom_interfaces.errors import GraphBreak
from fxloom_shapes import FakeMode, FakeTensor, symbolic_kernels
from fxloom_shapes.fake.size_nodes import symbols_made
from fxloom_shapes.propagation.data_dependent import unbacked_number
from fxloom_shapes.propagation.propagate import statistics
from fxloom_shapes.symbols.numbers import SYMBOLIC
from fxloom_shapes.symbols.options import QueryOrigin

if TYPE_CHECKING:
    from fxloom_dynamo.graph.predicted_branches import Prediction

#: what shows the gradient of an intermediate, or changes it: what was computed from it must not be in one graph with it
_WATCHES_GRADIENTS = frozenset({"register_hook", "retain_grad", "_backward_hooks", "grad_fn"})

#: method of TensorBase -> Python operator that says the same and reads better in a graph
_OPERATORS: dict[str, Callable[..., Any]] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
}


class Recorder(GraphBuilder):
    """See the module's docstring. One per capture attempt."""

    def __init__(self, fake_mode: FakeMode) -> None:
        super().__init__(fake_mode)
        self.draws_before = statistics.draws
        self.split_step: int | None = None  # where a break belongs that is raised later
        self.regions = 0  # that are open and have to end in the graph
        self.devices: list[torch.device] = []  # of `with torch.device(...)` regions: where factories put tensors
        self.profiler_regions: list[torch.fx.Node] = []  # the beginnings of open regions with names for a profiler
        self.leaves = Leaves(self)
        self.overrides_off = 0  # depth of places where no class of tensors overrides torch functions
        self.override: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] = lambda func, args, kwargs: NotImplemented
        self.calls = 0
        self.mode = _RecordingMode(self)
        self.in_protected_block: Callable[[], bool] = lambda: False
        self.in_transform: Callable[[], bool] = lambda: False  # whether a function that torch.func transforms is evaluated
        self.on_value_needed: Callable[[str], None] = lambda method: None  # before a break at a method that asks for values
        self.order = EffectOrder.FREE
        self.amid_effects: Callable[[], bool] = lambda: False
        self.raises_amid = False  # whether an operator may raise after an effect, or where the program handles it
        self.protected = False  # whether some operator is called in a `try` or `with` of the program's
        self.handled_inside = False  # whether an inlined function may handle what some operator raises
        self.may_be_handled_inside: Callable[[], bool] = lambda: False
        self.predictions: list[Prediction] = []
        self._modes: ExitStack | None = None
        self._symbolic = self._in_symbolic = False



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

    def handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the mode does for one call of a torch function."""
        _refuse_real(args)
        if self.overriding and not self.overrides_off:
            with self.mode:
                result = self.override(func, args, kwargs)
            if result is not NotImplemented:
                return result
        # the graph says where its tensors are made: it may run, or be recorded once more, under another default
        device = self.devices[-1] if self.devices else torchs_default.CURRENT_DEVICE
        if device is not None and kwargs.get("device") is None and func in device_constructors():
            kwargs = {**kwargs, "device": device}
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
            if name == "requires_grad_" and self.leaves.is_unrecorded(args[0]):
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
            self.on_value_needed(name)
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

    def _note(self, node: torch.fx.Node, value: Any) -> None:
        """`node` was recorded, and gave `value`."""
        self.leaves.check(node, value)
        meta.set_sites(node, self.sites())
        meta.set_fake(node, value)
        self.step_of[node] = self.step
        self.calls += 1
        self.written_without_version.update({id(fake): fake for fake in writes_and_raises.written_without_version(node)})
        if self.in_protected_block():
            self.protected = True
            self.handled_inside = self.handled_inside or self.may_be_handled_inside()
        if self.order is EffectOrder.NOTED and not self.raises_amid:
            self.raises_amid = writes_and_raises.may_raise(node) and (self.in_protected_block() or self.amid_effects())
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
