"""Options of capture: one frozen dataclass, made at the entry points and carried to every capture of a region."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Backend = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """What a compiled region asks of capture.

    backend: `backend(gm, example_inputs) -> callable`; None runs the graph as it stands. One without an attribute
        `takes_integers = True` that makes anything of a graph or its example inputs gets graphs of tensors only, one per size
        and number, whatever `dynamic` says.
    fullgraph: a graph break is an error (`Unsupported`).
    recompile_limit: entries per code object before the frame runs eager.
    dynamic: None decides by what is seen; False keeps every size static; True makes sizes symbolic at once.
    dynamic_shapes: which dimensions of which arguments are dynamic; see `guard.dynamic_shapes.parse_dynamic_shapes`.
    capture_scalar_outputs: `.item()` and `.tolist()` stay in the graph, as numbers that only running it tells. None: with
        `fullgraph`, where anything else is an error, for a backend that takes integers.
    capture_dynamic_output_shape_ops: so do operators whose shapes depend on values (`nonzero`, `x[mask]`, `unique`). None as above.
    duck_shapes: sizes that are equal in the call at hand are taken for one size, which saves guards; False takes them for
        several, for programs whose sizes are equal by chance.
    suppress_errors: what a backend fails to compile runs eager, with a warning, instead of raising.
    on_capture: called with every CapturedFrame; for reports.
    on_heap: called with the heap of every captured frame, which knows all that was read; for `fxloom_dynamo.testing`.
    runs: what is captured is then run; False where it is only looked at, so that it may be for devices that are not there.
    break_limit: continuations per function before the function is left to the interpreter.
    step_limit: instructions that are evaluated without meeting an operator before the code is left to the interpreter.
    """

    backend: Backend | None = None
    fullgraph: bool = False
    recompile_limit: int = 8
    dynamic: bool | None = None
    dynamic_shapes: Mapping[str, Any] | None = None
    capture_scalar_outputs: bool | None = None
    capture_dynamic_output_shape_ops: bool | None = None
    duck_shapes: bool = True
    suppress_errors: bool = False
    runs: bool = True
    break_limit: int = 64
    step_limit: int = 500_000
    on_capture: Callable[[Any], None] | None = None
    on_heap: Callable[[Any], None] | None = None
