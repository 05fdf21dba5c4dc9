"""What is done with a compiled graph's outputs: write new values to the caller's inputs, rebuild results that alias.

In: the caller's inputs, the graph's outputs. Out: the program's results, aliasing as in eager. A compiler may write a new value over
the old one: then the output is the very tensor that it was given as input. The signature is read once, when the
functions are made; symbolic sizes in views are filled in at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import increment_version

from fxloom_aot._torch_private import below_autograd, version_kept
from fxloom_aot.runtime_numbers import is_symbolic, runtime_value
from fxloom_interfaces.signature import (
    FromConstant,
    FromInput,
    FromOutput,
    FromResult,
    GraphSignature,
    InputKind,
    MetadataChange,
    OutputKind,
    Result,
    SameResult,
    ViewStep,
)

#: adds what a stage makes possible to the program's results: (the caller's inputs, the graph's outputs, results so far)
Finish = Callable[[Sequence[Any], Sequence[Any], list[Any]], None]


def finishers(signature: GraphSignature, stage_of: Mapping[int, int]) -> list[Finish] | None:
    """What is done with the graph's outputs: first before any has a history, then after each stage of outputs got its history.

    stage_of: by flat output, for those that are differentiated. Writes to inputs come before results that see them. None where the
    results are the graph's first outputs.
    """
    plain = all(
        isinstance(result, FromOutput) and not result.steps and result.output == number
        for number, result in enumerate(signature.results)
    )
    writes = signature.outputs_of(OutputKind.NEW_VALUE)
    if plain and not writes and not signature.metadata:
        return None
    # symbols are among the caller's inputs, or among the outputs, which are looked up behind these
    places = {spec.symbol: spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
    unbacked_places = {spec.symbol: signature.caller_inputs + n for n, spec in enumerate(signature.outputs) if spec.symbol}
    places |= unbacked_places
    written = {signature.outputs[position].index: stage_of.get(position, -1) for position in writes}
    stages: list[int] = []
    others: list[int] = []
    for number in range(len(signature.results)):
        root, depth = signature.root(number)
        others.append(depth)
        match root:
            case FromOutput(position):
                stages.append(stage_of.get(position, -1))
            case FromInput(index):
                stages.append(written.get(index, -1))
            case _:
                stages.append(-1)
    # what other results are computed from comes first
    order = sorted(range(len(stages)), key=others.__getitem__)
    makers = [_maker(result, places) for result in signature.results]
    found = []
    for stage in range(-1, max(stage_of.values(), default=-1) + 1):
        here = [position for position in writes if stage_of.get(position, -1) == stage]
        at_once = [position for position in here if _is_plain(signature, position)]
        updates = [_write_all(signature, at_once)] if at_once else []
        updates += [_write(signature, position) for position in here if not _is_plain(signature, position)]
        updates += [_reshape(change, places) for change in signature.metadata if written.get(change.index, -1) == stage]
        own = [(number, makers[number]) for number in order if stages[number] == stage]
        found.append(_finish(updates, own, bool(unbacked_places)))
    return found


def _finish(updates: Sequence[Update], makers: Sequence[tuple[int, Maker]], unbacked_places: bool) -> Finish:
    def finish(args: Sequence[Any], outputs: Sequence[Any], results: list[Any]) -> None:
        for update in updates:
            update(args, outputs)
        if unbacked_places:
            args = (*args, *outputs)
        for number, make in makers:
            results[number] = make(args, outputs, results)

    return finish


Update = Callable[[Sequence[Any], Sequence[Any]], None]


def _write(signature: GraphSignature, position: int) -> Update:
    """Write an output, a new value, to the caller's input."""
    spec = signature.outputs[position]
    index = spec.index

    def with_history(args: Sequence[Any], outputs: Sequence[Any]) -> None:
        args[index].copy_(outputs[position])

    # below autograd a write has no history, and counts as no new version either
    apart = below_autograd if spec.quiet else torch.no_grad

    def into_storage(args: Sequence[Any], outputs: Sequence[Any]) -> None:
        value = outputs[position]
        with apart():  # only the part that the graph knows: the storage may be longer
            args[index].detach().as_strided(value.shape, (1,), 0).copy_(value)

    return with_history if spec.differentiable else into_storage


def _is_plain(signature: GraphSignature, position: int) -> bool:
    spec = signature.outputs[position]
    return not spec.differentiable and signature.inputs[spec.input].kind is not InputKind.STORAGE


def _write_all(signature: GraphSignature, positions: Sequence[int]) -> Update:
    """Write outputs, new values without a history, to the caller's inputs: an optimizer's step has thousands."""
    specs = signature.outputs
    quiet = [(specs[position].index, position) for position in positions if specs[position].quiet]
    counted = [(specs[position].index, position) for position in positions if not specs[position].quiet]

    def write_all(args: Sequence[Any], outputs: Sequence[Any]) -> None:
        written = []
        for index, position in counted:
            target, value = args[index], outputs[position]
            if value is not target:
                with torch.no_grad():
                    target.copy_(value)
            elif not target.is_inference():  # the graph wrote it in place
                written.append(target)
        if written:
            increment_version(written)
        for index, position in quiet:  # counts as no new version in eager either
            if outputs[position] is not args[index]:
                with below_autograd():
                    args[index].copy_(outputs[position])

    return write_all


def _reshape(change: MetadataChange, places: Mapping[str, int]) -> Update:
    """Change the shape of the caller's input."""
    index, layout = change.index, runtime_value((change.size, change.stride, change.offset), places)

    def reshape(args: Sequence[Any], outputs: Sequence[Any]) -> None:
        # the graph saved it under its former shape
        with torch.no_grad(), version_kept(args[index]):
            args[index].as_strided_(*layout(args))

    return reshape


Maker = Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]


def _maker(result: Result, places: Mapping[str, int]) -> Maker:
    if isinstance(result, (FromInput, FromOutput, FromResult)) and result.apart:
        shared = _maker(replace(result, apart=False), places)
        return lambda args, outputs, results: shared(args, outputs, results).data
    match result:
        case FromOutput(output, ()):
            return lambda args, outputs, results: outputs[output]
        case FromOutput(output, steps, requires_grad):
            steps_at = _steps_at_runtime(steps, places)
            return lambda args, outputs, results: _replay(outputs[output], steps_at(args), requires_grad)
        case FromInput(index, ()):
            return lambda args, outputs, results: args[index]
        case FromInput(index, steps, requires_grad):
            steps_at = _steps_at_runtime(steps, places)
            return lambda args, outputs, results: _replay(args[index], steps_at(args), requires_grad)
        case FromResult(other, steps, requires_grad):
            steps_at = _steps_at_runtime(steps, places)
            return lambda args, outputs, results: _replay(results[other], steps_at(args), requires_grad)
        case FromConstant(value):
            return lambda args, outputs, results: value
        case SameResult(earlier):
            return lambda args, outputs, results: results[earlier]


def _steps_at_runtime(steps: tuple[ViewStep, ...], places: Mapping[str, int]) -> Callable[[Sequence[Any]], tuple[ViewStep, ...]]:
    """The function from the values of a call to the steps with their sizes filled in."""
    if not any(is_symbolic((step.args, tuple(value for _, value in step.kwargs))) for step in steps):
        return lambda args: steps
    made = [(step, runtime_value(step.args, places), runtime_value(step.kwargs, places)) for step in steps]
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
