"""New values of inputs that are written right over the old ones.

In: the graph, what its inputs and outputs are, its steps as batches. Out: buffer -> the input whose memory it gets. The graph then
returns the input itself as its new value, and nothing is left to copy. Invariant: nobody reads the old value once the new one is
written; and where the program may raise, inputs are as they were: nothing that may raise comes after the first write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fxloom_inductor_core.ir.graph import ExternCall, LoweredGraph, Operand
from fxloom_inductor_core.scheduler.grouping import Batch
from fxloom_inductor_core.scheduler.groups import Group
from fxloom_inductor_core.scheduler.kernels import FusedKernel
from fxloom_interfaces.program import Indirect
from fxloom_interfaces.signature import GraphSignature, InputKind, OutputKind

_OWN_MEMORY = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.USER)

#: libraries that don't raise for operands of the right sizes
_NEVER_RAISE = frozenset(
    {
        "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten.convolution_backward",
        "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
    }
)  # fmt: skip


def new_values(graph: LoweredGraph, signature: GraphSignature | None) -> dict[str, str]:
    """Buffer -> the input that it is the new value of, where memory and layout are such that it could be written there."""
    if signature is None or len(signature.outputs) != len(graph.outputs) or len(signature.inputs) != len(graph.inputs):
        return {}
    used = Counter(output.buffer for output in graph.outputs if isinstance(output, Operand))
    found: dict[str, str] = {}
    for spec, output in zip(signature.outputs, graph.outputs, strict=True):
        if spec.kind is not OutputKind.NEW_VALUE or spec.differentiable or not isinstance(output, Operand):
            continue
        given = graph.inputs[spec.input]
        if signature.inputs[spec.input].kind not in _OWN_MEMORY or used[output.buffer] > 1 or used[given.name]:
            continue
        if output.buffer in graph.layouts and output.layout == graph.layouts[output.buffer] == graph.layouts[given.name]:
            found[output.buffer] = given.name
    return found


def overwrites(graph: LoweredGraph, candidates: dict[str, str], steps: Sequence[Batch]) -> dict[str, str]:
    """Of `candidates` (see `new_values`) those that are safe for these steps, in this order."""
    if not candidates:
        return {}
    first_quiet = 0  # number of the first step after the last one that may raise
    last_read: dict[str, int] = {}
    aliased: set[str] = set()
    for number, step in enumerate(steps):
        for group, fused in zip(step.groups, step.fused, strict=True):
            if _may_raise(group, fused):
                first_quiet = number + 1
            if group.call is not None and group.call.aliases:
                aliased.update(group.call.reads())
            last_read.update(dict.fromkeys(_read_by(group, fused), number))
    safe: dict[str, str] = {}
    for number in range(first_quiet, len(steps)):
        step = steps[number]
        readers = Counter(name for group, fused in zip(step.groups, step.fused, strict=True) for name in _read_by(group, fused))
        for group, fused in zip(step.groups, step.fused, strict=True):
            for buffer in group.writes:
                given = candidates.get(buffer)
                if given is None or fused is None or buffer in group.bases() or given in aliased or last_read.get(given, -1) > number:
                    continue
                reads_it = given in fused.buffers
                if readers[given] == reads_it and (not reads_it or (given, buffer) in fused.in_place):
                    safe[buffer] = given
    return safe


def _read_by(group: Group, fused: FusedKernel | None) -> Sequence[str]:
    if fused is None:
        return [] if group.call is None else group.call.reads()
    return [buffer for buffer in (*fused.buffers, *group.bases().values()) if buffer not in group.writes]


def _may_raise(group: Group, fused: FusedKernel | None) -> bool:
    call: ExternCall | None = group.call
    if call is not None:
        return call.op.removesuffix(".default") not in _NEVER_RAISE
    return fused is not None and any(isinstance(i, Indirect) and i.check for i in fused.kernel.instructions())
