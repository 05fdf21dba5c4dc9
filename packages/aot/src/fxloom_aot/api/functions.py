"""Joint graphs of plain functions and modules, for a backend of one's own, without capture.

In: a function or `nn.Module`, example arguments (nests of tensors and constants). Out: a callable of the same arguments whose
forward and backward graphs were compiled by the caller's `compiler`, or the graphs themselves.

The function is run once, on fakes of the example tensors: all that is not a tensor is a constant, and Python control flow is as the
examples took it. So a call checks that its arguments, and the modes that it is made in, are like those of the examples, and says
what differs; dynamo is the package that guards and compiles again. Closures, globals and attributes are not checked.
Parameters and buffers of a module are inputs of the graphs, before the arguments.
Invariant: a call that is not like the examples raises before anything is computed or written.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.fx
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from fxloom_aot._torch_private import in_dual_level, transforms_active
from fxloom_aot.api.compile_graph import Compiler, checked, compile_traced
from fxloom_aot.api.eager_compiler import eager_compiler
from fxloom_aot.functional.functional_log import Decompositions
from fxloom_aot.partitioning.partition import Partitioner, save_all
from fxloom_aot.recording.modes import autocast_state
from fxloom_aot.storages import StorageChanged
from fxloom_aot.trace_result import Traced
from fxloom_aot.tracing.trace import trace_graph
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.signature import OutputKind


def aot_function(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    compiler: Compiler = eager_compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Callable[..., Any]:
    """`fn` with its forward and backward graphs compiled ahead of time.

    compiler: takes a GraphModule of the aten dialect and its GraphSignature, returns a callable of one list of inputs (which
    it may clear) to the flat outputs; `backward_compiler` is the same for the backward graph. Values, aliasing, mutation and
    gradients are those of `fn`. TypeError when called with arguments unlike the examples, RuntimeError when in other modes
    (grad mode, autocast, default dtype), in a transform of `torch.func` or with tangents of forward mode; GraphRejected for what
    can't be treated soundly; PluginError where a compiler or the partitioner gives something else than it has to; what `fn` raises
    comes out as it is.
    """
    program = _Program(fn, _as_arguments(example_args), example_kwargs or {})
    traced = program.trace(decompositions, partitioner)
    theirs = [None if given in (None, eager_compiler) else checked(given) for given in (compiler, backward_compiler)]
    return program.callable(traced, compile_traced(traced, theirs[0] or compiler, theirs[1] or backward_compiler))


def aot_module(
    module: torch.nn.Module,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    compiler: Compiler = eager_compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Callable[..., Any]:
    """As `aot_function`, for a module: gradients go to its parameters, and its buffers are updated.

    RuntimeError, too, when a part of it was put in training or evaluation mode since.
    """
    state, call = _functional(module)
    training = _training(module)
    run = aot_function(
        call, [state, *_as_arguments(example_args)], example_kwargs, compiler=compiler, backward_compiler=backward_compiler,
        decompositions=decompositions, partitioner=partitioner,
    )  # fmt: skip

    def compiled(*args: Any, **kwargs: Any) -> Any:
        now = _training(module)
        for name, mode in now.items() if now != training else ():
            if training.get(name) is not mode:
                raise RuntimeError(f"training of module {name!r} is {mode}; it was {training.get(name)} when it was compiled")
        return run(_state_of(module), *args, **kwargs)

    return compiled


def aot_export(
    target: Callable[..., Any] | torch.nn.Module,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Traced:
    """The forward graph of a function or module and, where grad mode is on and an output requires grad, its backward graph.

    `Traced.forward.gm` and `.signature` say what is computed and what every flat input and output is; `.backward` likewise.
    """
    args = _as_arguments(example_args)
    if isinstance(target, torch.nn.Module):
        state, call = _functional(target)
        program = _Program(call, (state, *args), example_kwargs or {})
    else:
        program = _Program(target, args, example_kwargs or {})
    return program.trace(decompositions, partitioner)


def _as_arguments(example_args: Any) -> tuple[Any, ...]:
    if not isinstance(example_args, (tuple, list)):
        raise TypeError(f"example_args is a {type(example_args).__name__}; it has to be a list or tuple of the arguments")
    return tuple(example_args)


#: none of these is the user's
_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def _place_of(error: BaseException) -> str:
    """The line of the program that was running when `error`, or what it comes from, was raised; empty where there is none."""
    place = ""
    cause: BaseException | None = error
    while cause is not None and not place:
        within = False  # the program, which `flat` calls
        for frame in traceback.extract_tb(cause.__traceback__):
            within = within or (frame.filename == __file__ and frame.name == "flat")
            if within and not frame.filename.startswith(_OURS) and f"{os.sep}fxloom_" not in frame.filename:
                place = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        cause = cause.__cause__ or cause.__context__
    return place


def _state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _training(module: torch.nn.Module) -> dict[str, bool]:
    return {name: part.training for name, part in module.named_modules()}


def _functional(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], Callable[..., Any]]:
    """The module's state, and a function of that state and the arguments."""
    return _state_of(module), lambda state, *args, **kwargs: torch.func.functional_call(module, state, args, kwargs)


