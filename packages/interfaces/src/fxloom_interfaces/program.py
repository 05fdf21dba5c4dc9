"""What scheduling makes: kernels (fused, traced loop bodies) and the program that runs them.

inductor-core makes both; code generators read kernels, the Python and C++ wrappers are printed from programs.

A `Kernel` is a flat, printable, picklable record: no closures, no torch, no notion of a device. Its meaning:

    for x in outer axes (any order, in parallel):            # values computed in an outer stage: one per x
        for stage in stages (in order):
            if stage.inner:  for r in inner axes (any order): run stage.body
            else:            run stage.body once

Rules. Construction checks the first, that folds stand in inner stages, and that names of buffers are known and unique; the rest
is for who makes kernels to keep:

- a value (`%n`) is assigned once. A value of an inner stage is visible in that stage only; what another stage needs it loads
  again, or finds in a `scratch` buffer. Values of outer stages, and results of `Reduce`, are visible in all later stages.
- `Reduce` stands in inner stages and folds over all inner axes; its results exist when the stage has ended.
- a buffer read and written by the kernel is read only at the index at which the same point of the loops wrote it, or before any
  write to it.
- a `Store` is a scatter when it has a mode or its index holds an `Indirect`: several points may meet at one element, and none is
  lost. They combine by the mode; without one, one of them stays: the last in row-major order of the axes on a target that keeps
  that order (`Capabilities.ordered_scatters`). Elements that no point meets keep what they hold, so the buffer is `inout`.
- `scratch` buffers live for one point of the outer axes and are indexed by inner axes alone; they never leave the kernel.

A `Program` is a straight line of steps over named buffers; sizes are symbols bound from the inputs, or from what calls return.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import IRError
from fxloom_interfaces.ops import OPS, REDUCTION_RESULTS, IndexErrorKind, StoreMode

if TYPE_CHECKING:
    from fxloom_interfaces.expr import Expr

#: Number of a value within a kernel; printed `%3`.
Value: TypeAlias = int

#: Ops of `Compute` beside those of OPS, with their operand counts.
_FURTHER_ARITY: dict[str, int] = {
    "where": 3,
    "to_dtype": 1,
    "bitcast": 1,
    "rand": 2,
    "randn": 2,
    "randint64": 4,
}


@lru_cache(maxsize=1 << 14)
def _text(expr: Expr) -> str:
    """An expression as text. Printing one takes long, and the kernels of a program share most of theirs."""
    return str(expr)


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop: symbol `name` runs over [0, size)."""

    name: str
    size: Expr

    def __str__(self) -> str:
        return f"{self.name} < {_text(self.size)}"


@dataclass(frozen=True, slots=True)
class Load:
    """%result = buffer[index]; where `mask` (a bool value) is false, nothing is read and the result is undefined."""

    result: Value
    buffer: str
    index: Expr
    dtype: str
    mask: Value | None = None

    def __str__(self) -> str:
        mask = f" if %{self.mask}" if self.mask is not None else ""
        return f"%{self.result}: {dtype_info(self.dtype).short} = {self.buffer}[{_text(self.index)}]{mask}"


@dataclass(frozen=True, slots=True)
class Constant:
    """%result = value."""

    result: Value
    value: bool | int | float
    dtype: str

    def __str__(self) -> str:
        return f"%{self.result}: {dtype_info(self.dtype).short} = {self.value!r}"


@dataclass(frozen=True, slots=True)
class IndexValue:
    """%result = an index expression as data."""

    result: Value
    expr: Expr
    dtype: str

    def __str__(self) -> str:
        return f"%{self.result}: {dtype_info(self.dtype).short} = index {_text(self.expr)}"


@dataclass(frozen=True, slots=True)
class Indirect:
    """From here on `symbol` stands for %value in index expressions, plus `size` where negative if wrap.

    check: an error, of the type `error`, unless 0 <= symbol < size, where `mask` (if any) holds.
    """

    symbol: str
    value: Value
    size: Expr
    check: bool
    wrap: bool
    mask: Value | None = None
    error: IndexErrorKind = "IndexError"

    def __str__(self) -> str:
        kind = f" by {self.error}" if self.error != "IndexError" else ""
        flags = f"{f' checked{kind}' if self.check else ''}{' wrapped' if self.wrap else ''}"
        return f"{self.symbol} = %{self.value} < {_text(self.size)}{flags}" + (f" if %{self.mask}" if self.mask is not None else "")


