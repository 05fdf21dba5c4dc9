"""Every op of the loop IR on every dtype it accepts, compared with the reference interpreter; accuracy against float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from cpp_kernels import X0, interpret, pointwise, run

from fxloom_codegen_common.interpreter import compute
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import dtype_info, torch_dtype
from fxloom_interfaces.ops import OPS
from fxloom_interfaces.program import Compute, Store

NUMEL = 67  # a few vectors and a rest

FLOATS = ("float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
ACCEPTS = {
    "any": (*FLOATS, "int64", "uint8", "bool"),
    "number": (*FLOATS, *INTEGERS),
    "integer": INTEGERS,
    "float": FLOATS,
    "bool": ("bool",),
    "bits": (*INTEGERS, "bool"),
}
#: Ops that torch has no kernel for on bool, or whose result there is no contract.
SKIPPED = {("maximum", "bool"), ("minimum", "bool")}


def sample(dtype: str, seed: int, op: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kind = dtype_info(dtype).kind
    if kind == "bool":
        return torch.rand(NUMEL, generator=generator) > 0.5
    if kind in ("int", "uint"):
        low = 0 if kind == "uint" else -9
        values = torch.randint(low, 10, (NUMEL,), generator=generator)
        if seed and op in ("floor_div", "trunc_div", "remainder", "fmod"):
            values[values == 0] = 3
        return values.to(torch_dtype(dtype))
    values = torch.randn(NUMEL, generator=generator, dtype=torch.float64) * 3
    if op in ("log", "log2", "log10", "sqrt", "rsqrt", "pow"):
        values = values.abs() + 0.01
    elif op in ("log1p", "acosh"):
        values = values.abs() + 1
    elif op in ("asin", "acos", "atanh"):
        values = values.clamp(-3, 3) / 3.1
    special = [float("nan"), 0.0] if op in ("maximum", "minimum", "eq", "ne", "lt", "isnan", "abs", "relu") else []
    for position, value in enumerate(special):
        values[position] = value
    return values.to(torch_dtype(dtype))


CASES = [(n, d) for n, i in OPS.items() for d in ACCEPTS[i.accepts] if (n, d) not in SKIPPED]


def test_every_op_on_every_dtype(store: FileStore) -> None:
    kernels, arguments, expected = [], [], []
    for name, dtype in CASES:
        result = "bool" if OPS[name].result == "bool" else dtype
        kernels.append(pointwise(name, [dtype] * OPS[name].arity, result, NUMEL))
        inputs = [sample(dtype, seed, name) for seed in range(OPS[name].arity)]
        arguments.append([*inputs, torch.zeros(NUMEL, dtype=torch_dtype(result))])
        expected.append([*inputs, torch.zeros(NUMEL, dtype=torch_dtype(result))])
    run(kernels, arguments, store)
    interpret(kernels, expected)
    wrong = []
    for (name, dtype), got, want in zip(CASES, arguments, expected, strict=True):
        try:
            if dtype in FLOATS and OPS[name].rounding not in ("exact",):
                tolerance = 4e-6 if dtype == "float32" else 1e-13
                torch.testing.assert_close(got[-1], want[-1], rtol=tolerance, atol=tolerance, equal_nan=True)
            else:
                torch.testing.assert_close(got[-1], want[-1], rtol=0, atol=0, equal_nan=True)
        except AssertionError as error:
            wrong.append(f"{name} {dtype}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(CASES) > 150


CONVERTIBLE = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def test_every_conversion(store: FileStore) -> None:
    pairs = [(a, b) for a in CONVERTIBLE for b in CONVERTIBLE if a != b]
    values = torch.cat([torch.arange(0, 60), torch.tensor([0, 1, 100, 127, 3, 5, 90])]).double()
    kernels, arguments, expected = [], [], []
    for source, target in pairs:
        inputs = (values + (0.3 if dtype_info(source).kind == "float" else 0)).to(torch_dtype(source))
        kernels.append(pointwise("to_dtype", [source], target, NUMEL))
        arguments.append([inputs, torch.zeros(NUMEL, dtype=torch_dtype(target))])
        expected.append(inputs.to(torch_dtype(target)) if target != "bool" else inputs != 0)
    run(kernels, arguments, store)
    for pair, got, want in zip(pairs, arguments, expected, strict=True):
        assert torch.equal(got[-1], want), pair


def test_floats_by_way_of_integers(store: FileStore) -> None:
    """What is between -1 and 1 becomes the positive zero; what does not fit into a small integer wraps."""
    values = torch.tensor([-0.5, -0.0, 0.3, -300.0, 256.0, 511.0, 1e9, 40000.0]).repeat(9)[:NUMEL]
    for kind in ("int8", "uint8", "int16", "int32", "int64"):
        single = pointwise("to_dtype", ["float32"], "float32", NUMEL)
        load, _, _ = single.stages[0].body
        there, back = Compute(1, "to_dtype", (0,), kind), Compute(2, "to_dtype", (1,), "float32")
        stage = dataclasses.replace(single.stages[0], body=(load, there, back, Store("out0", X0, 2)))
        arguments = [values, torch.zeros(NUMEL)]
        run([dataclasses.replace(single, stages=(stage,))], [arguments], store)
        want = values.to(torch_dtype(kind)).float()
        assert torch.equal(arguments[-1], want) and torch.equal(arguments[-1].signbit(), want.signbit()), kind


def ulps(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error in units of the last place of the exact float32 result; results below the normal range left out."""
    finite = torch.isfinite(exact) & (exact.abs() > 1.2e-38) & (exact.abs() < 3.4e38)
    exponent = torch.floor(torch.log2(exact[finite].abs()))
    return float(((got.double()[finite] - exact[finite]).abs() / torch.exp2(exponent - 23)).max())


