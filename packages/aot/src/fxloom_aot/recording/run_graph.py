"""Run a torch-dialect graph node by node on fakes, under a `Recorder`.

In: a GraphModule, fakes for its placeholders, the recorder. Out: the flat outputs; the recorder's log holds what was run. What an
operator raises, and what fakes can't answer, becomes GraphRejected at the node. Values are dropped after their last use, so that
autograd frees what it frees in the program. Invariant: the fakes' autograd history and version counters are those that
the program's own tensors would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from fxloom_aot._torch_private import plain_batch_norm
from fxloom_aot.recording.autograd_graph import has_history
from fxloom_aot.recording.recorder import Checkpoint, Recorder
from fxloom_interfaces import regions
from fxloom_interfaces.errors import OPERATOR_ERRORS, FxloomError, GraphBreak, GraphRejected, InternalError, refused
from fxloom_interfaces.meta import get_site
from fxloom_shapes import FakeTensor

_DETACHING = ("detach_", torch.detach_)


def run_graph(gm: torch.fx.GraphModule, inputs: list[Any], recorder: Recorder) -> list[Any]:
    """Run `gm` on fakes under `recorder`; the flat outputs. GraphRejected for what operators raise."""
    with recorder, plain_batch_norm(), _rejecting(recorder):
        outputs = _run(gm, inputs, recorder)
        recorder.node = None
        return outputs


def _run(gm: torch.fx.GraphModule, inputs: Sequence[Any], recorder: Recorder) -> list[Any]:
    values: dict[torch.fx.Node, Any] = {}
    position = 0

    def look_up(argument: Any) -> Any:
        return torch.fx.node.map_arg(argument, values.__getitem__)

    last_use = _last_uses(gm.graph)
    for node in gm.graph.nodes:
        recorder.start_node(node)
        match node.op:
            case "placeholder":
                values[node] = inputs[position]
                position += 1
            case "get_attr":
                value = _attribute(gm, str(node.target))
                values[node] = recorder.constant(value) if isinstance(value, torch.Tensor) else value
            case "call_function" if node.target is checkpoint and isinstance(look_up(node.args[0]), torch.fx.GraphModule):
                values[node] = _run_checkpoint(node, look_up(node.args), recorder)
            case "call_function" | "call_method" if recorder.inference and node.target in _DETACHING:
                values[node] = look_up(node.args[0])  # nothing to detach it from; autograd would refuse views
            case "call_function" if node.target in regions.LABELS:
                raise GraphRejected(node, "a record_function region, while a profiler runs that is to see what runs in it")
            case "call_function":
                values[node] = node.target(*look_up(node.args), **look_up(node.kwargs))
            case "call_method":
                target, *rest = look_up(node.args)
                values[node] = getattr(target, node.target)(*rest, **look_up(node.kwargs))
            case "call_module":
                values[node] = gm.get_submodule(str(node.target))(*look_up(node.args), **look_up(node.kwargs))
            case "output":
                outputs = look_up(node.args[0])
                return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        made = values.get(node)
        if type(made) is FakeTensor and made.requires_grad and not has_history(made) and node.op != "placeholder":
            recorder.leaves.setdefault(id(made), node)
        if recorder.replaces is not None and node in values:
            old, new = recorder.replaces(node, made)
            if old is not new:
                values.update([(one, new) for one, value in values.items() if value is old])
        for dead in last_use.get(node, ()):
            del values[dead]
    raise InternalError("aot", "the graph has no output node")


def _run_checkpoint(node: torch.fx.Node, args: Sequence[Any], recorder: Recorder) -> tuple[Any, ...]:
    """Run the body once, with gradients; the partitioner lets backward make again what it needs of it."""
    body, *inputs = args
    if recorder.checkpoint:  # within another, which is computed again as a whole
        return tuple(_run(body, inputs, recorder))
    first = len(recorder.log)
    recorder.checkpoint = len(recorder.checkpoints) + 1
    options = node.kwargs
    try:
        outputs = tuple(_run(body, inputs, recorder))
    finally:
        recorder.checkpoint = 0
    recorder.node = node
    reentrant, preserve = bool(options["use_reentrant"]), bool(options["preserve_rng_state"])
    recorder.checkpoints.append(Checkpoint(node, reentrant, preserve, first, len(recorder.log)))
    return outputs


def _last_uses(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """For every node the values that nothing needs after it, so that autograd can free what the program frees."""
    seen: set[torch.fx.Node] = set()
    result: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in reversed(graph.nodes):
        dead = [used for used in node.all_input_nodes if used not in seen]
        if dead and node.op != "output":
            result[node] = dead
        seen.update(dead)
    return result


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for name in path.split("."):
        value = getattr(value, name)
    return value


@contextmanager
def _rejecting(recorder: Recorder) -> Iterator[None]:
    """Turn what fakes can't answer, and what an operator raises, into the rejection of the node that ran."""
    try:
        yield
    except GraphBreak as error:
        if recorder.node is None:
            raise
        raise GraphRejected(recorder.node, str(error)) from error
    except FxloomError:
        raise
    except Exception as error:
        if recorder.node is None:
            raise
        site = get_site(recorder.node)
        error.add_note(f"while aot ran {recorder.node.format_node()}" + (f"\n  from: {site}" if site else ""))
        if isinstance(error, OPERATOR_ERRORS):
            raise refused(recorder.node, error) from error
        raise
