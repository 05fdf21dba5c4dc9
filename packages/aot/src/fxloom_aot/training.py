"""The runtime of a graph with a backward part: one `torch.autograd.Function` per compiled graph.

In: compiled forward and backward, their signatures. Out: a callable like `inference_wrapper`'s that autograd can
differentiate once. Lifetimes: saved tensors belong to autograd (`save_for_backward`), which checks that nobody wrote over
them; saved numbers and the signature stay on the context.

A compiled backward graph may give its gradients in parts (`parts`, `in_parts`), as it makes them. Then the function is a
chain: one node of autograd for each part, the first with the outputs, each handing a token to the next. Between two parts
autograd accumulates the gradients of the first, so that they are freed before the next are made.
"""

from __future__ import annotations

import contextvars
import functools
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from fxloom_aot._torch_private import below_autograd, is_plain_backward, saved_without_check
from fxloom_aot.late import late
from fxloom_aot.runtime import Compiled, StorageCheck, finisher, input_gatherer
from fxloom_aot.trace import Given
from fxloom_aot.views import is_dense
from fxloom_interfaces.signature import GraphSignature, InputKind, OutputKind
from fxloom_shapes import Descriptor, describe

#: of one graph's backward pass
_MOST_VARIANTS = 8


class CompiledBackward:
    """A compiled backward graph and how to call it.

    tangents: what it expects of each gradient that it is given. unused: numbers of saved values that it does not read.
    """

    __slots__ = (
        "_constants", "_count", "_layouts", "_positions", "_saved", "_tangents", "gradient_of", "parts", "run", "saved_from", "unused",
    )  # fmt: skip

    def __init__(
        self, run: Compiled, signature: GraphSignature, tangents: Sequence[Descriptor], unused: frozenset[int] = frozenset()
    ) -> None:
        inputs = signature.inputs
        self.run = run
        self.unused = unused
        # where each SAVED input comes from: (True, placeholder) or (False, flat output) of the forward graph
        self.saved_from = [(spec.of_input, spec.index) for spec in inputs if spec.kind is InputKind.SAVED]
        self.gradient_of = [spec.index for spec in signature.outputs]
        #: positions of the gradients in each part
        self.parts: tuple[tuple[int, ...], ...] = getattr(run, "parts", ()) or (tuple(range(len(signature.outputs))),)
        self._saved = [n for n, spec in enumerate(inputs) if spec.kind is InputKind.SAVED]
        self._constants = [spec.constant for spec in inputs if spec.kind is InputKind.CONSTANT]
        self._count = len(inputs) - len(self._constants)
        # sizes among the saved values, and the layouts of gradients that are made of them
        places = {spec.symbol: n for n, spec in enumerate(inputs) if spec.kind is InputKind.SAVED and spec.symbol}
        self._layouts = [late((desc.size, desc.stride), places) for desc in tangents]
        self._tangents = tangents
        self._positions = [(n, spec.index) for n, spec in enumerate(inputs) if spec.kind is InputKind.TANGENT]

    @property
    def device(self) -> torch.device:
        """Where the gradients are that it is given."""
        return self._tangents[0].device

    def other_layout(self, number: int, gradient: torch.Tensor) -> tuple[int, ...] | None:
        """The strides of the gradient of a differentiable output, where they are dense and not those expected."""
        desc = self._tangents[number]
        if desc.env is not None or gradient.dim() < 2:
            return None
        stride = gradient.stride()
        if stride == desc.stride or not is_dense(describe(desc.size, stride, desc.dtype, desc.device)):
            return None
        same = all(a == b or extent == 1 for a, b, extent in zip(stride, desc.stride, desc.size, strict=True))
        return None if same or gradient.numel() == 0 else stride

    def in_parts(self, inputs: list[Any], parts: Sequence[tuple[int, ...]]) -> Iterator[list[Any]]:
        """The gradients at the positions of each of `parts`, which may not be the graph's own."""
        if len(parts) > 1 and parts == self.parts:
            yield from self.run.in_parts(inputs)  # type: ignore[attr-defined]  # it has parts
            return
        gradients = list(self.run(inputs))
        for positions in parts:
            part = [gradients[position] for position in positions]
            for position in positions:
                gradients[position] = None
            yield part

    def inputs(self, saved: Sequence[Any], given: Mapping[int, Any]) -> list[Any]:
        """The flat inputs. given: the gradients by forward output."""
        inputs: list[Any] = [None] * self._count
        for place, value in zip(self._saved, saved, strict=True):
            inputs[place] = value
        for (place, position), desc, layout in zip(self._positions, self._tangents, self._layouts, strict=True):
            inputs[place] = _as_traced(given[position], desc, *layout(inputs))
        inputs.extend(self._constants)
        return inputs


