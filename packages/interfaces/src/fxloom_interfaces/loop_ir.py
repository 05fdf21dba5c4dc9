"""Loop IR: what lowering makes of an operator, before fusion. Frozen nodes, each checked when made.

    node      := Pointwise | Reduction | Scan | Sort | Scatter | Extern
    Buffer    := name, Layout                    storage of its own; Layout := device, dtype, size, stride, offset
    Pointwise := for i in ranges:  out[i] = body(ops, i)
    Reduction := for i in ranges:  out[i] = combine over r in reduction_ranges of body(ops, i, r)
    Scan      := running combine along the last axis of ranges
    Sort      := stable sort along the last axis of ranges
    Scatter   := out = base; for i in ranges:  out[index_of(ops, i)] = body(ops, i)      last writer, sum, product, ...
    Extern    := a call on whole buffers: of a library, of a code generator's template (a GEMM), or of an eager kernel

inductor-core's lowerings make the nodes and trace their bodies at once; the nodes themselves are kept for printing only. Bodies
are Python run under a handler of `ops.Ops`; they are closures, so these nodes neither pickle nor hash by content. What goes to a
code generator is the traced form in `program.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import IRError, Site
from fxloom_interfaces.ops import REDUCTION_RESULTS, ReductionKind, StoreMode

if TYPE_CHECKING:
    from fxloom_interfaces.expr import Expr

#: `body(ops, index)`: the element at `index`, under a handler. Reductions get the reduction index appended.
Body: TypeAlias = Callable[[Any, "tuple[Expr, ...]"], Any]


def _text(values: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(value) for value in values) + "]"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where elements lie: element i is at offset + sum(i * stride), in elements from the start of the buffer."""

    device: str
    dtype: str
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr = 0

    def __post_init__(self) -> None:
        dtype_info(self.dtype)
        if len(self.size) != len(self.stride):
            raise IRError(f"expected {len(self.size)} strides for {self.dtype}{_text(self.size)}, got {_text(self.stride)}")

    def __str__(self) -> str:
        offset = f" + {self.offset}" if self.offset != 0 else ""
        return f"{dtype_info(self.dtype).short}{_text(self.size)} strides {_text(self.stride)}{offset} {self.device}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named piece of memory with a layout."""

    name: str
    layout: Layout

    def __str__(self) -> str:
        return f"{self.name}: {self.layout}"


@dataclass(frozen=True, slots=True)
class Node:
    """What all nodes share. origins: the graph nodes it comes from, as text; site: the user's line."""

    out: Buffer
    origins: tuple[str, ...] = field(default=(), kw_only=True)
    site: Site | None = field(default=None, kw_only=True)

    def _head(self) -> str:
        origins = f"  # {', '.join(self.origins)}" if self.origins else ""
        return f"{self.out}{origins}"


@dataclass(frozen=True, slots=True)
class Pointwise(Node):
    """out[i] = body(i) for every i of the output."""

    body: Body

    @property
    def ranges(self) -> tuple[Expr, ...]:
        return self.out.layout.size

    def __str__(self) -> str:
        return f"{self._head()}\n  pointwise over {_text(self.ranges)}"


@dataclass(frozen=True, slots=True)
class Reduction(Node):
    """out[i] = combine over r of body(i, r).

    ranges, reduction_ranges: extents in elements; the latter are folded away. acc_dtype: of the running value; at
    least as wide as the result. result: which of the kind's results is stored.
    """

    kind: ReductionKind
    ranges: tuple[Expr, ...]
    reduction_ranges: tuple[Expr, ...]
    acc_dtype: str
    body: Body
    result: int = 0

    def __post_init__(self) -> None:
        if self.kind not in REDUCTION_RESULTS:
            raise IRError(f"unknown reduction {self.kind!r}; known: {', '.join(REDUCTION_RESULTS)}")
        if not self.reduction_ranges:
            raise IRError(f"Reduction {self.kind} over no axes; use Pointwise (ranges={self.ranges})")
        if not 0 <= self.result < REDUCTION_RESULTS[self.kind]:
            raise IRError(f"{self.kind} has {REDUCTION_RESULTS[self.kind]} results, asked for number {self.result}")
        dtype_info(self.acc_dtype)

    def __str__(self) -> str:
        return f"{self._head()}\n  {self.kind} over {_text(self.reduction_ranges)} for {_text(self.ranges)} in {self.acc_dtype}"


@dataclass(frozen=True, slots=True)
class Scan(Node):
    """out[.., k] = combine of body(.., 0..k) along the last axis. combine: "sum", "prod", "max", "min" (a NaN stays),
    "logsumexp", the logarithm of the sum of exponentials."""

    combine: str
    acc_dtype: str
    body: Body

    def __post_init__(self) -> None:
        if self.combine not in ("sum", "prod", "max", "min", "logsumexp"):
            raise IRError(f"unknown scan {self.combine!r}")

    def __str__(self) -> str:
        return f"{self._head()}\n  scan {self.combine} over {_text(self.out.layout.size)} in {self.acc_dtype}"


@dataclass(frozen=True, slots=True)
class Sort(Node):
    """Stable sort of body along the last axis; `indices` is the buffer of positions."""

    indices: Buffer
    descending: bool
    body: Body

    def __str__(self) -> str:
        return f"{self._head()}\n  sort over {_text(self.out.layout.size)} with positions in {self.indices.name}"


@dataclass(frozen=True, slots=True)
class Scatter(Node):
    """out = base, then out[index_of(i)] = body(i) for i in ranges; mode: combined with what is there, as by `program.Store`.

    index_of: a position for each axis of `out`. base: has the layout of `out`, which takes over its memory: nothing else may read it.
    """

    base: Buffer
    ranges: tuple[Expr, ...]
    index_of: Callable[[Any, tuple[Expr, ...]], tuple[Expr, ...]]
    body: Body
    mode: StoreMode = None

    def __post_init__(self) -> None:
        if self.base.layout != self.out.layout:
            raise IRError(f"a scatter into {self.out.layout} on top of {self.base.layout}")

    def __str__(self) -> str:
        return f"{self._head()}\n  scatter {self.mode or 'assign'} into {self.base.name} over {_text(self.ranges)}"


@dataclass(frozen=True, slots=True)
class Extern(Node):
    """A call of a library or eager kernel. target: dotted name under `torch`; arguments: printed form with buffer names.

    library: called on purpose (GEMM, convolution, attention, a template); otherwise a fallback for lack of a lowering.
    """

    target: str
    arguments: str
    reads: tuple[str, ...]
    library: bool

    def __str__(self) -> str:
        return f"{self._head()}\n  {'library' if self.library else 'fallback'} {self.target}({self.arguments})"
