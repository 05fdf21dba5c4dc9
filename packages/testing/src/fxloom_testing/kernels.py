"""Kernels with inputs and expected results: what a code generator has to get right. One case per feature of the loop IR.

In: nothing. Out: `KernelCase`s: a `Kernel`, its inputs, what it must write, and the capabilities that it needs; a plugin is asked
only for cases whose needs it says it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fxloom_interfaces import philox
from fxloom_interfaces.dtypes import torch_dtype
from fxloom_interfaces.expr import symbol, value_symbol
from fxloom_interfaces.ops import OPS
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Reduce,
    Stage,
    Store,
)

Tensor = torch.Tensor
X, Y, R = symbol("x0"), symbol("x1"), symbol("r0")


@dataclass(frozen=True, slots=True)
class KernelCase:
    """kernel: to emit. make: its buffers, in argument order. expected: the written buffers, in order, from all buffers.

    needs: capabilities, as `fusions:reduction_epilogue`, `reductions:sum`, `scans:sum`, `dtypes:float16`, `scatters:add float32`.
    """

    name: str
    kernel: Kernel
    make: Callable[[], list[Tensor]]
    expected: Callable[[Sequence[Tensor]], list[Tensor]]
    needs: tuple[str, ...] = ()


def _buffers(*specs: str) -> tuple[KernelBuffer, ...]:
    """`"in x float32"` and so on."""
    return tuple(KernelBuffer(name, dtype, role) for role, name, dtype in (spec.split() for spec in specs))  # type: ignore[arg-type]


def _pointwise(dtype: str) -> KernelCase:
    n, m = 13, 37
    body = (
        Load(0, "x", m * X + Y, dtype),
        Load(1, "bias", Y, dtype),
        Compute(2, "mul", (0, 1), dtype),
        Constant(3, 2, dtype),
        Compute(4, "add", (2, 3), dtype),
        Store("out", m * X + Y, 4),
    )
    kernel = Kernel(
        (Axis("x0", n), Axis("x1", m)), (), (Stage(False, body),),
        _buffers(f"in x {dtype}", f"in bias {dtype}", f"out out {dtype}"), title=("mul", "add"),
    )  # fmt: skip
    kind = torch_dtype(dtype)

    def make() -> list[Tensor]:
        return [torch.randint(-9, 9, (n, m)).to(kind), torch.randint(-9, 9, (m,)).to(kind), torch.zeros(n, m, dtype=kind)]

    return KernelCase(f"broadcast multiply and add, {dtype}", kernel, make, lambda t: [t[0] * t[1] + 2], (f"dtypes:{dtype}",))


def _transposed() -> KernelCase:
    n, m = 9, 14
    body = (Load(0, "x", n * Y + X, "float32"), Store("out", m * X + Y, 0))
    kernel = Kernel((Axis("x0", n), Axis("x1", m)), (), (Stage(False, body),), _buffers("in x float32", "out out float32"))
    return KernelCase(
        "transposed read", kernel, lambda: [torch.randn(m, n), torch.zeros(n, m)], lambda t: [t[0].t().contiguous()]
    )


def _reduction(kind: str, width: int) -> KernelCase:
    body = (Load(0, "x", width * X + R, "float32"), Reduce((1,), kind, 0, "float32"))
    kernel = Kernel(
        (Axis("x0", 7),), (Axis("r0", width),), (Stage(True, body), Stage(False, (Store("out", X, 1),))),
        _buffers("in x float32", "out out float32"), title=(kind,),
    )  # fmt: skip
    fold = {"sum": lambda t: t.double().sum(-1).float(), "max": lambda t: t.amax(-1), "min": lambda t: t.amin(-1)}[kind]

    def make() -> list[Tensor]:
        x = torch.randn(7, width)
        if kind != "sum":
            x[3, width // 2] = float("nan")
        return [x, torch.zeros(7)]

    return KernelCase(f"{kind} of rows of {width}", kernel, make, lambda t: [fold(t[0])], (f"reductions:{kind}",))


def _scan(kind: str, dtype: str) -> KernelCase:
    width = 45
    body = (Load(0, "x", width * X + R, dtype), Accumulate(1, kind, 0, dtype), Store("out", width * X + R, 1))
    kernel = Kernel(
        (Axis("x0", 7),), (Axis("r0", width),), (Stage(True, body),), _buffers(f"in x {dtype}", f"out out {dtype}"), title=(kind,)
    )
    type_ = torch_dtype(dtype)
    run: Callable[[Tensor], Tensor] = {
        "sum": lambda t: t.cumsum(-1, dtype=type_),
        "prod": lambda t: t.cumprod(-1, dtype=type_),
        "max": lambda t: t.cummax(-1).values,
        "min": lambda t: t.cummin(-1).values,
        "logsumexp": lambda t: t.logcumsumexp(-1),
    }[kind]

    def make() -> list[Tensor]:
        return [torch.randint(-2, 3, (7, width)).to(type_), torch.full((7, width), 9, dtype=type_)]

    return KernelCase(f"running {kind}, {dtype}", kernel, make, lambda t: [run(t[0])], (f"scans:{kind}", f"dtypes:{dtype}"))


def _softmax(width: int) -> KernelCase:
    at = width * X + R
    stages = (
        Stage(True, (Load(0, "x", at, "float32"), Reduce((1,), "max", 0, "float32"))),
        Stage(
            True,
            (
                Load(2, "x", at, "float32"),
                Compute(3, "sub", (2, 1), "float32"),
                Compute(4, "exp", (3,), "float32"),
                Reduce((5,), "sum", 4, "float32"),
            ),
        ),
        Stage(
            True,
            (
                Load(6, "x", at, "float32"),
                Compute(7, "sub", (6, 1), "float32"),
                Compute(8, "exp", (7,), "float32"),
                Compute(9, "div", (8, 5), "float32"),
                Store("out", at, 9),
            ),
        ),
    )
    kernel = Kernel(
        (Axis("x0", 11),), (Axis("r0", width),), stages, _buffers("in x float32", "out out float32"), title=("softmax",)
    )
    return KernelCase(
        f"softmax of rows of {width}", kernel, lambda: [torch.randn(11, width), torch.zeros(11, width)],
        lambda t: [t[0].double().softmax(-1).float()], ("fusions:reduction_epilogue", "reductions:max", "reductions:sum"),
    )  # fmt: skip


def _gather() -> KernelCase:
    index = value_symbol("i0")
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 11, True, True),
        Load(1, "table", 8 * index + Y, "float32"),
        Store("out", 8 * X + Y, 1),
    )
    kernel = Kernel(
        (Axis("x0", 5), Axis("x1", 8)),
        (),
        (Stage(False, body),),
        _buffers("in index int64", "in table float32", "out out float32"),
    )

    def make() -> list[Tensor]:
        return [torch.tensor([0, 10, -1, -11, 3]), torch.randn(11, 8), torch.zeros(5, 8)]

    return KernelCase("indirect read, negative indices wrapped", kernel, make, lambda t: [t[1][t[0]]], ("dtypes:int64",))


def _scatter(mode: str, dtype: str) -> KernelCase:
    """Rows of 6 into rows of 8, of which two meet (but for "assign", where they may not); negative indices count from the end."""
    index, kind = value_symbol("i0"), torch_dtype(dtype)
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 9, True, True),
        Load(1, "x", 6 * X + Y, dtype),
        Store("out", 8 * index + Y, 1, None if mode == "assign" else mode),  # type: ignore[arg-type]  # a StoreMode
    )
    kernel = Kernel(
        (Axis("x0", 5), Axis("x1", 6)), (), (Stage(False, body),),
        _buffers("in index int64", f"in x {dtype}", f"inout out {dtype}"), title=("scatter", mode),
    )  # fmt: skip

    def make() -> list[Tensor]:
        index = torch.tensor([3, 0, 8, -5, 7] if mode == "assign" else [3, 0, 8, -6, 7])
        low = 0 if dtype in ("bool", "uint8") else -4
        return [index, torch.randint(low, 4, (5, 6)).to(kind), torch.randint(low, 4, (9, 8)).to(kind)]

    def expected(tensors: Sequence[Tensor]) -> list[Tensor]:
        index, x, out = tensors
        place = (index % 9).unsqueeze(1).expand(5, 6)
        if mode == "assign":
            return [out.scatter(0, place, x)]
        by = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}[mode]
        wide = torch.uint8 if kind == torch.bool else kind
        return [out.to(wide).scatter_reduce(0, place, x.to(wide), by).to(kind)]

    return KernelCase(f"scatter {mode}, {dtype}", kernel, make, expected, (f"scatters:{mode} {dtype}", "dtypes:int64"))


def _ordered_scatter() -> KernelCase:
    """Many points at few elements: the last one stays."""
    index = value_symbol("i0")
    body = (Load(0, "index", X, "int64"), Indirect("i0", 0, 4, True, False), Load(1, "x", X, "int64"), Store("out", index, 1))
    kernel = Kernel((Axis("x0", 1000),), (), (Stage(False, body),), _buffers("in index int64", "in x int64", "inout out int64"))

    def make() -> list[Tensor]:
        return [torch.randint(0, 3, (1000,)), torch.arange(1000), torch.full((4,), -1)]

    def expected(tensors: Sequence[Tensor]) -> list[Tensor]:
        index, x, out = tensors
        return [torch.stack([x[index == n].amax() if n < 3 else out[n] for n in range(4)])]

    return KernelCase("scatter in order", kernel, make, expected, ("scatters:assign int64", "ordered_scatters", "dtypes:int64"))


#: What a scatter may combine values by, in dtypes of each kind.
_SCATTERS = (
    *((mode, dtype) for mode in ("add", "mul", "min", "max") for dtype in ("float32", "float16", "bfloat16", "int64", "uint8")),
    *(("assign", dtype) for dtype in ("float32", "bfloat16", "int64", "bool")),
    *((mode, "bool") for mode in ("min", "max")),
)


def _elementwise(op: str) -> KernelCase:
    arity = OPS[op].arity
    boolean = OPS[op].result == "bool"
    result = "bool" if boolean else "float32"
    body: tuple[Instruction, ...] = (
        *(Load(i, f"in{i}", X, "float32") for i in range(arity)),
        Compute(arity, op, tuple(range(arity)), result),
        Store("out", X, arity),
    )
    kernel = Kernel(
        (Axis("x0", 50),),
        (),
        (Stage(False, body),),
        _buffers(*(f"in in{i} float32" for i in range(arity)), f"out out {result}"),
        title=(op,),
    )
    function = {"sub": torch.sub, "fma": lambda a, b, c: a * b + c}.get(op) or getattr(torch, op)

    def make() -> list[Tensor]:
        inputs = [torch.rand(50) * 0.8 + 0.1 for _ in range(arity)]
        return [*inputs, torch.zeros(50, dtype=torch_dtype(result))]

    def expected(tensors: Sequence[Tensor]) -> list[Tensor]:
        inputs = tensors[:arity]
        return [function(*inputs) if boolean or op == "nextafter" else function(*(t.double() for t in inputs)).float()]

    return KernelCase(f"op {op}", kernel, make, expected)


def _random(op: str) -> KernelCase:
    """Numbers at positions that don't fit 32 bits, from a seed of 64: Philox is the same everywhere."""
    result = "int64" if op == "randint64" else "float32"
    bounds = (Constant(4, -5, "int64"), Constant(5, (1 << 60) + 7, "int64")) if op == "randint64" else ()
    body = (
        Load(0, "seed", 0, "int64"),
        IndexValue(1, X, "int64"),
        Constant(2, (1 << 32) - 20, "int64"),
        Compute(3, "add", (1, 2), "int64"),
        *bounds,
        Compute(6, op, (0, 3, 4, 5) if bounds else (0, 3), result),
        Store("out", X, 6),
    )
    kernel = Kernel(
        (Axis("x0", 50),), (), (Stage(False, body),), _buffers("in seed int64", f"out out {result}"), title=(op,)
    )

    def make() -> list[Tensor]:
        return [torch.tensor([0x1234567_89ABCDEF]), torch.zeros(50, dtype=torch_dtype(result))]

    def expected(tensors: Sequence[Tensor]) -> list[Tensor]:
        positions = torch.arange(50) + (1 << 32) - 20
        numbers = [torch.tensor(-5), torch.tensor((1 << 60) + 7)] if bounds else []
        return [getattr(philox, op)(tensors[0], positions, *numbers)]

    return KernelCase(f"random {op}", kernel, make, expected, needs=("random",))


