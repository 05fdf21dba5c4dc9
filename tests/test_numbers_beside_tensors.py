"""Small tensors of every dtype beside Python numbers, tensors without axes and each other, under `inductor`: eager is the truth.

Many expressions go into one compiled function, so that a few hundred cost one kernel. Where eager refuses an expression, it is
left out here (that refusals agree is tested in `test_refusals.py`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*INTEGERS, torch.bool, *HALVES, torch.float32)

#: the types that differ most in what they do to numbers; the others are the long tail
_FIRST = (torch.uint8, torch.int16, torch.float16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
some_dtypes = pytest.mark.parametrize(
    "dtype", [pytest.param(d, id=str(d), marks=[] if d in _FIRST else [pytest.mark.slow]) for d in DTYPES]
)

NUMBERS = (
    -1, 0, 1, 2, 3, 7, 8, 31, 63, 64, 127, 128, 255, 256, 300, -128, -129, 32768, 70000, -(2**31), 2**31, 2**40 + 1,
    True, False, 0.1, 1.0, 2.5, -0.5, -3.0, 0.5, 1e-8, 70000.0, 1e10, -1e10, math.inf, -math.inf, math.nan,
)  # fmt: skip

#: of a tensor and what stands beside it
PAIRED: dict[str, Callable[[Any, Any], Any]] = {
    "x + n": lambda x, n: x + n,
    "x - n": lambda x, n: x - n,
    "n - x": lambda x, n: n - x,
    "x * n": lambda x, n: x * n,
    "n * x": lambda x, n: n * x,
    "x / n": lambda x, n: x / n,
    "n / x": lambda x, n: n / x,
    "x // n": lambda x, n: x // n,
    "n // x": lambda x, n: n // x,
    "x % n": lambda x, n: x % n,
    "n % x": lambda x, n: n % x,
    "x ** n": lambda x, n: x**n,
    "n ** x": lambda x, n: n**x,
    "x & n": lambda x, n: x & n,
    "x | n": lambda x, n: x | n,
    "x ^ n": lambda x, n: x ^ n,
    "x << n": lambda x, n: x << n,
    "x >> n": lambda x, n: x >> n,
    "n << x": lambda x, n: n << x,
    "n >> x": lambda x, n: n >> x,
    "x == n": lambda x, n: x == n,
    "x != n": lambda x, n: x != n,
    "x < n": lambda x, n: x < n,
    "x <= n": lambda x, n: x <= n,
    "x > n": lambda x, n: x > n,
    "x >= n": lambda x, n: x >= n,
    "fmod": lambda x, n: torch.fmod(x, n),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "add alpha": lambda x, n: torch.add(x, x, alpha=n),
    "sub alpha": lambda x, n: torch.sub(x, x, alpha=n),
    "rsub alpha": lambda x, n: torch.rsub(x, x, alpha=n),
    "rsub 3 alpha": lambda x, n: torch.rsub(x, 3, alpha=n),
    "add number alpha": lambda x, n: torch.add(x, n, alpha=3),
    "sub number alpha": lambda x, n: torch.sub(x, n, alpha=2),
    "rsub number alpha": lambda x, n: torch.rsub(x, n, alpha=2),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "clamp min": lambda x, n: torch.clamp(x, min=n),
    "clamp max": lambda x, n: torch.clamp(x, max=n),
    "clamp": lambda x, n: torch.clamp(x, 2, n),
    "where x": lambda x, n: torch.where(x > 1, n, x),
    "where y": lambda x, n: torch.where(x > 1, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "full_like": lambda x, n: torch.full_like(x, n),
    "lerp": lambda x, n: torch.lerp(x, x + 1, n),
    "xlogy": lambda x, n: torch.xlogy(x, n),
    "copysign": lambda x, n: torch.copysign(x, n),
    "float_power": lambda x, n: torch.float_power(x, n),
    "threshold": lambda x, n: torch.nn.functional.threshold(x, n, 3),
    "leaky_relu": lambda x, n: torch.nn.functional.leaky_relu(x, n),
    "hardtanh": lambda x, n: torch.nn.functional.hardtanh(x, -1, n),
    "logical_and": lambda x, n: torch.logical_and(x, torch.as_tensor(n)),
    "maximum": lambda x, n: torch.maximum(x, torch.as_tensor(n)),
}

SINGLE: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": lambda x: abs(x),
    "invert": lambda x: ~x,
    "sign": torch.sign,
    "square": torch.square,
    "relu": torch.relu,
    "double": lambda x: x + x,
    "x * x": lambda x: x * x,
    "x - 2x": lambda x: x - (x + x),
    "logical_not": torch.logical_not,
    "sqrt": torch.sqrt,
    "sigmoid": torch.sigmoid,
    "reciprocal": torch.reciprocal,
    "floor": torch.floor,
    "round": torch.round,
    "isnan": torch.isnan,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.float().mean(),
    "prod": lambda x: x[:8].prod(),
    "cumsum": lambda x: x.cumsum(0),
    "amax": lambda x: x.amax(),
    "amin": lambda x: x.amin(),
    "sum in its own type": lambda x: x.sum(dtype=x.dtype),
    **{f"to {d}": (lambda x, d=d: x.to(d)) for d in (*DTYPES, torch.float64)},
    **{f"{d} and back": (lambda x, d=d: x.to(d).to(x.dtype)) for d in (*DTYPES, torch.float64)},
}


#: of these the operand may be a tensor
TENSOR_OPERANDS = (
    "x + n", "x - n", "n - x", "x * n", "n * x", "x / n", "n / x", "x // n", "n // x", "x % n", "n % x", "x ** n", "n ** x", "x & n", "x | n",
    "x ^ n", "x << n", "x >> n", "n << x", "x == n", "x != n", "x < n", "x <= n", "x > n", "x >= n", "fmod", "trunc", "floor",
    "add number alpha", "sub number alpha", "rsub number alpha", "clamp min", "clamp max", "where x", "where y", "masked_fill",
    "xlogy", "copysign", "logical_and", "maximum",
)  # fmt: skip

#: of these the number may change from call to call
CHANGING = (
    "x + n", "x - n", "n - x", "x * n", "x / n", "n / x", "x // n", "n // x", "x % n", "n % x", "x ** n", "n ** x", "x == n", "x != n",
    "x < n", "x <= n", "x > n", "x >= n", "fmod", "trunc", "floor", "add number alpha", "sub number alpha", "rsub number alpha",
    "add alpha", "sub alpha", "rsub alpha", "addcmul", "addcdiv", "clamp min", "clamp max", "where x", "where y", "masked_fill",
    "full_like", "lerp",
)  # fmt: skip

#: operators that are exact or rounded once, for what comes after another operator
STEPS = (
    "x + n", "x - n", "n - x", "x * n", "x / n", "n / x", "x // n", "n // x", "x % n", "n % x", "x & n", "x | n", "x ^ n", "x << n",
    "x >> n", "x == n", "x < n", "x >= n", "fmod", "trunc", "rsub 3 alpha", "rsub number alpha", "clamp min", "clamp max", "where x",
    "masked_fill",
)  # fmt: skip
SINGLE_STEPS = (
    "neg", "abs", "invert", "sign", "square", "relu", "double", "x - 2x", "logical_not", "reciprocal", "floor", "round",
    *(f"to {d}" for d in DTYPES), *(f"{d} and back" for d in DTYPES),
)  # fmt: skip


def base(dtype: torch.dtype) -> Tensor:
    """64 values: a multiple of every vector's length, as eager's kernels compute otherwise in what is left over."""
    return torch.tensor([0, 1, 2, 3, 7, 100, 127, 128, 129, 200, 255, -1, -2, -128, -100, 64] * 4).to(dtype)


Expression = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of a tensor and what stands beside it


#: of halves: eager's kernels on CUDA round a quotient before it is cut off, and a threshold before they use it
OTHERWISE_ON_CUDA = ("trunc, n = ", "softshrink, ")


def accepted(expressions: dict[str, Expression], x: Tensor) -> dict[str, Expression]:
    """Those that eager has a value for; on the CPU too, where integers divided by 0, which have none, are refused."""
    found = {}
    for name, (function, beside) in expressions.items():
        halves = any(isinstance(v, Tensor) and v.dtype in HALVES for v in (x, *beside))
        if x.is_cuda and halves and name.startswith(OTHERWISE_ON_CUDA):
            continue
        try:
            function(x.cpu(), *[v.cpu() if isinstance(v, Tensor) else v for v in beside])
            function(x, *beside)
        except (RuntimeError, TypeError, NotImplementedError, ValueError, ArithmeticError):
            continue
        found[name] = function, beside
    return found


def differences(expressions: dict[str, Expression], x: Tensor, *, exactly: bool = False) -> list[str]:
    """What inductor computes otherwise than eager, all in one graph. What stands beside `x` is a constant of the graph, unless
    it is a tensor or a `Changing` number: those are arguments."""
    taken = accepted(expressions, x)
    given: list[Any] = list({id(v): v for _, beside in taken.values() for v in beside if isinstance(v, (Tensor, Changing))}.values())
    places = {id(v): n for n, v in enumerate(given)}
    functions = [(f, tuple((places.get(id(v)), v) for v in beside)) for f, beside in taken.values()]

    def all_of_them(x: Tensor, *given: Any) -> list[Tensor]:
        return [f(x, *[v if place is None else given[place] for place, v in beside]) for f, beside in functions]

    fxloom.reset()
    dynamic = any(isinstance(v, Changing) for v in given)
    compiled = fxloom.compile(all_of_them, fullgraph=True)
    plain = [float(v) if isinstance(v, Changing) else v for v in given]
    if dynamic:  # what changes between two calls is an input of the second graph
        compiled(x, *[v + 0.25 if isinstance(v, float) and math.isfinite(v) else v for v in plain])
    wanted, got = all_of_them(x, *plain), compiled(x, *plain)
    return [
        f"{name}: eager {w.dtype} {w.tolist()}, compiled {c.dtype} {c.tolist()}"
        for name, w, c in zip(taken, wanted, got, strict=True)
        if not same(w, c, exactly=exactly)
    ]


class Changing(float):
    """A number that is an argument of the graph."""


def same(wanted: Tensor, given: Tensor, *, exactly: bool) -> bool:
    if wanted.dtype != given.dtype or wanted.shape != given.shape or wanted.stride() != given.stride():
        return False
    ulps = 0 if exactly or not wanted.dtype.is_floating_point else 2 * torch.finfo(wanted.dtype).eps
    subnormal = 0.0 if ulps == 0 else 2 * torch.finfo(wanted.dtype).smallest_normal * torch.finfo(wanted.dtype).eps
    return torch.allclose(wanted.double(), given.double(), rtol=ulps, atol=subnormal, equal_nan=True)


def beside(operands: Sequence[Any], names: Sequence[str] = tuple(PAIRED)) -> dict[str, Expression]:
    return {f"{name}, n = {operand}": (PAIRED[name], (operand,)) for operand in operands for name in names}


@every_dtype
def test_numbers(dtype: torch.dtype) -> None:
    alone = {name: (function, ()) for name, function in SINGLE.items()}
    assert differences({**beside(NUMBERS), **alone}, base(dtype)) == []


@some_dtypes
def test_tensors_without_axes(dtype: torch.dtype) -> None:
    operands = [
        torch.tensor(number).to(other)
        for other in (*DTYPES, torch.float64)
        for number in (-1, 3, 255, 70000, 0.1)
        if not (isinstance(number, float) and not other.is_floating_point)
    ]
    assert differences(beside(operands, TENSOR_OPERANDS), base(dtype)) == []


@some_dtypes
def test_tensors_beside_tensors(dtype: torch.dtype) -> None:
    """Of every other type, in both orders; integers divide by no zero."""
    operands = [torch.where(base(other) == 0, 3, base(other)).to(other).flip(0) for other in (*DTYPES, torch.float64)]
    assert differences(beside(operands, TENSOR_OPERANDS), base(dtype)) == []


@some_dtypes
def test_tensors_without_axes_alone(dtype: torch.dtype) -> None:
    operands = (-1, 3, 255, 70000, 0.1, torch.tensor(3), torch.tensor(0.1, dtype=torch.float64))
    assert differences(beside(operands, TENSOR_OPERANDS), base(dtype)[4]) == []


@some_dtypes
def test_numbers_that_change(dtype: torch.dtype) -> None:
    """Floats that have become inputs of the graph."""
    operands = [Changing(n) for n in (0.1, 2.5, -3.0, 1e-8, 70000.0, 1e10)]
    assert differences(beside(operands, CHANGING), base(dtype)) == []


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [float, Changing, torch.tensor], ids=["constant", "changing", "without axes"])
def test_numbers_between_two_halves(dtype: torch.dtype, kind: Callable[[float], Any]) -> None:
    """Kernels that round the number, and those that don't, give other bits then; for 4,096 halves that are not tiny."""
    x = torch.cat([torch.linspace(0.001, 5, 2048), torch.linspace(-5, -0.001, 2048)]).to(dtype)
    names = ("x + n", "x - n", "n - x", "x * n", "n * x", "x / n", "n / x", "x < n", "x >= n", "clamp min", "where y", "masked_fill")
    numbers = [kind(n) for n in (0.1, 2.3, 0.7)]
    assert differences(beside(numbers, names), x, exactly=True) == []
    if kind is not torch.tensor:
        functional = torch.nn.functional
        activations = {"celu": functional.celu, "softshrink": functional.softshrink, "leaky_relu": functional.leaky_relu}
        expressions = {f"{name}, {n}": (f, (n,)) for name, f in activations.items() for n in numbers}
        expressions |= {f"threshold, {n}": (PAIRED["threshold"], (n,)) for n in numbers}
        assert differences({**beside(numbers, ("lerp", "addcmul")), **expressions}, x) == []


