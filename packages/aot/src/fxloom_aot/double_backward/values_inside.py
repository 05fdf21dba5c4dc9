"""Find values inside of a program, by where autograd has them, in another recording of it.

In: values, tensors that are computed from them, the recorder of these. Out: their edges. A value is the same where the node of the
graph that made it, and its node of autograd, are; NotDifferentiable where there is none, or more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import GradientEdge

from fxloom_aot.double_backward.retrace import NotDifferentiable
from fxloom_aot.recording.autograd_graph import reached_from
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.trace_result import ValueInside


def edges_of(values: Sequence[ValueInside], programs: Sequence[Any], recorder: Recorder) -> dict[ValueInside, GradientEdge]:
    """The edges of `values`. programs: tensors that are computed from all of them."""
    if not values:
        return {}
    nodes: dict[tuple[str, int, str], list[Any]] = {}
    for node in reached_from([program.grad_fn for program in programs]).nodes:
        nodes.setdefault(recorder.place_of(node), []).append(node)
    edges = {}
    for value in values:
        found = nodes.get((value.maker, value.offset, value.name), [])
        if len(found) != 1:
            raise NotDifferentiable(f"a value that {value.maker} makes is not found again")
        edges[value] = GradientEdge(found[0], value.output)
    return edges
