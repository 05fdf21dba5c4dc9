"""What runs at every call: hand the caller's inputs to the compiled graph, write new values back, rebuild aliases.

In: the caller's flat inputs. Out: the flat outputs of the program, aliasing as in eager. The signature is read once, when
the wrapper is made; a call does only what this graph needs. Lifetimes: inputs stay the caller's; the list given to the
compiled graph is made for each call and may be cleared by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import below_autograd, set_grad_enabled, version_kept
from fxloom_aot.late import is_symbolic, late
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.signature import (
    FromConstant,
    FromInput,
    FromOutput,
    GraphSignature,
    InputKind,
    OutputKind,
    Result,
    SameResult,
    ViewStep,
)

Compiled = Callable[[list[Any]], Sequence[Any]]


def inference_wrapper(
    compiled: Compiled, signature: GraphSignature, checks: Sequence[StorageCheck] = (), *, starts_with_grad: bool = True
) -> Callable[..., list[Any]]:
    """The callable for a graph without a backward part.

    starts_with_grad: False for a graph that is entered with grad mode off; where it turns it on, views that it makes of inputs
    have a history.
    """
    gather = input_gatherer(signature, checks)
    finish = finisher(signature)
    if finish is not None and not starts_with_grad and any(map(_is_tracked_view, signature.results)):
        finish = torch.enable_grad()(finish)
    # nothing here is for autograd to see: an input may require grad where no output does
    quiet = set_grad_enabled

    def run(*args: Any) -> list[Any]:
        inputs = gather(args)
        grad_mode = torch.is_grad_enabled()
        if grad_mode:
            quiet(False)
        try:
            with below_autograd():  # an output that is a view of something in the graph must not look like one
                outputs = compiled(inputs)
        finally:
            if grad_mode:
                quiet(True)
        return finish(args, outputs) if finish is not None else list(outputs)

    return run


def _is_tracked_view(result: Result) -> bool:
    return isinstance(result, (FromInput, FromOutput)) and bool(result.steps) and result.requires_grad


class StorageChanged(InternalError):
    """Inputs are at other places in their memory than when the graph was made; a guard of whoever calls has to see that."""

    def __init__(self, details: str) -> None:
        super().__init__("aot runtime", f"{details}; a guard is missing")
        self.details = details


class StorageCheck:
    """Inputs `members` must share storage at these offsets (in elements); what the graph was made for."""

    __slots__ = ("members", "offsets")

    def __init__(self, members: tuple[int, ...], offsets: tuple[int, ...]) -> None:
        self.members, self.offsets = members, offsets

    def __call__(self, args: Sequence[Any]) -> None:
        first = args[self.members[0]].untyped_storage()._cdata
        for member, offset in zip(self.members, self.offsets, strict=True):
            tensor = args[member]
            if tensor.untyped_storage()._cdata != first or tensor.storage_offset() != offset:
                raise StorageChanged(
                    f"input {member} was traced at offset {offset} of storage shared by inputs {self.members}, "
                    f"and is now at offset {tensor.storage_offset()}"
                )


def input_gatherer(signature: GraphSignature, checks: Sequence[StorageCheck]) -> Callable[[Sequence[Any]], list[Any]]:
    """The function from the caller's inputs to those of the graph."""
    wanted = [spec.index for spec in signature.inputs]
    plain = all(spec.kind not in (InputKind.STORAGE, InputKind.CONSTANT) for spec in signature.inputs)
    if plain and not checks:
        return list if wanted == list(range(signature.caller_inputs)) else lambda args: [args[index] for index in wanted]

    def gather(args: Sequence[Any]) -> list[Any]:
        for check in checks:
            check(args)
        inputs: list[Any] = []
        for spec in signature.inputs:
            if spec.kind is InputKind.CONSTANT:
                inputs.append(spec.constant)
            elif spec.kind is InputKind.STORAGE:
                inputs.append(whole_storage(args[spec.index]))
            else:
                inputs.append(args[spec.index])
        return inputs

    return gather


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of `tensor` as one flat tensor of its dtype."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    with torch.no_grad():
        return tensor.detach().as_strided((length,), (1,), 0)