@every_dtype
def test_one_operator_after_another(dtype: torch.dtype) -> None:
    """In one kernel, each step rounded or wrapped as eager's own kernels do."""
    first = {**beside((-1, 2, 3, 255, 300, 0.1, 2.5, 1e-8), STEPS), **{name: (SINGLE[name], ()) for name in SINGLE_STEPS}}
    names = list(accepted(first, base(dtype)))
    draw = random.Random(str(dtype))
    pairs = {}
    for one, other in itertools.product(names, names):
        if draw.random() < 400 / len(names) ** 2:
            (f, n), (g, m) = first[one], first[other]
            pairs[f"{one} | {other}"] = after, (f, g, n, m)
    x = base(dtype)
    # eager's kernels on CUDA divide by a number with a product, which rounds twice; and multiply and add at once
    assert differences(pairs, x, exactly=not x.is_cuda) == []


def after(x: Tensor, f: Any, g: Any, n: tuple[Any, ...], m: tuple[Any, ...]) -> Tensor:
    return g(f(x, *n), *m)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.float32, torch.complex64], ids=str)
def test_numbers_copied_into_tensors(dtype: torch.dtype, backend: str) -> None:
    for numbers in ((True,), (0.1, 1.5, 300.25), (1, 300, 70000)):
        fxloom.reset()
        compiled = fxloom.compile(lambda x, n: (x[0].copy_(n), x), backend=backend, fullgraph=True)
        for number in numbers:
            ours, theirs = torch.ones(2, 3).to(dtype), torch.ones(2, 3).to(dtype)
            theirs[0].copy_(number)
            compiled(ours, number)
            assert torch.equal(ours, theirs)


