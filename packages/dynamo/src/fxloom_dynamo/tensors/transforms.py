"""`torch.func`: a transformed function stands in the graph as one call of the transform on a body.

In: a transform of `torch.func`, the function and its arguments. Out: fakes of the results, with one node of the graph that applies the
transform.

`grad(f)(x)` and its kin: `f` is evaluated once, on fakes like those that the transform hands it (a sample under `vmap`, a
tensor that requires grad under `grad`), for its guards and its operators, which become a body. The node applies torch's own
transform to that body; applied to fakes here, it says what the results are like, and raises what the program would see. So
what the levels of transforms mean is torch's business, for every backend.

A function that does more than compute tensors is a break: it would be evaluated under other circumstances than eager's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fxloom_dynamo._torch_private import DisableTorchFunction, TorchDispatchMode, set_grad_enabled_raw
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.tensors.purity import Watch
from fxloom_dynamo.traced import polyfills
from fxloom_interfaces import meta
from fxloom_interfaces.regions import HOLE, Transform
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxloom_dynamo.interpreter.protocol import Interpreter

Sample = Callable[[tuple[Any, ...], dict[str, Any]], Any]


# ---------------------------------------------------------------------- what runs in eager, too


def run_transform(transform: Callable[..., Any], function: Any, options: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """A transformed function called: `transform(function, **options)(*args, **kwargs)`."""
    return transform(function, **options)(*args, **kwargs)


def pull_back(function: Any, primals: Any, options: dict[str, Any], cotangents: Any) -> Any:
    """The second result of `torch.func.vjp`, called."""
    return torch.func.vjp(function, *primals, **options)[1](*cotangents)


# ---------------------------------------------------------------------- models


def transformer(transform: Callable[..., Any]) -> Callable[..., Any]:
    """The model of a transform that takes a function and returns one."""
    signature = inspect.signature(transform)

    def model(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Raised(error) from None
        options = dict(bound.arguments)
        function = options.pop("func")
        ev.heap.fill_deep(list(options.values()))
        return ev.call(polyfills.transformed, [run_transform, transform, function, options])

    return model


def apply_transform(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `run_transform`."""
    transform, function, options, given, named = args
    name = transform.__name__
    if name == "vmap" and named:
        graph_break("torch_call", "vmap of a function that gets keyword arguments")
    sample = _SAMPLES[name]
    apply = functools.partial(_apply, transform, tuple(options.items()))
    differentiates = name != "vmap"
    return _record(ev, name, apply, function, tuple(given), dict(named), lambda values: sample(values, options), differentiates)


def _apply(transform: Callable[..., Any], options: tuple[tuple[str, Any], ...], function: Any, *args: Any) -> Any:
    return transform(function, **dict(options))(*args)


