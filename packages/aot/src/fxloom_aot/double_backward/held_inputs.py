"""What each call of a compiled graph holds of the caller's inputs, for gradients that are to be differentiated.

In: the inputs of a call. Out: tensors that live on anyway, weak references to the others, each with its count of writes, and the
numbers. Invariant: an input is kept alive only where it lives as long as the caller's module does.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch

from fxloom_aot.double_backward.recompute import ValueUnavailable
from fxloom_interfaces.signature import GraphSignature, InputKind

#: what a call holds of its inputs: tensors or weak references, counts of writes, numbers
HeldInputs = tuple[Sequence[Any], Sequence[int], Sequence[Any]]
_NOTHING: HeldInputs = ((), (), ())


class InputHolder:
    """Makes what each call holds of its inputs. One per compiled graph.

    saved: the caller's inputs that every stage saves as they are.
    """

    def __init__(self, signature: GraphSignature, saved: Collection[int]) -> None:
        numbers = {spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
        # parameters and buffers live on anyway; a weak reference to one would keep `torch.utils.swap_tensors` from exchanging it
        static = {spec.index for spec in signature.inputs if spec.static_address or spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
        others = {spec.index for spec in signature.inputs if spec.index >= 0} - numbers - set(saved)
        first, user, self._numbers = sorted(others & static), sorted(others - static), sorted(numbers)
        self._tensors = [*first, *user]
        self._place = {number: place for place, number in enumerate(self._tensors)}
        self._weak = range(len(first), len(self._tensors))

    def __call__(self, args: Sequence[Any]) -> HeldInputs:
        """What a call holds: tensors, or weak references to them, with their counts of writes; numbers."""
        if not self._place and not self._numbers:
            return _NOTHING
        tensors = [args[number] for number in self._tensors]
        try:
            writes: Sequence[int] = [tensor._version for tensor in tensors]
        except RuntimeError:  # those of inference mode don't count
            writes = [_writes_to(tensor) for tensor in tensors]
        held: list[Any] = tensors
        for place in self._weak:
            held[place] = weakref.ref(tensors[place])
        return held, writes, [args[number] for number in self._numbers] if self._numbers else ()

    def numbers(self, held: HeldInputs) -> dict[int, Any]:
        """By input: the number that it was."""
        return dict(zip(self._numbers, held[2], strict=True))

    def tensor(self, held: HeldInputs, number: int) -> torch.Tensor | None:
        """Input `number` as it is; None where it is gone, or not held."""
        place = self._place.get(number)
        if place is None:
            return None
        tensor = held[0][place]
        return tensor() if isinstance(tensor, weakref.ref) else tensor  # type: ignore[no-any-return]  # a tensor or None

    def unwritten(self, held: HeldInputs, number: int) -> torch.Tensor:
        """Input `number` as it was. ValueUnavailable where it is gone, or was written."""
        tensor = self.tensor(held, number)
        if tensor is None:
            raise ValueUnavailable(f"input {number} is gone")
        if held[1][self._place[number]] != _writes_to(tensor):
            raise ValueUnavailable(f"input {number} was written since")
        return tensor


def _writes_to(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
