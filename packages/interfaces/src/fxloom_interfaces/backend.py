"""What a backend is, and the builtin `eager`.

In: a torch-dialect graph and example inputs: `backend(gm, example_inputs, **options)`. Out: a callable that takes the graph's
inputs one by one and returns a tuple or list of its outputs. Plain functions written for torch.compile's FX convention are
backends. One that can't treat a node raises `GraphRejected`. A backend may promise more by attributes:

- `writes_last = True`: its callables write into their inputs only when all that may raise has run. Capture then need not keep
  copies, or end graphs early, to undo what a graph that raises has written.
- `takes_integers = True`: its callables serve every value of the numbers among their inputs (sizes that change, Python's ints and
  floats).

Any other backend may trace the graph again on its example inputs, and numbers would become constants there: unless it returns the
very graph that it got, and does not look at the example inputs, it gets graphs of tensors only, one per size and number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fxloom_interfaces.errors import PluginError, PluginVersionError
from fxloom_interfaces.versions import BACKEND, Version

if TYPE_CHECKING:
    import torch.fx

GROUP = "fxloom.backends"


class Backend(Protocol):
    """Compiles one graph."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """The entry-point object of group `fxloom.backends`. load: returns the backend; may import what it needs."""

    name: str
    interface: Version
    load: Callable[[], Backend]


def writes_last(backend: Backend | None) -> bool:
    """Whether graphs that raise have written to none of their inputs; False where the backend doesn't say."""
    return getattr(backend, "writes_last", False) is True


def takes_integers(backend: Backend | None) -> bool:
    """Whether graphs may have numbers among their inputs; False where the backend doesn't say. None runs graphs as they stand."""
    return backend is None or getattr(backend, "takes_integers", False) is True


def check_backend(entry: Any, name: str) -> BackendEntry:
    """`entry` itself, or a plain function wrapped; PluginError or PluginVersionError for anything else."""
    if isinstance(entry, BackendEntry):
        if not BACKEND.accepts(entry.interface):
            raise PluginVersionError(name, "backend interface", entry.interface, BACKEND)
        return entry
    if callable(entry):
        return BackendEntry(name, BACKEND, lambda: entry)
    raise PluginError(name, f"a backend is a BackendEntry or a function (gm, example_inputs) -> callable, got {type(entry).__name__}")


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Runs the captured graph as it stands, operator by operator."""
    return gm.forward


eager.takes_integers = True  # type: ignore[attr-defined]  # an attribute of a function
EAGER = BackendEntry("eager", BACKEND, lambda: eager)
