"""The runtime of a graph with a backward part: one `torch.autograd.Function` per compiled graph.

In: compiled forward and backward, their signatures. Out: a callable like `inference_wrapper`'s that autograd can
differentiate once. Lifetimes: saved tensors belong to autograd (`save_for_backward`), which checks that nobody wrote over
them; saved numbers and the signature stay on the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import is_plain_backward
from fxloom_aot.late import late
from fxloom_aot.runtime import Compiled, StorageCheck, finisher, input_gatherer
from fxloom_interfaces.signature import GraphSignature, InputKind, OutputKind
from fxloom_shapes import Descriptor


def training_wrapper(
    forward: Compiled,
    backward: Compiled,
    signature: GraphSignature,
    backward_signature: GraphSignature,
    tangents: Sequence[Descriptor],
    checks: Sequence[StorageCheck] = (),
    *,
    only_plain_backward: bool = False,
) -> Callable[..., list[Any]]:
    """See the module's docstring. tangents: metadata that the backward graph expects of each gradient it is given.

    only_plain_backward: refuse what a reentrant checkpoint refuses.
    """
    gather = input_gatherer(signature, checks)
    finish = finisher(signature)
    visible = [position for position, spec in enumerate(signature.outputs) if spec.kind is not OutputKind.SAVED]
    saved_outputs = signature.outputs_of(OutputKind.SAVED)
    differentiable = [position for position in visible if signature.outputs[position].differentiable]
    plain = [position for position in visible if not signature.outputs[position].differentiable]
    # where each SAVED input of the backward graph comes from: (True, placeholder) or (False, flat output) of the forward
    saved_from = [(spec.of_input, spec.index) for spec in backward_signature.inputs if spec.kind is InputKind.SAVED]
    constants = [spec.constant for spec in backward_signature.inputs if spec.kind is InputKind.CONSTANT]
    # sizes among the saved values, and the layouts of gradients that are made of them
    places = {spec.symbol: n for n, spec in enumerate(backward_signature.inputs) if spec.kind is InputKind.SAVED and spec.symbol}
    layouts = [late((desc.size, desc.stride), places) for desc in tangents]
    saved_inputs = [n for n, spec in enumerate(backward_signature.inputs) if spec.kind is InputKind.SAVED]
    tangent_inputs = [n for n, spec in enumerate(backward_signature.inputs) if spec.kind is InputKind.TANGENT]
    gradient_of = [spec.index for spec in backward_signature.outputs]
    count = signature.caller_inputs

    def gather_backward(ctx: Any, gradients: Sequence[Any]) -> list[Any]:
        # a function of its own: what the compiled graph lets go of early must have no other holder in `backward`
        tensors = iter(ctx.saved_tensors)
        saved = [ctx.numbers[n] if n in ctx.numbers else next(tensors) for n in range(len(saved_from))]
        given = dict(zip(visible, gradients, strict=True))
        inputs: list[Any] = [None] * (len(backward_signature.inputs) - len(constants))
        for place, value in zip(saved_inputs, saved, strict=True):
            inputs[place] = value
        for place, position, desc, layout in zip(tangent_inputs, differentiable, tangents, layouts, strict=True):
            inputs[place] = _as_traced(given[position], desc, *layout(inputs))
        inputs.extend(constants)
        return inputs

    class CompiledFunction(torch.autograd.Function):
        """Runs the compiled graphs. Inputs: the caller's flat inputs. Outputs: the forward graph's, without saved ones."""

        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            inputs = gather(args)
            kept = list(inputs)  # the compiled graph may clear the list that it is given
            outputs = list(forward(inputs))
            values = [kept[place] if is_input else outputs[place] for is_input, place in saved_from]
            ctx.numbers = {n: value for n, value in enumerate(values) if not isinstance(value, torch.Tensor)}
            ctx.save_for_backward(*[value for value in values if isinstance(value, torch.Tensor)])
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
            inputs = gather_backward(ctx, gradients)
            again = torch.is_grad_enabled()  # create_graph=True
            with torch.no_grad():
                outputs = backward(inputs)
            if again:
                outputs = _DifferentiatedTwice.apply(torch.zeros((), requires_grad=True), *outputs)
            result: list[Any] = [None] * count
            for index, gradient in zip(gradient_of, outputs, strict=True):
                result[index] = gradient
            return tuple(result)

    apply = CompiledFunction.apply
    total = len(signature.outputs)

    def run(*args: Any) -> list[Any]:
        shown = apply(*args)
        outputs: Sequence[Any] = shown
        if saved_outputs and finish is not None:
            full: list[Any] = [None] * total
            for position, value in zip(visible, shown, strict=True):
                full[position] = value
            outputs = full
        if finish is None:
            return list(outputs)
        return finish(args, outputs)

    return run


class _DifferentiatedTwice(torch.autograd.Function):
    """Gradients made with `create_graph=True`: to use them is fine, to differentiate them raises."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *gradients: Any) -> tuple[Any, ...]:
        return tuple([g.view_as(g) if isinstance(g, torch.Tensor) else g for g in gradients])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "a graph that fxloom compiled is differentiated twice: its gradients were made with create_graph=True and are "
            "differentiated again, and a compiled graph has a first derivative only. Run this part with "
            "fxloom.disable(function), or compile it with backend='eager'."
        )


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