def finisher(signature: GraphSignature) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]] | None:
    """The function from the caller's inputs and the graph's outputs to the program's outputs; None when it is `list`."""
    plain = all(
        isinstance(result, FromOutput) and not result.steps and result.output == number
        for number, result in enumerate(signature.results)
    )
    writes = signature.outputs_of(OutputKind.NEW_VALUE)
    if plain and not writes and not signature.metadata and len(signature.results) == len(signature.outputs):
        return None
    # symbols are among the caller's inputs, or among the outputs, which are looked up behind these
    places = {spec.symbol: spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
    late_numbers = {spec.symbol: signature.caller_inputs + n for n, spec in enumerate(signature.outputs) if spec.symbol}
    places |= late_numbers
    update = _updater(signature, places) if writes or signature.metadata else None
    makers = [_maker(result, places) for result in signature.results]

    def finish(args: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        if update is not None:
            update(args, outputs)
        if late_numbers:
            args = (*args, *outputs)
        results: list[Any] = []
        for make in makers:
            results.append(make(args, outputs, results))
        return results

    return finish


def _updater(signature: GraphSignature, places: Mapping[str, int]) -> Callable[[Sequence[Any], Sequence[Any]], None]:
    writes = []
    for position in signature.outputs_of(OutputKind.NEW_VALUE):
        spec = signature.outputs[position]
        flat = signature.inputs[spec.input].kind is InputKind.STORAGE
        writes.append((position, spec.index, flat, spec.differentiable))

    changes = [(change.index, late((change.size, change.stride, change.offset), places)) for change in signature.metadata]

    def update(args: Sequence[Any], outputs: Sequence[Any]) -> None:
        for position, index, flat, differentiable in writes:
            if differentiable:
                args[index].copy_(outputs[position])
                continue
            with torch.no_grad():
                target = args[index]
                if flat:
                    # only the part that the graph knows: the storage may be longer
                    value = outputs[position]
                    target.detach().as_strided(value.shape, (1,), 0).copy_(value)
                else:
                    target.copy_(outputs[position])
        for index, layout in changes:
            # what the graph saved of it is what it was
            with torch.no_grad(), version_kept(args[index]):
                args[index].as_strided_(*layout(args))

    return update


Maker = Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]


def _maker(result: Result, places: Mapping[str, int]) -> Maker:
    match result:
        case FromOutput(output, (), _):
            return lambda args, outputs, results: outputs[output]
        case FromOutput(output, steps, requires_grad):
            steps_at = _late_steps(steps, places)
            return lambda args, outputs, results: _replay(outputs[output], steps_at(args), requires_grad)
        case FromInput(index, (), _):
            return lambda args, outputs, results: args[index]
        case FromInput(index, steps, requires_grad):
            steps_at = _late_steps(steps, places)
            return lambda args, outputs, results: _replay(args[index], steps_at(args), requires_grad)
        case FromConstant(value):
            return lambda args, outputs, results: value
        case SameResult(earlier):
            return lambda args, outputs, results: results[earlier]


def _late_steps(steps: tuple[ViewStep, ...], places: Mapping[str, int]) -> Callable[[Sequence[Any]], tuple[ViewStep, ...]]:
    """The steps with the sizes of a call put in."""
    if not any(is_symbolic((step.args, tuple(value for _, value in step.kwargs))) for step in steps):
        return lambda args: steps
    made = [(step, late(step.args, places), late(step.kwargs, places)) for step in steps]
    return lambda args: tuple(ViewStep(step.op, at(args), named(args), step.item, step.tracked) for step, at, named in made)


def _replay(tensor: torch.Tensor, steps: tuple[ViewStep, ...], requires_grad: bool) -> torch.Tensor:
    """Make the view by the operators that the program used, so that autograd sees what it would have seen."""
    if not requires_grad and torch.is_grad_enabled():
        with torch.no_grad():
            return _replay(tensor, steps, True)
    for step in steps:
        if step.tracked:
            tensor = step.op(tensor, *step.args, **dict(step.kwargs))
        else:
            with torch.no_grad():
                tensor = step.op(tensor, *step.args, **dict(step.kwargs))
        if step.item is not None:
            tensor = tensor[step.item]
    return tensor