@dataclass(frozen=True, slots=True)
class Compute:
    """%result = op(args), an elementwise op or one of `where` (condition, a, b), `to_dtype`, `bitcast`, random."""

    result: Value
    op: str
    args: tuple[Value, ...]
    dtype: str

    def __post_init__(self) -> None:
        arity = OPS[self.op].arity if self.op in OPS else _FURTHER_ARITY.get(self.op)
        if arity is None:
            raise IRError(f"unknown op {self.op!r}")
        if arity != len(self.args):
            raise IRError(f"{self.op} takes {arity} operands, got {self.args}")

    def __str__(self) -> str:
        return f"%{self.result}: {dtype_info(self.dtype).short} = {self.op}({', '.join(f'%{a}' for a in self.args)})"


@dataclass(frozen=True, slots=True)
class Reduce:
    """%results = fold of %value over the inner axes; dtype: of the accumulator."""

    results: tuple[Value, ...]
    kind: str
    value: Value
    dtype: str

    def __post_init__(self) -> None:
        if len(self.results) != REDUCTION_RESULTS.get(self.kind, -1):
            raise IRError(f"reduction {self.kind!r} with results {self.results}")

    def __str__(self) -> str:
        return f"{', '.join(f'%{r}' for r in self.results)}: {dtype_info(self.dtype).short} = reduce {self.kind} %{self.value}"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """%result = fold of %value over the inner axes up to and with this point, in row-major order (a scan). kind: as in `loop_ir.Scan`."""

    result: Value
    kind: str
    value: Value
    dtype: str

    def __str__(self) -> str:
        return f"%{self.result}: {dtype_info(self.dtype).short} = scan {self.kind} %{self.value}"


_ASSIGNMENTS = {None: "=", "add": "+=", "mul": "*=", "min": "min=", "max": "max="}


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = %value. mode: combined with what the element holds: its sum, product, minimum or maximum (a NaN wins), in the
    buffer's dtype, as if by one point after the other."""

    buffer: str
    index: Expr
    value: Value
    mode: StoreMode = None

    def __str__(self) -> str:
        return f"{self.buffer}[{_text(self.index)}] {_ASSIGNMENTS[self.mode]} %{self.value}"


Instruction: TypeAlias = Load | Constant | IndexValue | Indirect | Compute | Reduce | Accumulate | Store


def results_of(instruction: Instruction) -> tuple[Value, ...]:
    """The values that an instruction assigns."""
    if isinstance(instruction, Reduce):
        return instruction.results
    if isinstance(instruction, (Indirect, Store)):
        return ()
    return (instruction.result,)


