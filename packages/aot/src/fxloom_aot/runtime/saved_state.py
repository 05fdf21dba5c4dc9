"""What one call of a stage keeps for its backward passes, and the checks that eager makes of it.

In: the values to save, the numbers, what the call holds of its inputs. Out: the saved values for chosen outputs, or autograd's own
RuntimeError where eager raises one: saved memory that was freed, or written since.
Invariant: a saved tensor outlives the pass that frees it only for outputs that may still be differentiated; writes are noticed without
keeping the memory of what eager saves and the graph does not.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fxloom_aot._torch_private import current_pass, saved_without_check
from fxloom_aot.double_backward.eager_nodes import modified_since
from fxloom_aot.double_backward.held_inputs import HeldInputs, InputHolder
from fxloom_aot.runtime.stage import CompiledStage
from fxloom_aot.trace_result import Boundary


class WriteCounter:
    """Notices writes to a tensor without keeping its memory. outputs: those whose gradients need it unchanged."""

    __slots__ = ("_counter", "_version", "outputs", "shape")

    def __init__(self, tensor: torch.Tensor, outputs: int) -> None:
        self.outputs, self.shape = outputs, tuple(tensor.shape)
        self._counter = tensor.detach()  # shares the counter, and keeps it when it gets other memory
        self._counter.data = tensor.detach().new_empty(0)
        self._version = tensor._version

    def check(self) -> None:
        """RuntimeError, as autograd's, when it was written."""
        if self._counter._version != self._version:
            raise modified_since(self.shape, self._counter._version, self._version)


class RetainedTensors:
    """Saved tensors, kept beyond the backward pass that freed them, for outputs that may still be differentiated (a bit mask)."""

    __slots__ = ("outputs", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor | None], needed: Sequence[int], outputs: int) -> None:
        self.outputs = outputs
        self.tensors = [
            None if tensor is None or not mask & outputs else tensor.detach() if tensor.requires_grad else tensor
            for tensor, mask in zip(tensors, needed, strict=True)
        ]


_pending_lock = threading.Lock()


class StageCall:
    """One call of a stage: what its node keeps for backward passes beside autograd's saved tensors.

    tensors, outputs: what the node is to save, and to return; only until it is made. results: what it returned. held: of the inputs
    (`HeldInputs`). run: of the graph, the same object for all of its stages. pending: by pass of the engine and place, gradients of
    gradients on their way through the node; None where all that it has gradients of is a leaf, or saved with its history.
    """

    __slots__ = (
        "held", "holder", "kept", "numbers", "outputs", "pending", "results", "run", "stage", "tensors", "versions", "watches",
    )  # fmt: skip

    def __init__(
        self, stage: CompiledStage, values: list[Any], outputs: list[torch.Tensor], inputs: Sequence[torch.Tensor], holder: InputHolder,
        held: HeldInputs, run: object,
    ) -> None:  # fmt: skip
        self.run = run
        self.stage, self.holder, self.held = stage, holder, held
        self.outputs: list[torch.Tensor] | None = outputs
        self.numbers = [value for value, is_number in zip(values, stage.is_number, strict=True) if is_number]
        self.tensors: list[torch.Tensor] | None = [
            value for value, is_number in zip(values, stage.is_number, strict=True) if not is_number
        ]
        self.versions = [tensor._version for tensor in self.tensors] if len(outputs) > 1 or not stage.shared[0] else None
        self.kept: RetainedTensors | None = None
        self.results: list[weakref.ref[torch.Tensor]] = []
        self.watches: list[WriteCounter] = []
        self.pending: dict[int, dict[int, torch.Tensor]] | None = None
        for position in stage.loose:
            if inputs[position].grad_fn is not None:
                self.pending = {}
                break

    def put(self, position: int, gradient: torch.Tensor) -> torch.Tensor:
        """Store a gradient for the node to add, and return what the engine passes on in its place."""
        assert self.pending is not None
        with _pending_lock:
            mine = self.pending.setdefault(current_pass(), {})
            mine[position] = mine[position] + gradient if position in mine else gradient
        return torch.empty(0, device="cpu")

    def take(self) -> dict[int, torch.Tensor]:
        """What was put there in this pass, by position."""
        return {} if self.pending is None else self.pending.pop(current_pass(), {})

    def saved(self, ctx: Any, chosen: Sequence[int]) -> list[Any]:
        """The saved values for gradients of the outputs `chosen`, in order. RuntimeError, as autograd's, where eager has none."""
        stage = self.stage
        each, numbers = iter(self.saved_tensors(ctx, chosen)), iter(self.numbers)
        return [next(numbers) if is_number else next(each) for is_number in stage.is_number]

    def saved_tensors(self, ctx: Any, chosen: Sequence[int]) -> Sequence[Any]:
        """Those of them that are tensors."""
        stage = self.stage
        asked = sum(1 << number for number in chosen)
        for watch in self.watches:
            if watch.outputs & asked:
                watch.check()
        tensors, possible = self._tensors(ctx, asked)
        tensors = tensors[: len(stage.needed)]
        for number in chosen:
            possible &= ~stage.shared[number]
        self.kept = RetainedTensors(tensors, stage.needed, possible) if possible else None
        return tensors

    def checks(self, tensors: Sequence[Any]) -> dict[Boundary, Callable[[], None]]:
        """Functions that raise when a tensor of the caller's that eager's nodes save is written from now on. tensors: the saved ones."""
        stage = self.stage
        result: dict[Boundary, Callable[[], None]] = {
            at: partial(_check_version, tensors[number], tensors[number]._version)
            for at, number in stage.checked
            if tensors[number] is not None and not tensors[number].is_inference()
        }
        result.update({at: watch.check for watch, (_, _, at) in zip(self.watches, stage.watched, strict=True)})
        return result

    def _tensors(self, ctx: Any, asked: int) -> tuple[Sequence[torch.Tensor | None], int]:
        """The saved tensors, and the outputs that could be differentiated before this pass."""
        kept = self.kept
        try:
            return ctx.saved_tensors, self.stage.everything
        except RuntimeError:
            if kept is not None and not asked & ~kept.outputs:
                self._check(kept.tensors, asked)
                return kept.tensors, kept.outputs
            # what was written over may be needed for other outputs only
            found = saved_without_check(ctx) if self.versions is not None else None
            if found is None:
                raise
            self._check(found, asked)
            return found, self.stage.everything

    def _check(self, tensors: Sequence[torch.Tensor | None], asked: int) -> None:
        for tensor, version, mask in zip(tensors, self.versions or (), self.stage.needed, strict=False):
            if tensor is not None and mask & asked and tensor._version != version:
                raise modified_since(tuple(tensor.shape), tensor._version, version)


def _check_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise modified_since(tuple(tensor.shape), tensor._version, version)
