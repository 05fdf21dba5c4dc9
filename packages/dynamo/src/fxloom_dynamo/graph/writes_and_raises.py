"""Graphs that write into their inputs and raise while they run, amid what the program does in Python.

What an operator raises belongs between the effects before it and those behind it. A graph that writes into none of its inputs is
dropped then, and the function runs as it is (`ReplacementCode._go_back_if_raised`). One that does write has to undo that first: where what
it writes to is small, copies are kept while it runs; else the graph ends before the first such write. Neither is needed with a
backend that writes last (`fxloom_interfaces.backend`).

In: the operators of a graph, by what they are. Only those matter that may raise for what is in their tensors: whatever else
they raise, their fakes have raised while capturing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import set_version
from fxloom_interfaces import meta, regions, symbolic_math
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder


#: bytes that may be copied before each run of a graph
MOST_COPIED = 1 << 18
#: as functions and methods; in-place forms end in `_`
_LOOK_AT_VALUES = frozenset(
    {"getitem", "setitem", "index", "index_put", "index_add", "index_copy", "index_fill", "index_select", "index_reduce", "gather",
     "scatter", "scatter_add", "scatter_reduce", "take", "take_along_dim", "put", "embedding", "embedding_bag", "nll_loss",
     "nll_loss2d", "nll_loss_nd", "cross_entropy", "cross_entropy_loss", "one_hot", "multi_margin_loss", "multilabel_margin_loss",
     "ctc_loss", "binary_cross_entropy", "multinomial", "bernoulli", "poisson", "binomial", "normal", "cholesky", "cholesky_inverse",
     "cholesky_solve", "inverse", "pinverse", "svd", "lu", "lu_solve", "lu_unpack", "triangular_solve", "bincount", "repeat_interleave",
     "histc", "histogram", "histogramdd", "masked_scatter", "max_unpool1d", "max_unpool2d", "max_unpool3d", "unravel_index",
     "segment_reduce", "logdet", "slogdet", "det", "matrix_exp", "qr", "lobpcg", "pack_padded_sequence", "check"}
)  # fmt: skip
#: of torch.linalg: no factorization, so nothing that could fail
_PLAIN_LINALG = frozenset({"vector_norm", "vecdot", "cross", "multi_dot", "matmul", "diagonal", "vander"})
_DIVISIONS = frozenset({"floordiv", "mod", "ifloordiv", "imod", "floor_divide", "remainder", "fmod", "div", "divide", "__floordiv__"})
#: in-place operators that change what a tensor is a view of
_RESHAPING = frozenset(
    {"resize_", "resize_as_", "set_", "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"}
)


def may_raise(node: torch.fx.Node) -> bool:
    """Whether the operator looks at what is in its tensors, and may raise for it."""
    if node.op not in ("call_function", "call_method"):
        return False
    target: Any = node.target
    if isinstance(target, (regions.GraphFunction, regions.Transform)) or target is regions.choose or target is symbolic_math.check:
        return True
    if any(operand.op == "get_attr" for operand in node.all_input_nodes):
        return True  # a body
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        if getattr(target, "namespace", "aten") not in ("aten", "prims"):
            return True
        target = target.__name__.partition(".")[0]
    if getattr(target, "__name__", "").removeprefix("linalg_") in _PLAIN_LINALG:
        return False
    if getattr(target, "__module__", None) in ("torch.linalg", "torch._C._linalg"):
        return True
    name = str(target if isinstance(target, str) else getattr(target, "__name__", "")).rstrip("_")
    if name in ("getitem", "setitem", "__getitem", "__setitem"):
        return len(node.args) > 1 and _holds_tensor(node.args[1])
    if name in _DIVISIONS:
        result = meta.get_fake(node)
        return isinstance(result, FakeTensor) and not result.is_floating_point()
    return name in _LOOK_AT_VALUES or name.startswith(("linalg_", "_assert"))


def _holds_tensor(index: Any) -> bool:
    items = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(item, torch.fx.Node) and isinstance(meta.get_fake(item), FakeTensor) for item in items)


#: normalizations write their running statistics without telling: where they stand among the arguments, and what says so
_STATISTICS: dict[Any, tuple[int, int, int]] = {
    torch.nn.functional.batch_norm: (1, 2, 5),
    torch.nn.functional.instance_norm: (1, 2, 5),
    torch.batch_norm: (3, 4, 5),
    torch.instance_norm: (3, 4, 5),
    torch.native_batch_norm: (3, 4, 5),
}
_NAMES = ("running_mean", "running_var", "training")


def written_without_version(node: torch.fx.Node) -> list[Any]:
    """Fakes of the tensors that the operator writes to although their version counters don't say so."""
    places = _STATISTICS.get(node.target) if node.op == "call_function" else None
    if places is None:
        return []
    mean, var, training = (node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in zip(places, _NAMES))
    if training is None:
        training = node.kwargs.get("use_input_stats", node.target is torch.nn.functional.instance_norm)
    return [meta.get_fake(part) for part in (mean, var) if isinstance(part, torch.fx.Node)] if training else []


def written_inputs(recorder: Recorder) -> list[int] | None:
    """Which inputs of the graph to copy so that its writes can be undone; None where they can't be."""
    if any(node.op == "call_method" and node.target in _RESHAPING for node in recorder.graph.nodes):
        return None
    places, size = [], 0
    for at, (_, real, node) in enumerate(recorder.inputs):
        fake = meta.get_fake(node)
        if type(fake) is not FakeTensor or not recorder.is_written(fake):
            continue
        if real.layout is not torch.strided or real.is_inference() or not _keeps_its_history(fake, real):
            return None
        places.append(at)
        size += real.numel() * real.element_size()
    return places if size <= MOST_COPIED else None


def _keeps_its_history(fake: FakeTensor, real: torch.Tensor) -> bool:
    """Whether the graph's writes are all that autograd does not see: into plain tensors, or into leaves without gradients."""
    return fake.requires_grad == real.requires_grad and (not real.requires_grad or real.is_leaf and fake.grad_fn is None)


def copies(inputs: tuple[Any, ...], places: tuple[int, ...]) -> list[tuple[torch.Tensor, int]]:
    """Copies, with versions, of what a graph is going to write to."""
    return [(inputs[at].detach().clone(), inputs[at]._version) for at in places]


def undo(inputs: tuple[Any, ...], places: tuple[int, ...], kept: list[tuple[torch.Tensor, int]]) -> None:
    """Take back what a graph has written."""
    with torch.no_grad():
        for at, (copy, version) in zip(places, kept, strict=True):
            inputs[at].copy_(copy)
            set_version(inputs[at], version)