def operands_of(instruction: Instruction) -> tuple[Value, ...]:
    """The values that an instruction reads."""
    if isinstance(instruction, Compute):
        return instruction.args
    if isinstance(instruction, (Reduce, Accumulate, Store)):
        return (instruction.value,)
    if isinstance(instruction, Indirect):
        return (instruction.value,) if instruction.mask is None else (instruction.value, instruction.mask)
    if isinstance(instruction, Load) and instruction.mask is not None:
        return (instruction.mask,)
    return ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One straight-line body, run once per point of the outer axes, or (inner) once per point of the inner axes too."""

    inner: bool
    body: tuple[Instruction, ...]


Role = Literal["in", "out", "inout", "scratch"]


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """A buffer as a kernel sees it. numel: extent of a scratch buffer in elements, 0 for others."""

    name: str
    dtype: str
    role: Role
    numel: Expr = 0

    def __str__(self) -> str:
        extent = f"[{self.numel}]" if self.role == "scratch" else ""
        return f"{self.role} {self.name}: {dtype_info(self.dtype).short}{extent}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused loop nest; see the module's docstring for its meaning.

    buffers: in the order of the launch arguments (scratch ones are no arguments). sizes: symbols of size, launch arguments
    after the buffers. title: what was fused, for names and comments.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    buffers: tuple[KernelBuffer, ...]
    sizes: tuple[str, ...] = ()
    title: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def arguments(self) -> tuple[KernelBuffer, ...]:
        """The buffers passed at launch."""
        return tuple(buffer for buffer in self.buffers if buffer.role != "scratch")

    def instructions(self) -> Iterator[Instruction]:
        """All instructions in order."""
        for stage in self.stages:
            yield from stage.body

    def text(self) -> str:
        """The whole kernel as text a person can read; equal text means equal kernel."""
        lines = [f"kernel {' '.join(self.title)}".rstrip()]
        lines += [f"  {buffer}" for buffer in self.buffers]
        if self.sizes:
            lines.append(f"  sizes {', '.join(self.sizes)}")
        lines.append(f"  for {', '.join(map(str, self.outer)) or 'one point'}:")
        for stage in self.stages:
            indent = "    "
            if stage.inner:
                lines.append(f"    for {', '.join(map(str, self.inner))}:")
                indent = "      "
            lines += [f"{indent}{instruction}" for instruction in stage.body]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text()

    def digest(self) -> str:
        """Content hash, equal for equal kernels whatever their title."""
        text = self.text()
        return hashlib.sha256(text[text.index("\n") :].encode()).hexdigest()


def _check(kernel: Kernel) -> None:
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        raise IRError(f"kernel has two buffers of one name: {names}")
    known = set(names)
    assigned: set[Value] = set()
    visible: set[Value] = set()
    for stage in kernel.stages:
        if stage.inner and not kernel.inner:
            raise IRError("inner stage in a kernel without inner axes")
        inside: set[Value] = set()
        folded: set[Value] = set()
        for instruction in stage.body:
            for operand in operands_of(instruction):
                if operand not in visible and operand not in inside:
                    raise IRError(f"{instruction}: %{operand} is not visible here")
            if isinstance(instruction, (Load, Store)) and instruction.buffer not in known:
                raise IRError(f"{instruction}: unknown buffer; the kernel has {names}")
            if isinstance(instruction, (Reduce, Accumulate)) and not stage.inner:
                raise IRError(f"{instruction}: folds in an outer stage")
            for result in results_of(instruction):
                if result in assigned:
                    raise IRError(f"{instruction}: %{result} is assigned twice")
                assigned.add(result)
                (folded if isinstance(instruction, Reduce) else inside).add(result)
        visible |= folded
        if not stage.inner:
            visible |= inside


# ---------------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True, slots=True)
class Ref:
    """A buffer by name, among the arguments of a call or the returned values."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A size expression among the arguments of a call or the returned values."""

    expr: Expr

    def __str__(self) -> str:
        return str(self.expr)