#: Ops of every plugin: those of floats that torch has under the same name.
_FLOAT_OPS = (
    "add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc",
    "round", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "pow",
)  # fmt: skip

CASES: tuple[KernelCase, ...] = (
    *(_pointwise(dtype) for dtype in ("float32", "float64", "int64", "int32")),
    _transposed(),
    *(_reduction(kind, width) for kind in ("sum", "max", "min") for width in (1, 33, 5000)),
    *(_scan(kind, dtype) for kind in ("sum", "prod", "max", "min") for dtype in ("float32", "int64")),
    _scan("logsumexp", "float32"),
    *(_softmax(width) for width in (1, 40, 3000)),
    _gather(),
    *(_scatter(mode, dtype) for mode, dtype in _SCATTERS),
    _ordered_scatter(),
    *(_elementwise(op) for op in _FLOAT_OPS),
    *(_random(op) for op in ("rand", "randn", "randint64")),
)


@dataclass(frozen=True, slots=True)
class GroupedCase:
    """An elementwise kernel whose extents are sizes, and the sets of sizes to run it on.

    make, expected: as in `KernelCase`, for one set.
    """

    name: str
    kernel: Kernel
    sizes: tuple[tuple[int, ...], ...]
    make: Callable[..., list[Tensor]]
    expected: Callable[[Sequence[Tensor], Sequence[int]], list[Tensor]]


