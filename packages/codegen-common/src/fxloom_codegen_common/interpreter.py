"""Reference interpreter of the loop IR: what a kernel means, computed with whole-tensor torch ops. The oracle for plugins.

In: a `Kernel` and flat views of its buffers (1-D, from each buffer's first element). Out: nothing; the buffers are written in
place. All outer points run at once, stage by stage, which the IR allows since outer points are independent. It favours plainness
over speed: every value is a tensor of shape outer + inner, and folds are done in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxloom_interfaces import philox
from fxloom_interfaces.dtypes import is_float, torch_dtype
from fxloom_interfaces.expr import Expr, FloorDiv, Max, Min, Mod
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
)

Tensor = torch.Tensor


def interpret(kernel: Kernel, buffers: Mapping[str, Tensor], sizes: Mapping[str, int] | None = None) -> None:
    """Run `kernel` on `buffers` (by the kernel's names; scratch buffers are made here)."""
    _Run(kernel, buffers, sizes or {}).run()


def interpret_positional(kernel: Kernel, *args: Any) -> None:
    """Run `kernel` by the launch convention, on tensors of any layout."""
    arguments = kernel.arguments
    flat = {buffer.name: _flat(tensor) for buffer, tensor in zip(arguments, args, strict=False)}
    interpret(kernel, flat, dict(zip(kernel.sizes, args[len(arguments) :], strict=True)))


def _flat(tensor: Tensor) -> Tensor:
    """The memory from the tensor's first element to the end of its storage."""
    offset = tensor.storage_offset()
    numel = tensor.untyped_storage().nbytes() // tensor.element_size() - offset
    return torch.as_strided(tensor, (numel,), (1,), offset)


class _Run:
    def __init__(self, kernel: Kernel, buffers: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.sizes = dict(sizes)
        self.symbols: dict[str, Tensor | int] = dict(self.sizes)
        self.outer = [self.extent(axis) for axis in kernel.outer]
        self.inner = [self.extent(axis) for axis in kernel.inner]
        rank = len(self.outer) + len(self.inner)
        for position, axis in enumerate((*kernel.outer, *kernel.inner)):
            shape = [1] * rank
            shape[position] = self.extent(axis)
            self.symbols[axis.name] = torch.arange(self.extent(axis)).reshape(shape)
        self.values: dict[int, Tensor] = {}
        self.buffers = dict(buffers)
        self.scratch: set[str] = set()
        for buffer in kernel.buffers:
            if buffer.role == "scratch":
                numel = int(self.evaluate(buffer.numel))
                self.scratch.add(buffer.name)
                self.buffers[buffer.name] = torch.zeros(math.prod(self.outer) * numel, dtype=torch_dtype(buffer.dtype))

    def extent(self, axis: Axis) -> int:
        return int(self.evaluate(axis.size))

    def run(self) -> None:
        for stage in self.kernel.stages:
            for instruction in stage.body:
                self.step(stage, instruction)

    def step(self, stage: Stage, instruction: Instruction) -> None:
        match instruction:
            case Load(result, buffer, index, dtype, mask):
                where = self.address(buffer, index)
                if mask is not None:
                    where = torch.where(self.values[mask], where, 0)
                self.values[result] = self.buffers[buffer][where].to(torch_dtype(dtype))
            case Constant(result, value, dtype):
                self.values[result] = torch.tensor(value, dtype=torch_dtype(dtype))
            case IndexValue(result, expr, dtype):
                self.values[result] = torch.as_tensor(self.evaluate(expr)).to(torch_dtype(dtype))
            case Indirect():
                self.bind(instruction)
            case Compute(result, op, args, dtype):
                self.values[result] = compute(op, [self.values[a] for a in args], dtype)
            case Reduce(results, kind, value, dtype):
                whole = self.values[value].expand(*self.outer, *self.inner)
                folded = fold(kind, whole.flatten(len(self.outer)), dtype)
                for result, tensor in zip(results, folded, strict=True):
                    self.values[result] = tensor.reshape(*self.outer, *[1] * len(self.inner))
            case Accumulate(result, kind, value, dtype):
                whole = self.values[value].expand(*self.outer, *self.inner).flatten(len(self.outer))
                self.values[result] = scan(kind, whole, dtype).reshape(*self.outer, *self.inner)
            case Store(buffer, index, value, mode):
                self.store(stage, buffer, index, self.values[value], mode)

    def bind(self, instruction: Indirect) -> None:
        value = self.values[instruction.value].to(torch.int64)
        size = self.evaluate(instruction.size)
        if instruction.wrap:
            value = torch.where(value < 0, value + size, value)
        if instruction.check:
            bad = (value < 0) | (value >= size)
            if instruction.mask is not None:
                bad = bad & self.values[instruction.mask]
            if bool(bad.any()):
                raise _ERRORS[instruction.error](f"index out of range: an index is outside [0, {size})")
        self.symbols[instruction.symbol] = value

    def store(self, stage: Stage, buffer: str, index: Expr, value: Tensor, mode: str | None) -> None:
        where = self.address(buffer, index)
        inner = self.inner if stage.inner else [1] * len(self.inner)
        shape = torch.broadcast_shapes(where.shape, value.shape, (*self.outer, *inner))
        target = self.buffers[buffer]
        flat = value.to(target.dtype).expand(shape).reshape(-1)
        places = where.expand(shape).reshape(-1)
        if mode is None:  # of points that meet at an element, the last stays
            last = torch.full((target.numel(),), -1).scatter_reduce_(0, places, torch.arange(places.numel()), "amax")
            target[last >= 0] = flat[last[last >= 0]]
        elif target.dtype == torch.bool:
            target.view(torch.uint8).scatter_reduce_(0, places, flat.to(torch.uint8), _COMBINED[mode])
        elif mode == "add":  # one after the other, rounded each time
            target.index_add_(0, places, flat)
        else:
            target.scatter_reduce_(0, places, flat, _COMBINED[mode])

    def address(self, buffer: str, index: Expr) -> Tensor:
        where = torch.as_tensor(self.evaluate(index))
        if buffer in self.scratch:  # one copy per outer point here; a real target reuses one
            extent = self.buffers[buffer].numel() // math.prod(self.outer)
            point = torch.arange(math.prod(self.outer)).reshape(*self.outer, *[1] * len(self.inner))
            where = where + point * extent
        return where

    def evaluate(self, expr: Expr) -> Any:
        if isinstance(expr, int):
            return expr
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self.symbols[expr.name]
        args = [self.evaluate(argument) for argument in expr.args]
        if expr.is_Add:
            return sum(args)
        if expr.is_Mul:
            return math.prod(args[1:], start=args[0])
        if expr.is_Pow:
            return args[0] ** args[1]
        return _EXPRESSIONS[type(expr)](*args)


_ERRORS: dict[str, type[Exception]] = {"IndexError": IndexError, "RuntimeError": RuntimeError}

_COMBINED = {"mul": "prod", "min": "amin", "max": "amax"}

_EXPRESSIONS: dict[type, Callable[[Any, Any], Any]] = {
    FloorDiv: lambda a, b: torch.div(a, b, rounding_mode="floor") if isinstance(a, Tensor) else a // b,
    Mod: lambda a, b: a % b,
    Min: lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    Max: lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
}


# ------------------------------------------------------------------------------------------------------- elementwise


def compute(op: str, args: Sequence[Tensor], dtype: str) -> Tensor:
    """The result of an elementwise op on tensors, as `OPS` defines it."""
    if op == "to_dtype":
        return _to_dtype(args[0], torch_dtype(dtype))
    if op == "bitcast":
        return args[0].contiguous().view(torch_dtype(dtype))
    return MEANINGS[op](*args).to(torch_dtype(dtype))


def _to_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value != 0 if dtype == torch.bool else value.to(dtype)


def _shift(a: Tensor, b: Tensor, *, left: bool) -> Tensor:
    bits = a.element_size() * 8
    inside = (b >= 0) & (b < bits)
    amount = torch.where(inside, b, 0)
    if left:
        return torch.where(inside, a << amount, 0)
    beyond = torch.where(a < 0, -1, 0) if a.dtype.is_signed else torch.zeros_like(a)
    return torch.where(inside, a >> amount, beyond.to(a.dtype))


def _sign(a: Tensor) -> Tensor:
    return torch.where(a != a, 0, torch.sign(a)) if a.is_floating_point() else torch.sign(a)


#: What each elementwise op computes.
MEANINGS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": _sign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fma": lambda a, b, c: a.double() * b.double() + c.double(),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_not": torch.bitwise_not,
    "shift_left": lambda a, b: _shift(a, b, left=True),
    "shift_right": lambda a, b: _shift(a, b, left=False),
    "where": lambda c, a, b: torch.where(c, a, b),
    "rand": philox.rand,
    "randn": philox.randn,
    "randint64": philox.randint64,
    **{
        name: getattr(torch, name)
        for name in [
            "floor",
            "ceil",
            "trunc",
            "round",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "atan2",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfc",
            "sigmoid",
            "pow",
            "copysign",
            "nextafter",
            "lgamma",
        ]
    },
}


# -------------------------------------------------------------------------------------------------------------- folds


def fold(kind: str, rows: Tensor, dtype: str) -> tuple[Tensor, ...]:
    """Fold the last axis of `rows`; floats in float64, rounded once."""
    wide = rows.double() if is_float(dtype) else rows
    result = torch_dtype(dtype)
    match kind:
        case "sum":
            return (wide.sum(-1).to(result),)
        case "prod":
            return (wide.prod(-1).to(result),)
        case "max":
            return (rows.any(-1) if rows.dtype == torch.bool else rows.amax(-1).to(result),)
        case "min":
            return (rows.all(-1) if rows.dtype == torch.bool else rows.amin(-1).to(result),)
        case "any":
            return (rows.any(-1),)
        case "all":
            return (rows.all(-1),)
        case "xor_sum":
            total = torch.zeros_like(rows[..., 0])
            for column in rows.unbind(-1):
                total = total ^ column
            return (total,)
        case "argmax":
            return (torch.argmax(rows.to(torch.uint8) if rows.dtype == torch.bool else rows, -1),)
        case "argmin":
            return (torch.argmin(rows.to(torch.uint8) if rows.dtype == torch.bool else rows, -1),)
        case "welford":
            mean = wide.mean(-1, keepdim=True)
            m2 = ((wide - mean) ** 2).sum(-1)
            count = torch.full_like(m2, rows.shape[-1])
            return mean.squeeze(-1).to(result), m2.to(result), count.to(result)
    raise ValueError(f"unknown reduction {kind!r}")


def scan(kind: str, rows: Tensor, dtype: str) -> Tensor:
    """Running fold along the last axis."""
    wide = rows.double() if is_float(dtype) else rows
    match kind:
        case "sum":
            return wide.cumsum(-1).to(torch_dtype(dtype))
        case "prod":
            return wide.cumprod(-1).to(torch_dtype(dtype))
        case "max":
            return rows.cummax(-1).values.to(torch_dtype(dtype))
        case "min":
            return rows.cummin(-1).values.to(torch_dtype(dtype))
        case "logsumexp":
            return wide.logcumsumexp(-1).to(torch_dtype(dtype))
    raise ValueError(f"unknown scan {kind!r}")
