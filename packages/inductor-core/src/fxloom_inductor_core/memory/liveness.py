"""When buffers are read for the last time, and what a backward graph may free or give away before its end.

In: the buffers that each step touches, the graph's inputs and outputs. Out: step number -> what dies there. Invariant: an output
dies at no step; of inputs only donated ones do, which nobody but the graph holds.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from fxloom_inductor_core.ir.graph import LoweredGraph, Operand
from fxloom_inductor_core.ir.tensors import span
from fxloom_inductor_core.options import InductorOptions
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.signature import GraphSignature, InputKind

#: parts that a large backward graph yields its gradients in, about
_PARTS = 12


def last_uses(touched: Sequence[Sequence[str]]) -> dict[str, int]:
    """Buffer -> number of the last step that reads or writes it. touched: buffers of each step."""
    return {name: number for number, names in enumerate(touched) for name in names}


def dying_buffers(graph: LoweredGraph, last: dict[str, int], donated: Container[str]) -> dict[int, list[str]]:
    """Step number -> buffers that die there, in order of their making."""
    outputs = {output.buffer for output in graph.outputs if isinstance(output, Operand)}
    result: dict[int, list[str]] = {}
    for name, number in last.items():
        if name not in outputs and (name.startswith("buf") or name in donated):
            result.setdefault(number, []).append(name)
    return result


def settled_outputs(graph: LoweredGraph, last: dict[str, int]) -> dict[int, list[int]]:
    """Step number -> positions of the outputs that nothing reads after it."""
    result: dict[int, list[int]] = {}
    for position, output in enumerate(graph.outputs):
        if isinstance(output, Operand) and output.buffer in last:
            result.setdefault(last[output.buffer], []).append(position)
    return result


def donated_inputs(graph: LoweredGraph, signature: GraphSignature | None) -> frozenset[str]:
    """Inputs of a backward graph that live for it alone: saved values and tangents."""
    if signature is None or not signature.backward:
        return frozenset()
    kinds = (InputKind.SAVED, InputKind.TANGENT)
    pairs = zip(graph.inputs, signature.inputs, strict=True)
    return frozenset(given.name for given, spec in pairs if spec.kind in kinds and given.size is not None)


def yield_nbytes(graph: LoweredGraph, signature: GraphSignature | None, options: InductorOptions) -> int:
    """Bytes of gradients after which a backward graph gives them away; 0: all at the end."""
    if signature is None or not signature.backward:
        return 0
    outputs = {output.buffer for output in graph.outputs if isinstance(output, Operand)}
    layouts = [graph.layouts[name] for name in outputs]
    sizes = [span(layout.size, layout.stride) for layout in layouts]
    total = sum(size * dtype_info(layout.dtype).nbytes for size, layout in zip(sizes, layouts, strict=True) if isinstance(size, int))
    return total // _PARTS if 0 < options.early_gradients_nbytes <= total else 0
