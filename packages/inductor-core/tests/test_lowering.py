"""Lowerings against eager, on the reference interpreter: one table of small programs, and that none of them falls back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from core_graphs import check, compiled, record

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import compile_graph

torch.manual_seed(0)
X, Y = torch.randn(4, 6, 10), torch.randn(4, 6, 10)
POSITIVE = torch.rand(4, 6, 10) + 0.1
INTS, DIVISORS = torch.randint(-9, 9, (4, 6, 10)), torch.randint(1, 9, (4, 6, 10))
MASK = torch.rand(4, 6, 10) > 0.5
IMAGE = torch.randn(2, 4, 12, 12)
NANS = X.masked_fill(X > 1, float("nan"))
ROWS = torch.tensor([0, 2, -1])

CASES: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    # pointwise
    "float_unary": (
        lambda x: [getattr(torch, n)(x) for n in ("exp", "sin", "tanh", "erf", "sigmoid", "floor", "round", "abs")],
        (X,),
    ),
    "positive_unary": (lambda x: [getattr(torch, n)(x) for n in ("log", "sqrt", "rsqrt", "log1p", "reciprocal")], (POSITIVE,)),
    "int_to_float": (lambda i: (i.exp(), i.sqrt().isnan(), i / 3), (INTS,)),
    "binary": (lambda x, y: (x + y, x - 2 * y, x * y, x / y, torch.maximum(x, y), torch.atan2(x, y), x % y, x.fmod(y)), (X, Y)),
    "alpha": (lambda x, y: (torch.add(x, y, alpha=3), torch.sub(x, y, alpha=2), torch.rsub(x, y)), (X, Y)),
    "integer": (
        lambda i, j: (i + j, i * j, i // 3, i % -3, torch.div(i, 4, rounding_mode="trunc"), i & j, i | j, i ^ j, ~i),
        (INTS, DIVISORS),
    ),
    "float_floor": (lambda x, y: (torch.div(x, y, rounding_mode="floor"), x // y), (X, Y)),
    "shifts": (lambda i, j: (i << j, i >> j), (INTS, DIVISORS)),
    "powers": (lambda x: (x**2, x**3, x**0.5, x**-1, x**1.7), (POSITIVE,)),
    "compare": (lambda x, y: (x == y, x < y, x >= 0.5, x != y), (X, Y)),
    "logic": (lambda b, x: (~b, b & (x > 0), b | (x > 0), torch.logical_and(b, x), b + b), (MASK, X)),
    "promotion": (lambda x, i, b: (x + i, i + b, i * 2.5, x * b, x > i), (X, INTS, MASK)),
    "where": (lambda b, x, y: (torch.where(b, x, y), x.masked_fill(b, -1e9), torch.where(b, x, 0.0)), (MASK, X, Y)),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(max=0.1), F.relu(x)), (X,)),
    "nan": (lambda x: (x.clamp(0, 1), F.relu(x), torch.maximum(x, x * 0), x.amax(1), x.argmax(1), x.min(2).values), (NANS,)),
    "activations": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.leaky_relu(x), F.hardtanh(x)), (X,)),
    "casts": (
        lambda x: (x.double(), x.int(), x.bool(), x.half().float(), (x.abs() * 10).to(torch.uint8).float().clamp(max=0)),
        (X,),
    ),
    "scalar_tensor": (lambda x, s: x * s + s, (X, torch.tensor(2.5))),
    "zero_dim": (lambda x: (x * 2).exp(), (torch.randn(()),)),
    "empty": (lambda x: (x * 2, x.sum(0), x.prod(), x.any(0)), (torch.randn(0, 5),)),
    # creation
    "creation": (lambda x: x + torch.arange(10) + torch.full((10,), 2.0) + torch.ones_like(x) + torch.zeros(10), (X,)),
    "triangles": (lambda x: (x.tril(1), x.triu(-1)), (X,)),
    # views
    "views": (
        lambda x: (x.transpose(0, 1) + 1, x.permute(2, 0, 1) * 2, x.reshape(24, 10) + 1, x[:, 1:3] + 1, x[..., ::2] * 2),
        (X,),
    ),
    "views_2": (
        lambda x: (x[:, -1] + 1, x.unsqueeze(1) * x.unsqueeze(2), x.diagonal(1, 1, 2) + 1, x[:, :1].expand(4, 6, 10) + 1),
        (X,),
    ),
    "output_views": (lambda x: (x.exp().transpose(0, 2), (x + 1)[1]), (X,)),
    "regroup": (lambda x: x.permute(1, 0, 2).reshape(6, 40) * 2, (X,)),
    "split_heads": (lambda x: x.exp().view(4, 6, 2, 5).permute(0, 2, 1, 3).reshape(8, 30) + 1, (X,)),
    "split": (lambda x: [t * 2 for t in x.split(2, 1)] + [t + 1 for t in x.unbind(0)], (X,)),
    "joins": (lambda x, y: (torch.cat([x, y * 2, x.exp()], 2), torch.cat([x[:0], y])), (X, Y)),
    "pad_flip": (lambda x: (F.pad(x, (1, 2, 0, 1), value=3.0), x.flip(0, 2), x.repeat(2, 1, 3)), (X,)),
    "scatter_slices": (lambda x: (torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3), torch.select_scatter(x, x[:, 0], 1, 2)), (X,)),
    "strided_inputs": (lambda x, y: (x + 1, y.exp()), (torch.randn(4, 20)[:, ::2], torch.randn(40)[3:33].view(5, 6))),
    # reductions
    "sums": (lambda x: (x.sum(0), x.sum((0, 2)), x.sum(), x.mean(1), x.mean((1, 2), keepdim=True)), (X,)),
    "extremes": (lambda x: (x.amax(0), x.amin((0, 1), keepdim=True), x.max(), x.max(1), x.min(2), x.argmin()), (X,)),
    "truths": (lambda b, x: (b.any(0), b.all(1), x.any(), b.sum(2)), (MASK, X)),
    "variance": (lambda x: (torch.var_mean(x, 1), x.var(2, correction=0), torch.var_mean(x, (0, 2), keepdim=True)), (X,)),
    "split_sum": (lambda x: (x.sum(), x.amax()), (torch.rand(128, 512),)),
    "int_sums": (lambda i: (i.sum(1), i.prod(2), i.amax(0)), (INTS,)),
    "scans": (lambda x, i: (x.cumsum(0), x.cumsum(2), x.cumprod(1), i.cumsum(1)), (X, INTS)),
    # indexing
    "embedding": (lambda w, i: F.embedding(i, w) + 1, (torch.randn(20, 8), torch.randint(0, 20, (3, 5)))),
    "index": (lambda x, k: (x[k], x[:, k], x[k, k], x[k, :, k], x.index_select(1, k.abs())), (X, ROWS)),
    "gather": (lambda x, k: (x.gather(1, k), x[0, 0].gather(0, k[:0, 0])), (X, torch.randint(0, 6, (4, 3, 10)))),
    "gather of a number": (
        lambda x, k: (x[0, 0, 0].gather(0, k), x[0, 0].gather(0, k[0]), x[0, 0, 0].index_select(0, k[:1])),
        (X, torch.zeros(3, dtype=torch.int64)),
    ),
    "masked index": (
        lambda x, b, k: torch.ops.aten._unsafe_masked_index(x[0], b, [k, k], 7),
        (X, torch.tensor([True, False, True]), torch.tensor([1, 99, -1])),
    ),
    # libraries
    "matmul": (
        lambda a, b, c: (a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2), F.relu(torch.addmm(c, a, b))),
        (torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)),
    ),
    "bmm": (lambda a, b: (torch.bmm(a, b), torch.bmm(a, b).exp()), (torch.randn(3, 5, 7), torch.randn(3, 7, 2))),
    "gemm_of_views": (lambda a, b: a.t() @ b.exp().t(), (torch.randn(7, 5), torch.randn(3, 7))),
    "convolution": (
        lambda x, w, b: (F.relu(F.conv2d(x, w, b, padding=1)), F.conv2d(x, w, stride=2)),
        (IMAGE, torch.randn(8, 4, 3, 3), torch.randn(8)),
    ),
    "pooling": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), (IMAGE,)),
    "positions of maxima": (
        lambda x, y: [
            torch.ops.aten.max_pool2d_with_indices(t, kernel, stride, padding, dilation, ceil)
            for t in (x, y, x[0], (x * 3).int())
            for kernel, stride, padding, dilation, ceil in (([3, 2], [2, 2], [1, 0], 1, False), (2, [3, 3], 1, 1, True), (2, [], 0, 1, True))
        ]
        + [torch.ops.aten.max_pool2d_with_indices(t, 3, 2, 1, 2, ceil) for t in (x, y) for ceil in (True, False)],
        (IMAGE.round(), torch.where(IMAGE > 1, torch.nan, torch.where(IMAGE > 0, IMAGE, -torch.inf))),
    ),
    "channels_last": (lambda x: (x * 2 + 1, F.max_pool2d(x, 2)), (IMAGE.to(memory_format=torch.channels_last),)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager_without_fallback(name: str) -> None:
    function, inputs = CASES[name]
    assert check(function, *inputs).fallbacks == ()


DIVISIONS: dict[str, Callable[..., torch.Tensor]] = {
    "floor": lambda i, j: i // j,
    "remainder": lambda i, j: i % j,
    "fmod": lambda i, j: torch.fmod(i, j),
    "trunc": lambda i, j: torch.div(i, j, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_divided_by_a_tensor_are_eagers_to_refuse(name: str) -> None:
    """Any element may be zero, and only the eager kernel says so."""
    assert len(check(DIVISIONS[name], INTS, DIVISORS).fallbacks) == 1
    zeros = torch.zeros_like(DIVISORS)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(DIVISIONS[name], INTS, zeros)([INTS, zeros])


@pytest.mark.parametrize("name", ["remainder", "fmod", "eq", "lt", "ge"])
def test_numbers_beside_half_are_rounded_to_half(name: str) -> None:
    x = torch.tensor([-4.0, -1.5, 0.0, 0.25, 3.140625, 6.28125, 8.0], dtype=torch.float16)
    assert check(lambda t: getattr(torch, name)(t, 3.14), x, rtol=0).fallbacks == ()


def test_every_case_also_runs_unfused() -> None:
    from fxloom_inductor_core import InductorOptions

    for name in ("views", "variance", "activations", "joins", "nan"):
        function, inputs = CASES[name]
        check(function, *inputs, options=InductorOptions(fuse=False, reuse_memory=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_eager(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + y) * x, (x * y).exp().sum(1), torch.maximum(x, y), torch.cat([x, y], 1), x > y

    inputs = (X.to(dtype), Y.to(dtype))
    got = compiled(function, *inputs)(list(inputs))
    eager, exact = function(*inputs), function(*(t.double() for t in inputs))
    for a, b, c in zip(got, eager, exact, strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        worst = (b.double() - c.double()).abs().max()
        ulp = torch.finfo(dtype).eps * c.double().abs().max()
        assert (a.double() - c.double()).abs().max() <= 2 * worst + ulp


def test_bad_index_raises() -> None:
    graph = compiled(lambda w, i: F.embedding(i, w), torch.randn(4, 3), torch.tensor([0, 3]))
    with pytest.raises(Exception, match="out of range"):
        graph([torch.randn(4, 3), torch.tensor([0, 4])])


def test_what_has_no_lowering_is_counted_by_name() -> None:
    graph = check(lambda x: (torch.isin(x, x[0]), x * 2), X)
    assert graph.fallbacks == (("aten.isin.Tensor_Tensor", 1),)


@pytest.mark.parametrize(("longest", "calls"), [(None, 0), (5, 0), (4, 1)])
def test_scans_longer_than_the_target_can_are_calls(longest: int | None, calls: int) -> None:
    short = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, max_scan_numel=longest))
    x = torch.randn(3, 5)
    graph = compile_graph(record(lambda x: x.cumsum(1), x), codegens={"cpu": short}, store=None)
    torch.testing.assert_close(graph([x])[0], x.cumsum(1))
    assert (graph.fallbacks, graph.library_calls) == ((), (("aten.cumsum", 1),) * calls)


def test_library_calls_are_counted_apart() -> None:
    graph = check(lambda a, b: F.relu(a @ b) @ b, torch.randn(5, 5), torch.randn(5, 5))
    assert graph.library_calls == (("aten.mm", 2),)
    assert graph.fallbacks == ()


def test_neighbours_of_low_precision_numbers() -> None:
    halves = X.half()
    got = compiled(torch.nextafter, halves, halves + 1)([halves, halves + 1])
    assert torch.equal(got[0], torch.nextafter(halves, halves + 1))


def test_numbers_on_the_cpu_are_brought_to_the_device_of_the_others_once() -> None:
    """Eager lets a tensor without axes stand beside tensors of another device; a kernel can't read it there."""

    def program(x: torch.Tensor, step: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * step + step, step + 1, x[index]

    inputs = (torch.empty(4, 3, device="meta"), torch.tensor(2.0), torch.tensor([0, 2]))
    graph = compile_graph(record(program, *inputs), codegens={"cpu": REFERENCE, "meta": REFERENCE}, store=None)
    assert dict(graph.library_calls) == {"aten._to_copy": 1}
    assert dict(graph.fallbacks) == {"aten.index.Tensor": 1}
    assert sorted(device for _, device in graph.program.devices) == ["cpu", "meta"]