def _update() -> GroupedCase:
    """An optimizer's step in small: a state changes in place, a parameter too, by a number that each set reads."""
    n = symbol("n0")
    body = (
        Load(0, "step", 0, "float32"),
        Load(1, "g", X, "float32"),
        Load(2, "m", X, "float32"),
        Constant(3, 0.5, "float32"),
        Compute(4, "mul", (2, 3), "float32"),
        Compute(5, "add", (4, 1), "float32"),
        Store("m", X, 5),
        Compute(6, "mul", (5, 0), "float32"),
        Load(7, "p", X, "float32"),
        Compute(8, "sub", (7, 6), "float32"),
        Store("p", X, 8),
    )
    buffers = _buffers("in step float32", "in g float32", "inout m float32", "inout p float32")
    kernel = Kernel((Axis("x0", n),), (), (Stage(False, body),), buffers, ("n0",), ("update",))

    def expected(buffers: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        step, g, m, p = buffers
        moved = m * 0.5 + g
        return [moved, p - moved * step]

    sizes = ((13,), (1,), (0,), (4096,), (70_001,), (16,), (2,), (1024,), (3000,))
    make = lambda n: [torch.randn(()), torch.randn(n), torch.randn(n), torch.randn(n)]  # noqa: E731
    return GroupedCase("update", kernel, sizes, make, expected)


def _strided_update() -> GroupedCase:
    """Two axes, one operand of which is transposed, one a number of each row, at an offset."""
    n, m, step, at = symbol("n0"), symbol("n1"), symbol("n2"), symbol("n3")
    body = (
        Load(0, "a", m * X + Y, "float32"),
        Load(1, "b", X + step * Y, "float64"),
        Compute(2, "to_dtype", (1,), "float32"),
        Load(3, "c", X + at, "float32"),
        Compute(4, "mul", (2, 3), "float32"),
        Compute(5, "add", (0, 4), "float32"),
        Store("out", m * X + Y, 5),
    )
    buffers = _buffers("in a float32", "in b float64", "in c float32", "out out float32")
    names = ("n0", "n1", "n2", "n3")
    kernel = Kernel((Axis("x0", n), Axis("x1", m)), (), (Stage(False, body),), buffers, names, ("strided",))

    def make(n: int, m: int, step: int, at: int) -> list[Tensor]:
        return [torch.randn(n, m), torch.randn(m, step, dtype=torch.float64), torch.randn(n + at), torch.empty(n, m)]

    def expected(buffers: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        a, b, c, _ = buffers
        n, _, _, at = sizes
        return [a + b.t()[:n].float() * c[at:, None]]

    return GroupedCase("strided", kernel, ((3, 4, 3, 1), (1, 7, 2, 0), (5, 0, 5, 2), (300, 257, 301, 3), (2, 64, 2, 1)), make, expected)


def _number() -> GroupedCase:
    """No axes: one element in each set."""
    body = (Load(0, "x", 0, "int64"), Constant(1, 1, "int64"), Compute(2, "add", (0, 1), "int64"), Store("out", 0, 2))
    kernel = Kernel((), (), (Stage(False, body),), _buffers("in x int64", "out out int64"), (), ("number",))
    make = lambda: [torch.randint(0, 9, ()), torch.empty((), dtype=torch.int64)]  # noqa: E731
    return GroupedCase("number", kernel, ((),) * 70, make, lambda buffers, sizes: [buffers[0] + 1])


def _norm() -> GroupedCase:
    """The norm of each row, and the row divided by it."""
    n, m = symbol("n0"), symbol("n1")
    first = (Load(0, "x", m * X + R, "float32"), Compute(1, "mul", (0, 0), "float32"), Reduce((2,), "sum", 1, "float32"))
    between = (Compute(3, "sqrt", (2,), "float32"), Store("norm", X, 3))
    last = (Load(4, "x", m * X + R, "float32"), Compute(5, "div", (4, 3), "float32"), Store("out", m * X + R, 5))
    stages = (Stage(True, first), Stage(False, between), Stage(True, last))
    buffers = _buffers("in x float32", "out norm float32", "out out float32")
    kernel = Kernel((Axis("x0", n),), (Axis("r0", m),), stages, buffers, ("n0", "n1"), ("norm",))
    make = lambda n, m: [torch.rand(n, m) + 0.5, torch.empty(n), torch.empty(n, m)]  # noqa: E731

    def expected(buffers: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        norm = buffers[0].norm(dim=1)
        return [norm, buffers[0] / norm[:, None]]

    return GroupedCase("norm", kernel, ((3, 5), (1, 5000), (0, 4), (70, 64), (2, 1), (33, 100)), make, expected)


def _sum() -> GroupedCase:
    """The sum of all elements: no outer axes. Of none it is 0."""
    n = symbol("n0")
    body = (Load(0, "x", R, "float32"), Reduce((1,), "sum", 0, "float32"))
    stages = (Stage(True, body), Stage(False, (Store("out", 0, 1),)))
    kernel = Kernel((), (Axis("r0", n),), stages, _buffers("in x float32", "out out float32"), ("n0",), ("sum",))
    make = lambda n: [torch.rand(n), torch.empty(())]  # noqa: E731
    return GroupedCase("sum", kernel, ((7,), (0,), (4096,), (3001,), (1,)), make, lambda buffers, sizes: [buffers[0].sum()])


GROUPED_CASES: tuple[GroupedCase, ...] = (_update(), _strided_update(), _number(), _norm(), _sum())