def jvp(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.func.jvp`."""
    function, primals, tangents, options = _bound(torch.func.jvp, args, kwargs, "func", "primals", "tangents")
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        graph_break("torch_call", "jvp of something that is no tuple")
    apply = functools.partial(_forward, tuple(options.items()))
    return _record(ev, "jvp", apply, function, (primals, tangents), {}, lambda values: pytree.tree_map(_variable, values[0]), True)


def _forward(options: tuple[tuple[str, Any], ...], function: Any, *args: Any) -> Any:
    return torch.func.jvp(function, *args, **dict(options))


def vjp(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.func.vjp`: the second result computes the function again, which is merged with the first time."""
    if not args:
        raise Raised(TypeError("vjp() missing 1 required positional argument: 'func'"))
    function, *primals = args
    if kwargs.keys() - {"has_aux"}:
        graph_break("torch_call", "vjp with arguments that capture does not model")
    apply = functools.partial(_only_values, tuple(kwargs.items()))
    values = _record(ev, "vjp", apply, function, tuple(primals), {}, lambda given: pytree.tree_map(_variable, given), True, again=True)
    pull = ev.call(polyfills.pulled_back, [pull_back, function, tuple(primals), dict(kwargs)])
    return (values[0], pull, values[1]) if kwargs.get("has_aux") else (values, pull)


def _only_values(options: tuple[tuple[str, Any], ...], function: Any, *primals: Any) -> Any:
    result = torch.func.vjp(function, *primals, **dict(options))
    return (result[0], result[2]) if len(result) == 3 else result[0]


def apply_pull_back(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `pull_back`."""
    function, primals, options, cotangents = args
    apply = functools.partial(_pulled, tuple(options.items()))
    return _record(
        ev, "vjp", apply, function, (primals, cotangents), {}, lambda given: pytree.tree_map(_variable, given[0]), True, again=True
    )


def _pulled(options: tuple[tuple[str, Any], ...], function: Any, primals: Any, cotangents: Any) -> Any:
    return pull_back(function, primals, dict(options), cotangents)


# ---------------------------------------------------------------------- samples: what the function is evaluated on


def _variable(value: Any) -> Any:
    """A tensor as a function sees it that is differentiated by it."""
    if type(value) is not FakeTensor:
        return value
    alias = value.detach()
    return alias.requires_grad_() if alias.is_floating_point() or alias.is_complex() else alias


def _differentiated(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    argnums = options.get("argnums", 0)
    chosen = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(type(number) is int for number in chosen):
        graph_break("torch_call", "argnums that are no numbers")
    places = {number % len(args) for number in chosen} if args else set()
    return tuple(pytree.tree_map(_variable, arg) if place in places else arg for place, arg in enumerate(args))


def _unbatched(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    dims = options.get("in_dims", 0)
    leaves, spec = pytree.tree_flatten(args)
    flat = pytree._broadcast_to_and_flatten(dims if not isinstance(dims, list) else tuple(dims), spec)
    if flat is None:
        raise Raised(ValueError(f"vmap: in_dims {dims!r} is not compatible with the structure of the inputs"))

    def one(leaf: Any, dim: Any) -> Any:
        if type(leaf) is not FakeTensor or dim is None:
            return leaf
        if not leaf.dim() or not leaf.shape[dim]:
            graph_break("torch_call", "vmap over nothing")
        return leaf.select(dim, 0)

    return pytree.tree_unflatten([one(leaf, dim) for leaf, dim in zip(leaves, flat, strict=True)], spec)


_SAMPLES: dict[str, Sample] = {
    "grad": _differentiated,
    "grad_and_value": _differentiated,
    "jacrev": _differentiated,
    "jacfwd": _differentiated,
    "hessian": _differentiated,
    "vmap": _unbatched,
}


# ---------------------------------------------------------------------- the node


def _record(
    ev: Interpreter, name: str, apply: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    sample: Callable[[Any], Any], differentiates: bool, *, again: bool = False,
) -> Any:  # fmt: skip
    """Evaluate `function` and record `apply(function, *args)`. again: other nodes compute the function another time."""
    recorder = ev.recorder
    ev.heap.fill_deep(list(args))
    leaves, spec = _flat(args, "gets")
    tensors = [leaf for leaf in leaves if type(leaf) is FakeTensor]
    given = [recorder.node_of(fake) for fake in tensors]
    last = recorder.last_node()
    watch = Watch(ev, [function, *args, *kwargs.values()])
    with DisableTorchFunction():
        inner = sample(args)
    inner_tensors = [leaf for leaf in pytree.tree_leaves(inner) if type(leaf) is FakeTensor]
    # a tensor that the transform hands on as it is comes in from outside like all else that the function reaches
    arguments = [recorder.add_argument(fake if id(fake) not in recorder.nodes else _alias(fake)) for fake in inner_tensors]
    try:
        with _evaluating(ev, differentiates):
            result = ev.call(function, list(inner), kwargs)
    except Raised:
        recorder.discard_after(last, [])
        raise
    changes = watch.changes()
    if changes and (again or not watch.only_constants_changed()):  # what is written is written once, as in eager
        graph_break("torch_call", f"torch.func.{name} of a function that {changes}")
    results, result_spec = _flat(result, "returns")
    outputs = [leaf for leaf in results if type(leaf) is FakeTensor]
    body, lifted = recorder.outline(last, arguments, outputs)
    holes = tuple(HOLE if type(leaf) is FakeTensor else leaf for leaf in leaves)
    result_holes = tuple(HOLE if type(leaf) is FakeTensor else leaf for leaf in results)
    transform = Transform(name, apply, spec, holes, result_spec, result_holes)
    graph = getattr(recorder.root, str(body.target))
    watching = _SeededCalls()
    try:
        with DisableTorchFunction(), watching:
            found = transform.nested(graph, *tensors, *map(meta.get_fake, lifted))
    except Exception as error:
        if type(error).__module__.startswith("fxloom"):
            raise
        raise Raised(ev.clean(error)) from None
    if again and watching.seen:
        graph_break("torch_call", f"torch.func.{name} of a function that draws random numbers")
    flat, _ = _flat(found, "gives")
    recorder.record_node(transform, (body, *given, *lifted), {}, tuple(flat))
    return found


def _alias(fake: FakeTensor) -> FakeTensor:
    with DisableTorchFunction():
        return fake.detach()  # type: ignore[return-value]  # a fake's alias is a fake


def _flat(nest: Any, what: str) -> tuple[list[Any], Any]:
    """Leaves and structure of a nest of tensors and constants."""
    leaves, spec = pytree.tree_flatten(nest)
    strange = next((leaf for leaf in leaves if type(leaf) is not FakeTensor and type(leaf) not in LITERALS), None)
    if strange is not None:
        graph_break("torch_call", f"torch.func: a function that {what} a {type(strange).__qualname__}")
    return leaves, spec


@contextmanager
def _evaluating(ev: Interpreter, differentiates: bool) -> Iterator[None]:
    """Gradients are on within a function that is differentiated, whatever they are outside."""
    before = torch.is_grad_enabled()
    ev.tensors.transforms += 1
    if differentiates:
        set_grad_enabled_raw(True)
    try:
        yield
        if torch.is_grad_enabled() != (before or differentiates):
            graph_break("torch_call", "torch.func: a function that leaves grad mode other than it was")
    finally:
        ev.tensors.transforms -= 1
        set_grad_enabled_raw(before)


class _SeededCalls(TorchDispatchMode):
    """Notes whether random operators ran."""

    _should_skip_dynamo = classmethod(lambda cls: False)

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _bound(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """The arguments called `names`, then the others by name."""
    try:
        bound = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise Raised(error) from None
    return (*(bound.pop(name) for name in names), bound)
