"""A compiled stage: its backward graphs, and where a call finds what the stage takes and saves.

In: the traced `Stage`, its compiled backward passes, the signature. Out: `CompiledStage`, made once per compiled graph and stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot.double_backward.differentiable_gradients import DifferentiableGradients
from fxloom_aot.runtime.backward_graphs import CompiledBackward, Variants
from fxloom_aot.runtime_numbers import runtime_value
from fxloom_aot.trace_result import Boundary, SavedAs, Stage
from fxloom_interfaces.signature import FromOutput, GraphSignature, OutputKind


class CompiledStage:
    """A stage, its backward passes, and where what it takes is found at a call. One per compiled graph and stage."""

    def __init__(
        self, stage: Stage, variants: Variants, signature: GraphSignature, boundaries: Sequence[Boundary],
        differentiable: DifferentiableGradients, only_plain_backward: bool, earlier: Sequence[CompiledStage],
    ) -> None:  # fmt: skip
        self.earlier = tuple(earlier)
        whole = variants.whole
        self.differentiable = differentiable
        self.outputs, self.shared, self.variants, self.only_plain_backward = stage.outputs, stage.shared, variants, only_plain_backward
        self.whole, self.parts, self.device = whole, whole.parts, whole.device
        self.inner_outputs = _InnerOutputs(stage, whole, signature)
        self.everything = (1 << len(stage.outputs)) - 1
        self.sources = [_finder(number, signature, boundaries) for number in whole.gradient_of]
        self.is_number = [bool(spec.symbol) for spec in whole.saved]
        self.saved_from = [(spec.of_input, spec.index) for spec in whole.saved]
        #: by saved tensor: the outputs that need it
        self.needed = [mask for mask, is_number in zip(stage.needed, self.is_number, strict=True) if not is_number]
        # what has a history that is not this node's, or gets one, or another shape, is saved as another tensor on its memory
        changes = {change.index for change in signature.metadata}
        self.apart = [
            not is_number
            and (
                (
                    keep is not SavedAs.TENSOR
                    or signature.inputs[spec.index].index in changes
                    or signature.inputs[spec.index].index not in whole.gradient_of
                )
                if spec.of_input
                else signature.outputs[spec.index].differentiable and spec.index not in stage.outputs
            )
            for spec, is_number, keep in zip(whole.saved, self.is_number, stage.keeps, strict=True)
        ]
        self.unchecked = [keep is SavedAs.UNCHECKED_MEMORY for keep in stage.keeps]
        covered = self._checked_by_autograd(signature)
        watched = [one for one in stage.watched if one.outputs & ~covered.get(_place(one.at, signature), 0)]
        self.watched = [(_finder_of(one.at, signature), one.outputs, one.at) for one in watched]
        self.saved_as_they_are = self._saved_as_they_are(signature)
        #: positions of gradients of what is not saved with its history
        self.loose = [place for place, number in enumerate(whole.gradient_of) if number not in self.saved_as_they_are]
        places = [place for place, is_number in zip(self._places(signature), self.is_number, strict=True) if not is_number]
        #: the caller's tensors that autograd checks as saved ones, with the number of each of these
        self.checked = [
            (one.at, places.index(_place(one.at, signature))) for one in stage.watched if _place(one.at, signature) in places
        ]

    def _checked_by_autograd(self, signature: GraphSignature) -> dict[tuple[bool, int], int]:
        """By caller's input (True), or flat output: the outputs that need it as a saved tensor."""
        masks = iter(self.needed)
        return {
            place: 0 if unchecked else next(masks)
            for place, is_number, unchecked in zip(self._places(signature), self.is_number, self.unchecked, strict=True)
            if not is_number
        }

    def _saved_as_they_are(self, signature: GraphSignature) -> dict[int, int]:
        """By caller's input that is saved itself, with its history: which of the saved tensors it is."""
        written = {spec.index for spec in signature.outputs if spec.kind is OutputKind.NEW_VALUE}
        kinds = zip(self._places(signature), self.is_number, self.apart, self.unchecked, strict=True)
        tensors = [(place, apart or unchecked) for place, is_number, apart, unchecked in kinds if not is_number]
        return {
            index: number for number, ((of_input, index), other) in enumerate(tensors) if of_input and not other and index not in written
        }

    def _places(self, signature: GraphSignature) -> list[tuple[bool, int]]:
        """By saved value: the caller's input (True) that it is, or the flat output."""
        return [(of_input, signature.inputs[place].index if of_input else place) for of_input, place in self.saved_from]


class _InnerOutputs:
    """Makes what stands for a stage's inner boundaries: tensors of their sizes without memory, for autograd to give a history."""

    def __init__(self, stage: Stage, whole: CompiledBackward, signature: GraphSignature) -> None:
        descs = stage.tangents[len(stage.outputs) - len(stage.inner) :]
        self.positions = [len(signature.outputs) + value.number for value in stage.inner]
        places = {spec.symbol: number for number, spec in enumerate(whole.saved) if spec.symbol}
        self._kinds = [(desc.dtype, desc.device) for desc in descs]
        self._sizes = [runtime_value(desc.size, places) for desc in descs]

    def put(self, outputs: list[Any], values: Sequence[Any]) -> None:
        """Put them among the outputs of a call; values: what it saves."""
        for position, (dtype, device), size in zip(self.positions, self._kinds, self._sizes, strict=True):
            outputs[position] = torch.empty((), dtype=dtype, device=device).expand(size(values))


#: finds a tensor at a call: (the caller's inputs with the histories that they came with, as they are now, the graph's outputs,
#: the program's results)
Finder = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]], Any]


def _finder(number: int, signature: GraphSignature, boundaries: Sequence[Boundary]) -> Finder:
    """Of what a gradient is of: an input of the caller, or a boundary, which are numbered after these."""
    if number < signature.caller_inputs:
        return lambda given, args, outputs, results: given[number]
    return _finder_of(boundaries[number - signature.caller_inputs], signature)


def _finder_of(at: Boundary, signature: GraphSignature) -> Finder:
    of_input, place = _place(at, signature)
    if of_input:
        return lambda given, args, outputs, results: args[place]
    if place >= 0:
        return lambda given, args, outputs, results: outputs[place]
    return lambda given, args, outputs, results: results[at.result]


def _place(at: Boundary, signature: GraphSignature) -> tuple[bool, int]:
    """The caller's input (True), or the flat output, -1 where it is neither."""
    if at.input >= 0:
        return True, at.input
    if at.inner is not None:
        return False, len(signature.outputs) + at.inner.number
    result = signature.results[at.result]
    return False, result.output if isinstance(result, FromOutput) and not result.steps else -1