def test_complex_numbers_beside_real_tensors() -> None:
    compared = {"==": lambda x, n: x == n, "!=": lambda x, n: x != n}
    for dtype in (torch.uint8, torch.float32, torch.float64):
        expressions = {f"x {name} {n}": (function, (n,)) for name, function in compared.items() for n in (2 + 1j, 2 + 0j)}
        assert differences(expressions, base(dtype)) == []


def test_integers_wrap_in_sums() -> None:
    """Signed overflow is undefined in C++: compilers add up what is left when they take it for impossible."""
    x = torch.tensor([True, False, True, False, True])
    for kind, largest in ((torch.int64, 2**63 - 1), (torch.int32, 2**31 - 1)):
        fxloom.reset()
        program = lambda x: (x.to(kind) + largest).sum(dtype=kind)  # noqa: B023, E731
        assert torch.equal(fxloom.compile(program, backend="inductor")(x), program(x))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
def test_numbers_for_what_is_none(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0]).to(dtype)
    program = lambda x, *n: x.nan_to_num(*n)  # noqa: E731
    for numbers in ((1e300, -1e300, 1e300), (0, 70000, -70000), (65510.0, 65530.0, 0.1)):
        fxloom.reset()
        compiled = fxloom.compile(program, backend="inductor", fullgraph=True)
        assert torch.equal(compiled(x, *numbers), program(x, *numbers))
        changed = [number / 3 for number in numbers]
        assert torch.equal(compiled(x, *changed), program(x, *changed))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
def test_powers_at_the_ends(dtype: torch.dtype) -> None:
    x = torch.tensor([-math.inf, -1.0, -0.0, 0.0, 4.0, math.inf, math.nan] * 9).to(dtype)
    for exponent in (0.5, -0.5, 2.0, -1.0, -2.0, 3.0, 1.5):
        fxloom.reset()
        program = lambda x: (x**exponent, torch.copysign(torch.ones_like(x), x**exponent))  # noqa: B023, E731
        wanted, given = program(x), fxloom.compile(program, fullgraph=True)(x)
        assert torch.equal(wanted[0].nan_to_num(7.5), given[0].nan_to_num(7.5)), exponent
        assert torch.equal(wanted[1][~wanted[0].isnan()], given[1][~wanted[0].isnan()]), exponent
