"""fxloom's inductor as a backend of stock torch.compile: `torch.compile(model, backend="fxloom")`.

In: a graph that torch captured, and its example inputs. Out: the compiled callable. torch finds the backend through its own
entry-point group. A graph whose sizes are all known is compiled as it stands. In a graph with symbolic numbers these belong to
torch's environment, which a backend can't guard in; such a graph is captured again, as the Python function that it is, when it is
first called: sizes that torch made symbolic are dynamic there too, and guarded by ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fxloom.api import compile, compile_fx

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def compile_for_torch(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph captured by torch.compile. mode, options: as `fxloom.compile` takes them. ConfigError for unknown ones."""
    given: dict[str, Any] = {} if mode is None else {"mode": mode}
    given |= {} if options is None else {"options": options}
    fakes = [(node, node.meta.get("example_value")) for node in gm.graph.nodes]
    symbolic = any(map(_is_symbolic, example_inputs)) or any(_is_symbolic(fake) for _, fake in fakes)
    shapes = {str(node.target): _dynamic(fake) for node, fake in fakes if node.op == "placeholder"}
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {}  # torch's fakes belong to torch; ours are made from the inputs
    copy = torch.fx.GraphModule(gm, graph)
    return _captured_again(copy, shapes, given) if symbolic else compile_fx(copy, example_inputs, **given)


def _captured_again(gm: torch.fx.GraphModule, shapes: Mapping[str, Any], given: dict[str, Any]) -> Callable[..., Any]:
    """The graph as a function that is compiled when called. What depends on values stays in it, as torch left it there."""
    options = {**given.pop("options", {}), "capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    return compile(gm.forward, dynamic_shapes={name: spec for name, spec in shapes.items() if spec}, options=options, **given)


def _dynamic(value: Any) -> Any:
    """What `dynamic_shapes` has to say for an input."""
    if isinstance(value, _SYMBOLIC):
        return "auto"
    return {dim: "auto" for dim, size in enumerate(value.shape) if _is_symbolic(size)} if isinstance(value, torch.Tensor) else None


def _is_symbolic(value: Any) -> bool:
    """True for a symbolic number, and for a tensor whose sizes are such, or a nest of these."""
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return any(map(_is_symbolic, value)) if isinstance(value, (tuple, list)) else isinstance(value, _SYMBOLIC)