class SummedBackward(CompiledBackward):
    """The backward pass for several gradients, by one pass for each: what it gives is their sum."""

    __slots__ = ("_passes",)

    def __init__(self, passes: Sequence[CompiledBackward]) -> None:
        self._passes = passes
        self.run = self._run
        self.parts = ()
        self.unused = frozenset.intersection(*[single.unused for single in passes])

    def inputs(self, saved: Sequence[Any], given: Mapping[int, Any]) -> list[Any]:
        return [single.inputs(saved, given) for single in self._passes]

    def _run(self, inputs: list[Any]) -> Sequence[Any]:
        total: list[Any] = []
        for single, own in zip(self._passes, inputs, strict=True):
            gradients = single.run(own)
            total = _added(total, gradients) if total else list(gradients)
        return total


class MaskedBackward(CompiledBackward):
    """The whole backward pass, with zeros for gradients that did not come; nothing for leaves that the others don't reach."""

    __slots__ = ("_mask", "_whole")

    def __init__(self, whole: CompiledBackward, mask: int) -> None:
        self._whole, self._mask = whole, mask
        self.run = self._run
        self.parts = ()
        self.unused = whole.unused

    def inputs(self, saved: Sequence[Any], given: Mapping[int, Any]) -> list[Any]:
        return self._whole.inputs(saved, given)

    def _run(self, inputs: list[Any]) -> Sequence[Any]:
        return [gradient if self._mask >> number & 1 else None for number, gradient in enumerate(self._whole.run(inputs))]