@dataclass(frozen=True, slots=True)
class TorchRef:
    """A torch constant by its spelling: `torch.float32`, `torch.device('cpu')`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class BindSize:
    """symbol = input `source` itself (dim None), or the size in `dim` of an input or of what a call returned."""

    symbol: str
    source: str
    dim: int | None = None

    def __str__(self) -> str:
        return f"{self.symbol} = {self.source}" + (f".size({self.dim})" if self.dim is not None else "")


@dataclass(frozen=True, slots=True)
class Allocate:
    """name = new uninitialized memory. reuse: take over the memory of that dead buffer instead (same nbytes, device)."""

    name: str
    device: str
    dtype: str
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    reuse: str | None = None

    def __str__(self) -> str:
        how = f"reuse {self.reuse}" if self.reuse else "allocate"
        return f"{self.name} = {how} {dtype_info(self.dtype).short}{list(self.size)} strides {list(self.stride)} {self.device}"


@dataclass(frozen=True, slots=True)
class AllocateNumbers:
    """names = elements of one new uninitialized tensor, as tensors without axes: many numbers by one allocation."""

    names: tuple[str, ...]
    device: str
    dtype: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)} = allocate {len(self.names)} numbers {dtype_info(self.dtype).short} {self.device}"


@dataclass(frozen=True, slots=True)
class View:
    """name = the memory of `base` seen with other sizes, strides and offset (in elements from base's first element)."""

    name: str
    base: str
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr = 0

    def __str__(self) -> str:
        return f"{self.name} = view {self.base} {list(self.size)} strides {list(self.stride)} + {self.offset}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel of the program on buffers (in the order of its arguments) and sizes."""

    kernel: str
    buffers: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        return f"launch {self.kernel}({', '.join([*self.buffers, *map(str, self.sizes)])})"


@dataclass(frozen=True, slots=True)
class GroupedLaunch:
    """Run a kernel on several sets of buffers and sizes, each as a `Launch` has them, at once: no set writes what another touches.

    In programs for plugins with grouped launches only (`Capabilities.fusions`).
    """

    kernel: str
    sets: tuple[tuple[tuple[str, ...], tuple[Expr, ...]], ...]

    def __str__(self) -> str:
        return f"launch {self.kernel} on " + "; ".join(f"({', '.join([*buffers, *map(str, sizes)])})" for buffers, sizes in self.sets)


@dataclass(frozen=True, slots=True)
class Call:
    """results = target(*args, **kwargs): a library or eager kernel. target: dotted name (`torch.ops.aten.addmm.out`).

    args may nest Refs, SizeRefs, TorchRefs, plain constants, lists and tuples. results: names given to what it returns (one:
    the value itself; several: unpacked; none: it writes into its arguments). strides: what the program counts on for each
    result; one that comes back otherwise is copied into these (None: nothing is counted on).
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    results: tuple[str, ...] = ()
    unpack: bool = False
    strides: tuple[tuple[Expr, ...] | None, ...] = ()

    def __str__(self) -> str:
        arguments = [_argument(a) for a in self.args] + [f"{k}={_argument(v)}" for k, v in self.kwargs]
        head = f"{', '.join(self.results)} = " if self.results else ""
        return f"{head}call {self.target}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Item:
    """name = base[index], of a list or tuple that a call gave."""

    name: str
    base: str
    index: int

    def __str__(self) -> str:
        return f"{self.name} = {self.base}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Free:
    """The program needs these buffers no more."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"free {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Return:
    """The outputs: Refs, SizeRefs and constants (None for an output that is not there, or was yielded before)."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"return {', '.join(_argument(v) for v in self.values)}"


@dataclass(frozen=True, slots=True)
class YieldOutputs:
    """Give these outputs to the caller before the program ends, and drop `names`. positions: among the values of `Return`."""

    positions: tuple[int, ...]
    values: tuple[Ref, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"yield {', '.join(f'{n}: {v}' for n, v in zip(self.positions, self.values, strict=True))}"


Step: TypeAlias = BindSize | Allocate | AllocateNumbers | View | Launch | GroupedLaunch | Call | Item | Free | YieldOutputs | Return


def _argument(value: Any) -> str:
    if isinstance(value, (Ref, SizeRef, TorchRef)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(v) for v in value)}]"
    return repr(value)


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """A flat input. size and stride are None for a number; static_address: its memory stays where it is between calls."""

    name: str
    device: str | None = None
    dtype: str | None = None
    size: tuple[Expr, ...] | None = None
    stride: tuple[Expr, ...] | None = None
    static_address: bool = False

    def __str__(self) -> str:
        if self.size is None or self.stride is None or self.dtype is None:
            return f"{self.name}: number"
        fixed = " static" if self.static_address else ""
        return f"{self.name}: {dtype_info(self.dtype).short}{list(self.size)} strides {list(self.stride)} {self.device}{fixed}"


@dataclass(frozen=True, slots=True)
class Program:
    """The compiled graph: kernels by name, and the steps that run them. device: where kernels of a name run."""

    inputs: tuple[ProgramInput, ...]
    kernels: tuple[tuple[str, Kernel], ...]
    devices: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    comments: tuple[tuple[int, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.steps or not isinstance(self.steps[-1], Return):
            raise IRError("a program ends with Return")

    def text(self) -> str:
        """The whole program as text."""
        lines = ["program", *(f"  {i}" for i in self.inputs), *(f"  {step}" for step in self.steps)]
        return "\n".join([*lines, "", *(f"{name} on {dict(self.devices)[name]}\n{kernel}" for name, kernel in self.kernels)])

    def __str__(self) -> str:
        return self.text()

    def launches(self) -> Sequence[Launch | GroupedLaunch]:
        return [step for step in self.steps if isinstance(step, (Launch, GroupedLaunch))]

    def grouped(self) -> frozenset[str]:
        """Names of the kernels that are launched on several sets of arguments at once."""
        return frozenset(step.kernel for step in self.steps if isinstance(step, GroupedLaunch))
