"""Record and functionalize a program once more, with the sizes of one call, and say what eager's nodes save.

In: the program, the numbers of a call. Out: the recording of eager's nodes, a functional log of plain sizes, and the value in that
log of every tensor that a node saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxloom_aot.double_backward.eager_nodes import PackedTensor, Recording, concrete_inputs, new_recorder, record_eager_nodes
from fxloom_aot.functional.functionalize import Functionalizer, RejectedInBackward, UnknownTensor
from fxloom_aot.functional.memory import ProgramInput
from fxloom_aot.functional.outputs import ForwardOutputs, classify_outputs
from fxloom_aot.runtime_numbers import SymbolMissing
from fxloom_aot.trace_result import Program
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_shapes import FakeTensor, symbolic_kernels

#: what recording a program once more, with the sizes of a call, may raise
REFUSALS = (GraphBreak, GraphRejected, RejectedInBackward, SymbolMissing)


class NotDifferentiable(Exception):
    """The gradients can't be made so that they can be differentiated; says why."""


@dataclass(frozen=True, slots=True)
class Retraced:
    """The program recorded on fakes, and its functional log. outputs: before something was cut. saved: by saved tensor, its value."""

    recording: Recording
    descs: list[Any]
    state: Functionalizer
    outputs: list[Any]
    saved: list[FakeTensor | None]
    found: ForwardOutputs


def retrace(
    program: Program, symbols: Mapping[str, Any], numbers: Sequence[Any], cuts: Mapping[torch.fx.Node, torch.fx.Node | int]
) -> Retraced:
    recorder = new_recorder()
    descs = concrete_inputs(program, symbols)
    recording = record_eager_nodes(program, descs, numbers, cuts, recorder)
    inputs = [
        ProgramInput(None, None, None, 0) if fake is None else ProgramInput(fake, desc, fake.storage_token)
        for fake, desc in zip(recording.fakes, descs, strict=True)
    ]
    outputs = [recording.uncut(value) for value in recording.outputs]
    with torch.no_grad(), symbolic_kernels(False):
        state = Functionalizer(recorder.fake_mode, program.decompositions, inputs, recorder.constants, recorder.made)
        state.start(list(recorder.log))
        saved = _values_saved(state, recorder.log, recording.saved)
        _forget_cuts(state, recording, outputs)
        changed = {
            id(fake)
            for number, fake in enumerate(recording.fakes)
            if fake is not None and number in recording.edges and fake.grad_fn is not recording.edges[number].node
        }
        return Retraced(recording, descs, state, outputs, saved, classify_outputs(state, outputs, changed))


def _forget_cuts(state: Functionalizer, recording: Recording, outputs: Sequence[Any]) -> None:
    """Have outputs that are views of what was cut be made as the program makes them: of what was there before."""
    for cut, original in reversed(recording.cut):
        made, before = state.view_of(cut).made, state.view_of(original).made
        for output in outputs:
            if type(output) is FakeTensor and output is not original:
                view = state.view_of(output)
                if view.made[: len(made)] == made:
                    view.made = (*before, *view.made[len(made) :])


def _values_saved(state: Functionalizer, entries: Sequence[Any], saved: Sequence[PackedTensor]) -> list[FakeTensor | None]:
    """What each saved tensor held when it was saved."""
    values: list[FakeTensor | None] = []
    done = 0
    for one in saved:
        state.run(list(entries[done : one.position]), backward=False)
        done = max(done, one.position)
        values.append(None if one.fake is None else _read(state, one.fake))
    state.run(list(entries[done:]), backward=False)
    return values


def _read(state: Functionalizer, fake: FakeTensor) -> FakeTensor | None:
    try:
        value = state.read(fake)
    except (UnknownTensor, GraphBreak, GraphRejected):
        return None
    return value if type(value) is FakeTensor else None