ACCURACY = {
    "exp": (torch.exp, -104.0, 89.0, 1.1),
    "erf": (torch.erf, -5.0, 5.0, 1.2),
    "tanh": (torch.tanh, -10.0, 10.0, 1.6),
    "sigmoid": (torch.sigmoid, -80.0, 80.0, 2.5),
    "log": (torch.log, 1e-30, 1e4, 1.1),
    "rsqrt": (torch.rsqrt, 1e-20, 1e6, 1.6),
    "exp2": (torch.exp2, -150.0, 128.0, 1.3),
    "expm1": (torch.expm1, -20.0, 89.0, 1.7),
    "log1p": (torch.log1p, -0.999, 1e4, 1.1),
    "log2": (torch.log2, 1e-30, 1e4, 1.7),
    "log10": (torch.log10, 1e-30, 1e4, 2.1),
    "sin": (torch.sin, -1e3, 1e3, 1.8),
    "cos": (torch.cos, -1e3, 1e3, 1.8),
    "tan": (torch.tan, -1e3, 1e3, 3.8),
    "asin": (torch.asin, -1.0, 1.0, 2.6),
    "acos": (torch.acos, -1.0, 1.0, 1.3),
    "atan": (torch.atan, -30.0, 30.0, 1.5),
    "sinh": (torch.sinh, -89.3, 89.3, 2.5),
    "cosh": (torch.cosh, -89.3, 89.3, 2.6),
    "erfc": (torch.erfc, -4.0, 9.0, 2.6),
    "asinh": (torch.asinh, -1e3, 1e3, 3.0),
    "acosh": (torch.acosh, 1.0, 1e3, 3.0),
}


@pytest.mark.parametrize("name", ACCURACY)
def test_float32_accuracy(name: str, store: FileStore) -> None:
    function, low, high, limit = ACCURACY[name]
    generator = torch.Generator().manual_seed(0)
    numel = 1 << 18
    uniform = torch.rand(numel // 2, generator=generator, dtype=torch.float64) * (high - low) + low
    near = torch.exp(torch.rand(numel // 2, generator=generator, dtype=torch.float64) * 20 - 19)
    signs = torch.where(torch.rand(numel // 2, generator=generator) < 0.5, -1.0, 1.0) if low < 0 else 1.0
    x = torch.cat([uniform, near * signs]).float()
    out = torch.empty_like(x)
    run([pointwise(name, ["float32"], "float32", numel)], [[x, out]], store)
    assert ulps(out, function(x.double())) <= limit


def test_special_values(store: FileStore) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 0.0, -0.0, 1e-40, -1e-40, 88.8, -104.5, -103.0, 1.0, -1.0, 1024.0, 1000.0, 127.9, -149.0, 1e9, 3e38, -3e38])
    names = ["exp", "erf", "tanh", "sigmoid", "log", *ACCURACY]
    kernels = [pointwise(n, ["float32"], "float32", len(x)) for n in names]
    arguments = [[x, torch.empty_like(x)] for _ in names]
    run(kernels, arguments, store)
    for name, (_, got) in zip(names, arguments, strict=True):
        want = compute(name, [x.double()], "float64").float()
        torch.testing.assert_close(got, want, rtol=1e-6, atol=3e-45, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
        assert torch.equal(got[3:5].signbit(), want[3:5].signbit()), name
        if name in ("log2", "exp2"):  # whole for whole powers
            assert torch.equal(got[[3, 10, 12]], want[[3, 10, 12]])


def test_where_results_are_not_finite(store: FileStore) -> None:
    powers = 10.0 ** torch.arange(-44, 39, dtype=torch.float64)
    x = torch.cat([powers, -powers]).float()
    arguments = [[x, torch.empty_like(x)] for _ in ACCURACY]
    run([pointwise(n, ["float32"], "float32", len(x)) for n in ACCURACY], arguments, store)
    for name, (_, got) in zip(ACCURACY, arguments, strict=True):
        want = compute(name, [x.double()], "float64").float()
        assert torch.equal(got.isnan(), want.isnan()), name
        assert torch.equal(got.isinf(), want.isinf()), name


def test_bfloat16_rounds_to_nearest_even(store: FileStore) -> None:
    x = torch.tensor([1.00390625, 1.01171875, 3.4e38, float("nan"), float("inf"), 1e-40])
    out = torch.empty(len(x), dtype=torch.bfloat16)
    run([pointwise("to_dtype", ["float32"], "bfloat16", len(x))], [[x, out]], store)
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_capabilities_hold_what_is_tested() -> None:
    assert set(CONVERTIBLE) == PLUGIN.capabilities.dtypes