@dataclass(frozen=True, slots=True)
class _Like:
    """What a tensor argument has to be like."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    requires_grad: bool
    conjugate: bool
    negative: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> _Like:
        if tensor.layout is not torch.strided:
            raise TypeError(f"an argument is a tensor of layout {tensor.layout}; only {torch.strided} is supported")
        kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else type(tensor)
        return _Like(
            kind, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg()
        )


def _first_of_each(tensors: Sequence[torch.Tensor]) -> list[int]:
    """By tensor: number of the first that is the very same."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(tensor), number) for number, tensor in enumerate(tensors)]


def _sharing(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """By tensor: number of the first on the same memory, and the way from that one's first element to its own, in bytes."""
    storages: dict[tuple[torch.device, int], int] = {}
    starts = [int(tensor.storage_offset()) * tensor.element_size() for tensor in tensors]
    result = []
    for number, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        first = storages.setdefault((tensor.device, storage.data_ptr()), number) if storage.nbytes() else number
        result.append((first, starts[number] - starts[first]))
    return result


def _modes() -> dict[str, Any]:
    """What is no argument and decides what operators do."""
    autocast = {f"autocast of {device}": dtype if on else None for device, (on, dtype) in autocast_state().items()}
    return {"the default dtype": torch.get_default_dtype(), **autocast}


def _refuse_transforms(tensors: Sequence[torch.Tensor]) -> None:
    """Autograd differentiates what is compiled here; transforms of functions and forward mode would be lost."""
    if transforms_active():
        raise RuntimeError("compiled ahead of time or called within a transform of torch.func: transform the function before instead")
    if in_dual_level() and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise RuntimeError("an argument carries a tangent of forward-mode differentiation, which graphs compiled ahead of time drop")


def _snapshot(constant: Any) -> Any:
    """What to compare a constant with later, when an array may have been written."""
    return constant.copy() if _is_array(constant) else constant


def _is_array(value: Any) -> bool:
    """True for arrays and numbers of NumPy, which need not be installed."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _is_constant(value: Any, constant: Any) -> bool:
    """True when an argument is the constant of the example, to the bit: 0.0 is not -0.0, and NaN is NaN."""
    if type(value) is not type(constant):
        return False
    if isinstance(value, (float, complex)):
        return repr(value) == repr(constant)
    if _is_array(value):
        return value.dtype == constant.dtype and value.shape == constant.shape and value.tobytes() == constant.tobytes()
    return value is constant or bool(value == constant)


_REMEDY = (
    "Take that part out of the function, or give what it computes as a constant argument; fxloom.compile breaks the graph there "
    "and goes on behind it."
)


class _Program:
    """A function as a torch-dialect graph of one node over the tensors among its arguments."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.leaves, self.spec = _flatten(args, kwargs)
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.constants = {place: _snapshot(leaf) for place, leaf in enumerate(self.leaves) if not isinstance(leaf, torch.Tensor)}
        self.example_inputs: list[torch.Tensor] = [self.leaves[place] for place in self.places]
        _refuse_transforms(self.example_inputs)
        self.likes = [_Like.of(tensor) for tensor in self.example_inputs]
        self.first_of_each = _first_of_each(self.example_inputs)
        self.sharing = _sharing(self.example_inputs)
        self.grad_mode = torch.is_grad_enabled()
        self.modes = _modes()
        self.result: Any = None

        def flat(*tensors: torch.Tensor) -> tuple[Any, ...]:
            leaves = list(self.leaves)
            for place, tensor in zip(self.places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            outputs, self.result = pytree.tree_flatten(fn(*args, **kwargs))
            return tuple(outputs)

        graph = torch.fx.Graph()
        inputs = tuple(graph.placeholder(f"input_{number}") for number in range(len(self.places)))
        graph.output(graph.call_function(flat, inputs))
        self.graph = graph_module(torch.nn.Module(), graph)

    def trace(self, decompositions: Decompositions | None, partitioner: Partitioner) -> Traced:
        try:
            return trace_graph(self.graph, self.example_inputs, decompositions or {}, partitioner)
        except GraphRejected as error:
            if error.raises and error.__cause__ is not None:
                raise error.__cause__  # noqa: B904  # the function's own
            rejected = GraphRejected(error.node, error.reason)
            place = _place_of(error)
            text = [f"{self.name} is no single graph: {error.reason}", f"  from: {place}" if place else "", f"  {_REMEDY}"]
            rejected.args = ("\n".join(filter(None, text)),)
            raise rejected from error
        finally:  # they are the caller's
            self.example_inputs.clear()
            for number in self.places:
                self.leaves[number] = None

    def callable(self, traced: Traced, run: Callable[..., list[Any]]) -> Callable[..., Any]:
        signature = traced.forward.signature
        writes = bool(signature.outputs_of(OutputKind.NEW_VALUE) or signature.metadata)

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = _flatten(args, kwargs)
            if spec != self.spec:
                raise TypeError(f"arguments are nested as {spec}; the example arguments were nested as {self.spec}")
            self._check_constants(leaves)
            tensors = [leaves[place] for place in self.places]
            _refuse_transforms(tensors)
            self._check_tensors(tensors, writes)
            self._check_modes()
            try:
                outputs = run(*tensors)
            except StorageChanged as error:
                raise TypeError(f"arguments are at other places in their memory than the examples: {error.details}") from error
            return pytree.tree_unflatten(outputs, self.result)

        return call

    def _check_constants(self, leaves: Sequence[Any]) -> None:
        for place, constant in self.constants.items():
            if not _is_constant(leaves[place], constant):
                raise TypeError(f"argument {place} is {leaves[place]!r}; it was {constant!r} in the example and is a constant")

    def _check_tensors(self, tensors: Sequence[Any], writes: bool) -> None:
        for place, tensor, like in zip(self.places, tensors, self.likes, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"argument {place} is a {type(tensor).__name__}; the example was a {like.kind.__name__}")
            now = _Like.of(tensor)
            if now != like:
                names = [one.name for one in fields(_Like) if getattr(now, one.name) != getattr(like, one.name)]
                is_, was = (", ".join([f"{name} {getattr(of, name)}" for name in names]) for of in (now, like))
                raise TypeError(f"argument {place} is of {is_}; the example was of {was}")
        for number, first in enumerate(self.first_of_each):
            if tensors[number] is not tensors[first]:
                raise TypeError(
                    f"arguments {self.places[first]} and {self.places[number]} are two tensors; they were one in the example"
                )
        # who shares with whom shows only when something is written
        for number, (now_, then) in enumerate(zip(_sharing(tensors), self.sharing, strict=True)) if writes else ():
            if now_ != then:
                raise TypeError(
                    f"argument {self.places[number]} {self._shares(number, now_)}; the example {self._shares(number, then)}, "
                    "and arguments are written to"
                )

    def _shares(self, number: int, sharing: tuple[int, int]) -> str:
        first, distance = sharing
        if first == number:
            return "shares no memory with an argument before it"
        return f"is in the memory of argument {self.places[first]}, {distance} bytes after it"

    def _check_modes(self) -> None:
        if not self.grad_mode and torch.is_grad_enabled():
            raise RuntimeError("called with grad mode on, and compiled with it off, without a backward: call it under torch.no_grad()")
        modes = _modes()
        if modes != self.modes:
            name = next(name for name, mode in modes.items() if mode != self.modes[name])
            raise RuntimeError(f"{name} is {modes[name]}; it was {self.modes[name]} when the function was compiled")


def _flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    return pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