def _added(total: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [b if a is None else a if b is None else a + b for a, b in zip(total, more, strict=True)]


class Variants:
    """Backward passes for gradients of some of the outputs, or in other layouts, compiled when first needed, once.

    In a thread of their own: the caller's may be one in which frames are captured, or modes are on. When there are many, sums
    of those for one output each stand in for further ones.
    """

    def __init__(self, compile_variant: Callable[[Given], CompiledBackward | None], count: int) -> None:
        """count: of all differentiable outputs; the pass for these in the expected layouts is the caller's."""
        self._compile = compile_variant
        self._count = count
        self._known: dict[Given, CompiledBackward | None] = {}
        self._lock = threading.Lock()
        self._room = _MOST_VARIANTS

    def get(self, given: Given) -> CompiledBackward | None:
        """The pass for `given`; None where there is none."""
        if given in self._known:
            return self._known[given]
        with self._lock:
            if given not in self._known:
                if self._room:
                    self._room -= 1
                    self._made(given)
                else:
                    self._known[given] = self._stand_in(given)
        return self._known[given]

    def _made(self, given: Given) -> CompiledBackward | None:
        if given not in self._known:
            context = contextvars.copy_context()
            with ThreadPoolExecutor(1) as pool:
                self._known[given] = pool.submit(context.run, self._compile, given).result()
        return self._known[given]

    def _stand_in(self, given: Given) -> CompiledBackward | None:
        """Gradients in other layouts are copied."""
        if len(given) == self._count:
            return None
        plain = tuple([(number, None) for number, _ in given])
        known = self._known.get(plain)
        if known is not None:
            return known
        singles = [self._made((one,)) for one in plain]
        passes = [single for single in singles if single is not None]
        if len(passes) < len(singles):
            return None
        return passes[0] if len(passes) == 1 else SummedBackward(passes)


class _Kept:
    """What was saved, kept beyond a backward pass for outputs that it did not differentiate. pending: their bit mask.

    versions: of the tensors when they were saved.
    """

    __slots__ = ("pending", "tensors", "versions")

    def __init__(self, tensors: Sequence[torch.Tensor], pending: int, versions: Sequence[int]) -> None:
        self.tensors, self.pending, self.versions = tensors, pending, versions

    def get(self, needed: Sequence[bool]) -> Sequence[torch.Tensor]:
        """The tensors; RuntimeError, as autograd's, where one that is needed was written over."""
        for tensor, version, wanted in zip(self.tensors, self.versions, needed, strict=True):
            if wanted and tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {tuple(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
                )
        return self.tensors


def training_wrapper(
    forward: Compiled,
    whole: CompiledBackward,
    signature: GraphSignature,
    checks: Sequence[StorageCheck] = (),
    *,
    only_plain_backward: bool = False,
    shared: Sequence[int] = (),
    reached: Sequence[int],
    variants: Variants | None = None,
    starts_with_grad: bool = True,
) -> Callable[..., list[Any]]:
    """See the module's docstring.

    only_plain_backward: refuse what a reentrant checkpoint refuses. shared: by differentiable output, a bit mask of those that
    can't be differentiated after it; the others still can. reached: by differentiable output, a bit mask of the gradients that it
    has a part in; an input that none reaches is handed to autograd without its history. variants: for gradients of some outputs;
    zeros stand in without. starts_with_grad: False for a graph that is entered with grad mode off and turns it on itself.
    """
    gather = input_gatherer(signature, checks)
    finish = finisher(signature)
    visible = [position for position, spec in enumerate(signature.outputs) if spec.kind is not OutputKind.SAVED]
    saved_outputs = signature.outputs_of(OutputKind.SAVED)
    differentiable = [position for position in visible if signature.outputs[position].differentiable]
    plain = [position for position in visible if not signature.outputs[position].differentiable]
    saved_from = whole.saved_from
    count = signature.caller_inputs
    gradient_of, parts = whole.gradient_of, whole.parts
    extra = int(len(parts) > 1)  # a token comes first
    device = whole.device
    # parameters are leaves
    others = [spec.index for spec in signature.inputs if spec.kind in (InputKind.BUFFER, InputKind.USER)]
    # saved inputs whose shape the epilogue changes: autograd would keep the very tensor
    changes = {change.index for change in signature.metadata}
    reshaped = [n for n, (is_input, place) in enumerate(saved_from) if is_input and signature.inputs[place].index in changes]
    everything = (1 << len(differentiable)) - 1
    several = len(differentiable) > 1

    def saved_tensors(ctx: Any, chosen: tuple[int, ...], backward: CompiledBackward) -> Sequence[Any]:
        asked = sum(1 << number for number in chosen)
        kept = ctx.kept
        # what was written over may be needed for other outputs only
        needed = [number not in backward.unused for number in range(len(saved_from)) if number not in ctx.numbers]
        try:
            tensors: Sequence[Any] = ctx.saved_tensors
        except RuntimeError:
            if kept is not None and not asked & ~kept.pending:
                tensors = kept.get(needed)
            else:
                found = saved_without_check(ctx) if ctx.versions and not all(needed) else None
                if found is None:
                    raise
                tensors = _Kept(found, 0, ctx.versions).get(needed)
        pending = (everything if kept is None else kept.pending) & ~asked
        for number in chosen:
            pending &= ~shared[number]
        ctx.kept = _Kept(tensors, pending, ctx.versions) if pending else None
        return tensors

    def gather_backward(ctx: Any, gradients: Sequence[Any]) -> tuple[CompiledBackward, list[Any]]:
        # a function of its own: what the compiled graph lets go of early must have no other holder in `backward`
        given = dict(zip(visible, gradients, strict=True))
        backward = whole
        if variants is None:
            tensors = iter(ctx.saved_tensors)
        else:
            chosen = tuple([number for number, position in enumerate(differentiable) if given[position] is not None])
            layouts = tuple([whole.other_layout(number, given[differentiable[number]]) for number in chosen])
            partial = len(chosen) < len(differentiable)
            if partial or any(layout is not None for layout in layouts):
                # all gradients, in other layouts, may as well be copied
                found = variants.get(tuple(zip(chosen, layouts, strict=True)))
                if found is None:
                    found = MaskedBackward(whole, functools.reduce(operator.or_, [reached[n] for n in chosen], 0)) if partial else whole
                backward = found
            tensors = iter(saved_tensors(ctx, chosen, backward))
        saved = [ctx.numbers[n] if n in ctx.numbers else next(tensors) for n in range(len(saved_from))]
        return backward, backward.inputs(saved, given)

    class CompiledFunction(torch.autograd.Function):
        """Runs the compiled graphs. Inputs: the caller's flat inputs. Outputs: the forward graph's, without saved ones."""

        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            args = args[extra:]
            inputs = gather(args)
            kept = list(inputs)  # the compiled graph may clear the list that it is given
            with below_autograd():  # an output that is a view of something in the graph must not look like one
                outputs = list(forward(inputs))
            values = [kept[place] if is_input else outputs[place] for is_input, place in saved_from]
            for number in reshaped:
                values[number] = values[number].detach()
            ctx.numbers = {n: value for n, value in enumerate(values) if not isinstance(value, torch.Tensor)}
            ctx.save_for_backward(*[value for value in values if isinstance(value, torch.Tensor)])
            ctx.kept = None
            ctx.versions = [value._version for value in values if isinstance(value, torch.Tensor)] if several else ()
            ctx.histories = [weakref.ref(args[place]) for place in others if args[place].requires_grad and args[place].grad_fn is not None]
            ctx.mark_non_differentiable(*[outputs[position] for position in plain if isinstance(outputs[position], torch.Tensor)])
            ctx.set_materialize_grads(False)
            return tuple([outputs[position] for position in visible])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            if only_plain_backward and not is_plain_backward():
                raise RuntimeError(
                    "a checkpoint with use_reentrant=True is incompatible with torch.autograd.grad() and with backward(inputs=...); "
                    "use_reentrant=False is compatible with both"
                )
            again = torch.is_grad_enabled()  # create_graph=True
            with torch.no_grad():
                backward, inputs = gather_backward(ctx, gradients)
                if len(parts) == 1:
                    outputs: Sequence[Any] = backward.run(inputs)
                else:
                    running = backward.in_parts(inputs, parts)
                    del inputs
                    if again:
                        running = _all_at_once(running, parts, lambda all_of_them: _refusing_more(ctx, gradients, all_of_them))
                    outputs = _taken(running)
            result: list[Any] = [None] * (count + extra)
            if len(parts) == 1:
                if again:
                    outputs = _refusing_more(ctx, gradients, outputs)
            else:
                result[0] = _token(running, device) if ctx.needs_input_grad[0] else None
            for position, gradient in zip(parts[0], outputs, strict=True):
                result[extra + gradient_of[position]] = gradient
            return tuple(result)

    class Part(torch.autograd.Function):
        """A later part of the backward pass. Inputs: the token of the part after it, then what the part has the gradients of."""

        @staticmethod
        def forward(ctx: Any, *args: Any) -> torch.Tensor:
            ctx.set_materialize_grads(False)
            return torch.empty(0, device=device)

        @staticmethod
        def backward(ctx: Any, token: Any) -> tuple[Any, ...]:
            with torch.no_grad():
                gradients = _taken(token.running)
                return (_token(token.running, device) if ctx.needs_input_grad[0] else None, *gradients)

    apply = CompiledFunction.apply
    apply_part = Part.apply
    # eager has no way from the outputs to these: autograd must not enter the passes that made them
    reaching = functools.reduce(operator.or_, reached, 0)
    ends = {index for number, index in enumerate(gradient_of) if reaching >> number & 1}
    apart = [index for index in range(count) if index not in ends] if ends else []
    total = len(signature.outputs)
    later = [[gradient_of[position] for position in part] for part in reversed(parts[1:])]

    def apply_chain(*args: Any) -> Any:
        token = None
        for part in later:
            token = apply_part(token, *[args[index] for index in part])
        return apply(token, *args)

    start = apply if len(parts) == 1 else apply_chain

    def run(*args: Any) -> list[Any]:
        cut = [index for index in apart if isinstance(args[index], torch.Tensor) and args[index].requires_grad]
        shown = start(*_with_detached(args, cut)) if cut else start(*args)
        outputs: Sequence[Any] = shown
        if saved_outputs and finish is not None:
            full: list[Any] = [None] * total
            for position, value in zip(visible, shown, strict=True):
                full[position] = value
            outputs = full
        if finish is None:
            return list(outputs)
        return finish(args, outputs)

    def run_with_grad(*args: Any) -> list[Any]:
        with torch.enable_grad():
            return run(*args)

    return run if starts_with_grad else run_with_grad


def _with_detached(args: Sequence[Any], cut: Sequence[int]) -> list[Any]:
    result = list(args)
    for index in cut:
        result[index] = args[index].detach()  # counts writes with it
    return result


def _token(running: Iterator[list[Any]], device: torch.device) -> torch.Tensor:
    """What one part of a backward pass hands to the next in place of a gradient."""
    token = torch.empty(0, device=device)
    token.running = running  # type: ignore[attr-defined]  # it lives as long as this pass
    return token


def _taken(running: Iterator[list[Any]]) -> list[Any]:
    """The next part, which nobody else holds any more."""
    part = next(running)
    gradients = list(part)
    part.clear()
    return gradients


def _all_at_once(
    running: Iterator[list[Any]], parts: Sequence[tuple[int, ...]], treat: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[list[Any]]:
    """The parts of what `treat` makes of all gradients."""
    gradients: list[Any] = [None] * sum(map(len, parts))
    for positions, part in zip(parts, running, strict=True):
        for position, gradient in zip(positions, part, strict=True):
            gradients[position] = gradient
    with torch.enable_grad():
        treated = treat(gradients)
    return iter([[treated[position] for position in positions] for positions in parts])


_TWICE = (
    "a graph that fxloom compiled is differentiated twice: its gradients were made with create_graph=True and are "
    "differentiated again, and a compiled graph has a first derivative only. Run this part with "
    "fxloom.disable(function), or compile it with backend='eager'."
)


def _refusing_more(ctx: Any, tangents: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients as results of all that they depend on, so that every way of differentiating them meets the refusal."""
    depends = [node.variable for node, _ in ctx.next_functions if hasattr(node, "variable")]
    inputs = [reference() for reference in ctx.histories]
    if any(tensor is None for tensor in inputs):  # gone, and with it the handle on its history
        raise RuntimeError(_TWICE)
    depends += [tensor for tensor in [*inputs, *tangents] if tensor is not None and tensor.requires_grad]
    return tuple(_DifferentiatedTwice.apply(len(depends), *depends, *gradients))


class _DifferentiatedTwice(torch.autograd.Function):
    """Gradients made with `create_graph=True`: to use them is fine, to differentiate them raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> tuple[Any, ...]:
        return tuple([g.view_as(g) if isinstance(g, torch.Tensor) else g for g in tensors[count:]])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(_TWICE)


def _as_traced(
    gradient: torch.Tensor | None, desc: Descriptor, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """The gradient in the layout that the backward graph was made for; zeros where autograd has none."""
    if gradient is None:
        return torch.empty_strided(size, stride, dtype=desc.dtype, device=desc.device).zero_()
    if gradient.is_conj() or gradient.is_neg():  # compiled code reads memory as it is
        gradient = gradient.resolve_conj().resolve_neg()
    if gradient.stride() == stride:
        return gradient
    return torch.empty_strided(size, stride, dtype=desc.dtype, device=desc.device).copy_(gradient)
