"""Compiled backward graphs: what they take and give, and those for gradients other than the expected ones.

In: compiled graphs with their signatures. Out: `CompiledBackward`, called with what was saved and the gradients that came;
`Variants`, which has one for every choice of gradients.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from fxloom_aot.functional.views import is_dense
from fxloom_aot.runtime.inference import Compiled
from fxloom_aot.runtime_numbers import runtime_value
from fxloom_aot.trace_result import IncomingGradients, NoBackwardGraph
from fxloom_interfaces.signature import GraphSignature, InputKind
from fxloom_shapes import Descriptor, describe

#: of one graph's backward pass
_MOST_VARIANTS = 8


class CompiledBackward:
    """A compiled backward graph and how to call it.

    tangents: what it expects of each gradient that it is given. saved: its SAVED inputs.
    """

    __slots__ = (
        "_constants", "_inputs", "_layouts", "_positions", "_saved", "_tangents", "gradient_of", "parts", "run", "saved",
    )  # fmt: skip

    def __init__(self, run: Compiled, signature: GraphSignature, tangents: Sequence[Descriptor]) -> None:
        inputs = signature.inputs
        self.run = run
        self.saved = [spec for spec in inputs if spec.kind is InputKind.SAVED]
        #: numbers of the caller's inputs, and of boundaries, that it gives the gradients of
        self.gradient_of = [spec.index for spec in signature.outputs]
        #: positions of the gradients in each part
        self.parts: tuple[tuple[int, ...], ...] = getattr(run, "parts", ()) or (tuple(range(len(signature.outputs))),)
        self._saved = [n for n, spec in enumerate(inputs) if spec.kind is InputKind.SAVED]
        self._constants = [spec.constant for spec in inputs if spec.kind is InputKind.CONSTANT]
        self._inputs = len(inputs) - len(self._constants)
        # sizes among the saved values, and the layouts of gradients that are computed from them
        places = {spec.symbol: n for n, spec in enumerate(inputs) if spec.kind is InputKind.SAVED and spec.symbol}
        self._layouts = [runtime_value((desc.size, desc.stride), places) for desc in tangents]
        self._tangents = tangents
        self._positions = [(n, spec.index) for n, spec in enumerate(inputs) if spec.kind is InputKind.TANGENT]

    @property
    def count(self) -> int:
        """How many gradients it is given."""
        return len(self._tangents)

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
        """The flat inputs. given: the gradients by flat output of the forward graph."""
        inputs: list[Any] = [None] * self._inputs
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

    __slots__ = ("_reached", "_whole")

    def __init__(self, whole: CompiledBackward, reached: Sequence[bool]) -> None:
        self._whole, self._reached = whole, reached
        self.run = self._run
        self.parts = ()

    def inputs(self, saved: Sequence[Any], given: Mapping[int, Any]) -> list[Any]:
        return self._whole.inputs(saved, given)

    def _run(self, inputs: list[Any]) -> Sequence[Any]:
        return [gradient if reached else None for gradient, reached in zip(self._whole.run(inputs), self._reached, strict=True)]


def _added(total: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [b if a is None else a if b is None else a + b for a, b in zip(total, more, strict=True)]


class Variants:
    """The backward passes of a stage, by the gradients that came; those for some of them, in other layouts, or under autocast are
    compiled when first needed, once.

    In a thread of their own: the caller's may be one in which frames are captured, or modes are on. When there are many, sums
    of those for one output each stand in for further ones; where no graph can be made, the pass for all of them, given zeros.
    """

    def __init__(
        self, whole: CompiledBackward, reached: Sequence[int], compile_variant: Callable[[IncomingGradients], CompiledBackward]
    ) -> None:
        """whole: for all gradients as expected. reached: by gradient that it gives, a bit mask of the outputs that flow to it.

        compile_variant: raises NoBackwardGraph where there is none.
        """
        self.whole = whole
        self._count = whole.count
        self._reached = reached
        self._compile = compile_variant
        self._known: dict[IncomingGradients, CompiledBackward | None] = {}
        self._lock = threading.Lock()
        self._room = _MOST_VARIANTS

    def get(self, given: IncomingGradients) -> CompiledBackward:
        """The pass for `given`. RuntimeError where none is right."""
        found = self._known.get(given)
        if found is None:
            with self._lock:
                if given not in self._known and self._room:
                    self._room -= 1
                    self._made(given)
                found = self._known.get(given)
                if found is None:
                    found = self._known[given] = self._fallback(given)
        return found

    def _made(self, given: IncomingGradients) -> CompiledBackward | None:
        if given not in self._known:
            context = contextvars.copy_context()
            with ThreadPoolExecutor(1) as pool:
                try:
                    self._known[given] = pool.submit(context.run, self._compile, given).result()
                except NoBackwardGraph:
                    self._known[given] = None
        return self._known[given]

    def _fallback(self, given: IncomingGradients) -> CompiledBackward:
        """Gradients in other layouts are copied."""
        if len(given.gradients) == self._count and not given.autocast:
            return self.whole
        singles = [self._made(IncomingGradients(((number, None),), given.autocast)) for number, _ in given.gradients]
        passes = [single for single in singles if single is not None]
        if len(passes) == len(singles):
            return passes[0] if len(passes) == 1 else SummedBackward(passes)
        if given.autocast:
            on = ", ".join(f"{device} ({dtype})" for device, dtype in given.autocast)
            raise RuntimeError(f"no backward graph can be made for autocast on {on}; call backward outside of autocast, as torch asks for")
        chosen = sum(1 << number for number, _ in given.gradients)
        return MaskedBackward(self.whole, [bool(outputs & chosen) for outputs in self._reached])


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
