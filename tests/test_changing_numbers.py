"""Numbers worked out from sizes, and numbers handed to operators, that change at every call: two compilations serve all."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

SIZES = (5, 8, 12, 17, 21, 30)
FLOATS = (0.11, 0.22, 0.33, 0.44, 0.55, 0.66)
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))

OF_A_SIZE: dict[str, Callable[[torch.Tensor], Any]] = {
    "int of half": lambda x: x[: int(x.shape[0] / 2)] * 2,
    "round of a product": lambda x: x[: round(x.shape[0] * 0.5)] * 2,
    "int of a product": lambda x: x[: int(x.shape[0] * 0.3) + 2] * 2,
    "floor of a product": lambda x: x[: math.floor(x.shape[0] * 0.7)] + 1,
    "ceil of a product": lambda x: x[: math.ceil(x.shape[0] * 0.7)] + 1,
    "negative power": lambda x: x * x.shape[0] ** -0.5,
    "log": lambda x: x * math.log(x.shape[0]),
    "ceil of log2": lambda x: x * math.ceil(math.log2(x.shape[0])),
    "exp": lambda x: x * math.exp(-x.shape[0]),
    "sqrt": lambda x: x * math.sqrt(x.shape[0]),
    "isqrt": lambda x: x * math.isqrt(x.shape[0]),
    "floor of sqrt": lambda x: x[: math.floor(math.sqrt(x.shape[0]))] + 1,
    "cos": lambda x: x * math.cos(2 * math.pi / x.shape[0]),
    "shift right": lambda x: x[: x.shape[0] >> 1] * 3,
    "to a power of two": lambda x: F.pad(x, (0, 2 ** math.ceil(math.log2(x.shape[0])) - x.shape[0])),
    "to a power of two by bits": lambda x: F.pad(x, (0, (1 << (x.shape[0] - 1).bit_length()) - x.shape[0])),
    "float that decides": lambda x: x * (1.0 if x.shape[0] / 2 > 1.5 else 2.0),
    "max_pool1d": lambda x: F.max_pool1d(x[None, None], 2),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[None, None], 3),
    "tensor_split": lambda x: [part + 1 for part in x.tensor_split(3)],
    "hsplit": lambda x: x.hsplit([2, x.shape[0] - 1])[1] + 1,
    "linspace": lambda x: torch.linspace(0, x.shape[0] - 1, x.shape[0]) * x,
    "logspace": lambda x: torch.logspace(0, 1, x.shape[0]) * x,
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[0]),
    "hann_window": lambda x: torch.hann_window(x.shape[0]) * x,
    "hamming_window": lambda x: torch.hamming_window(x.shape[0]) * x,
    "blackman_window": lambda x: torch.blackman_window(x.shape[0], False) * x,
    "bartlett_window": lambda x: torch.bartlett_window(x.shape[0]) * x,
    "kaiser_window": lambda x: torch.kaiser_window(x.shape[0]) * x,
    "tril_indices": lambda x: torch.tril_indices(x.shape[0], 7, -2) + 1,
    "triu_indices": lambda x: torch.triu_indices(x.shape[0], 9, 1) + 1,
    "std correction": lambda x: x.std(0, correction=x.shape[0] // 4),
    "vander": lambda x: torch.vander(x[:4], x.shape[0]),
    "combinations": lambda x: torch.combinations(x),
    "smallest of a list": lambda x: x[: min([x.shape[0], x.shape[0] - 2])] * 2,
}
OF_AN_IMAGE: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.5),
    "linear": lambda x: F.interpolate(x[0], scale_factor=2.0, mode="linear"),
    "bilinear": lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
    "area": lambda x: F.interpolate(x, size=(4, 4), mode="area"),
    "affine_grid": lambda x: F.affine_grid(torch.eye(2, 3)[None], list(x.shape), align_corners=False),
}
OF_AN_INT: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "power of two": lambda x, n: x * 2**n,
    "and": lambda x, n: x * (n & 6),
    "low bits": lambda x, n: x * (n & 3),
    "or": lambda x, n: x * (n | 1),
    "xor": lambda x, n: x * (n ^ 5),
    "shift left": lambda x, n: x * (n << 2),
    "invert": lambda x, n: x * ~n,
    "gcd": lambda x, n: x * math.gcd(n, 6),
    "float quotient": lambda x, n: x * (n // 2.0) + n % 2.5,
    "roll": lambda x, n: x.roll(n, 0) + x.roll((n, -n), (0, 1)),
    "diagonal": lambda x, n: torch.arange(1600.0).view(40, 40).diagonal(n) + 1,
    "diagonal below": lambda x, n: torch.arange(1600.0).view(40, 40).diagonal(-n) + 1,
    "one_hot": lambda x, n: F.one_hot(torch.arange(4), n),
    "list as an index": lambda x, n: torch.arange(100.0)[[n, n - 1]] + torch.arange(1600.0).view(40, 40)[[1, -n], n],
    "list of lists as an index": lambda x, n: torch.arange(1600.0).view(40, 40)[:, [[n, 1], [0, -n]]] * 2,
    "list in an index to write to": lambda x, n: torch.zeros(40).index_put_((torch.tensor([n, 0]),), torch.ones(2)) + _written(n),
    "digits": lambda x, n: torch.round(x, decimals=n - 5) + x.round(decimals=2) + round(2 / 3, n // 2),
    "round in place": lambda x, n: (x * 2).round_(decimals=n - 5),
    "polygamma": lambda x, n: torch.polygamma(n, x.double().abs() + 20) * 2,
}
OF_A_FLOAT: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "comparison": lambda x, p: x * 2 if p > 0.05 else x,
    "layer_norm": lambda x, p: F.layer_norm(x, (8,), eps=p),
    "rms_norm": lambda x, p: F.rms_norm(x, (8,), eps=p),
    "group_norm": lambda x, p: F.group_norm(x, 2, eps=p),
    "batch_norm": lambda x, p: batch_norm(x, p),
    "dropout that drops nothing": lambda x, p: F.dropout(x, p, training=False) + 1,
    "attention": lambda x, p: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=p),
    "smooth_l1_loss": lambda x, p: F.smooth_l1_loss(x, x * 2, beta=p),
    "huber_loss": lambda x, p: F.huber_loss(x, x * 2, delta=p, reduction="sum"),
    "cosine_similarity": lambda x, p: F.cosine_similarity(x, x + 1, eps=p),
    "quantile": lambda x, p: torch.quantile(x, p),
    "lerp": lambda x, p: x.lerp(x * 2, p),
    "larger one": lambda x, p: x * max(p, 0.3),
    "int of it": lambda x, p: x * int(p * 10),
    "distances": lambda x, p: F.pairwise_distance(x, x * 2, eps=p).sum() + x,
    "digits": lambda x, p: x * round(p, 1) + p if round(p, 2) > 0.1 else x,
    "interpolation": lambda x, p: F.interpolate(x[None], scale_factor=p + 2),
    "bilinear interpolation": lambda x, p: F.interpolate(x[None, None], scale_factor=(p + 1, 2.0), mode="bilinear"),
    "logspace": lambda x, p: torch.logspace(0, 1, 8, base=p + 2) * x,
    "bias correction": lambda x, p: x - p / math.sqrt(1 - p**2) * x,
}


def _written(n: int) -> torch.Tensor:
    made = torch.zeros(40)
    made[[n, 0]] = 2.0
    return made


def batch_norm(x: torch.Tensor, p: float) -> tuple[torch.Tensor, ...]:
    mean, var = torch.zeros(8), torch.ones(8)
    return F.batch_norm(x, mean, var, training=True, momentum=p, eps=p), mean, var


def images() -> list[tuple[Any, ...]]:
    return [(torch.randn(1, 2, n, n + 1),) for n in SIZES]


CASES = {
    **{f"size: {name}": (fn, [(torch.randn(n),) for n in SIZES]) for name, fn in OF_A_SIZE.items()},
    **{f"image: {name}": (fn, images()) for name, fn in OF_AN_IMAGE.items()},
    **{f"int: {name}": (fn, [(X, n) for n in SIZES]) for name, fn in OF_AN_INT.items()},
    **{f"float: {name}": (fn, [(X, p) for p in FLOATS]) for name, fn in OF_A_FLOAT.items()},
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", CASES)
def test_two_compilations_serve_all_numbers(name: str, backend: str) -> None:
    program, calls = CASES[name]
    run = fxloom.compile(program, backend=backend, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(run(*args), program(*args))
    stats = fxloom.stats()
    assert stats.compiles <= 2, stats.recompile_reasons


INSISTING: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "windows": (lambda x, n: F.avg_pool1d(x.repeat(1, 5), n).sum() + x, [(X, n) for n in SIZES]),
    "bins": (lambda x, n: torch.histc(x * 2, bins=n) + 1, [(X, n) for n in SIZES]),
}


@pytest.mark.parametrize("name", INSISTING)
def test_what_insists_on_a_number_is_left_to_python_after_one_compilation(name: str) -> None:
    program, calls = INSISTING[name]
    run = fxloom.compile(program, backend="eager")
    counts = []
    for args in calls + calls:
        torch.testing.assert_close(run(*args), program(*args))
        counts.append(fxloom.stats().compiles)
    assert {report.key for report in fxloom.stats().break_reasons} == {"specialized"}
    assert counts[5] == counts[-1] <= 6, counts


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_python_raises_for_some_numbers_is_raised_for_these_only(backend: str) -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        try:
            return x * math.log(n - 5) / (n - 9)
        except (ValueError, ZeroDivisionError):
            return x - 1

    run = fxloom.compile(program, backend=backend)
    for n in (7, 11, 5, 9, 12, 4, 13, 5, 9):
        torch.testing.assert_close(run(X, n), program(X, n))


def test_float_guards_know_nan_and_infinity() -> None:
    def program(x: torch.Tensor, p: float) -> torch.Tensor:
        if p < 1.0:
            return x + 1
        return x + 2 if p >= 1.0 else x + 3

    run = fxloom.compile(program, backend="eager", dynamic=True)
    for p in (0.5, 2.0, float("nan"), float("inf"), -float("inf"), 0.7, float("nan"), 1.0):
        torch.testing.assert_close(run(X, p), program(X, p))
    assert fxloom.stats().compiles == 3


def test_large_powers_are_pythons() -> None:
    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        return x + n, 3**n

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fxloom.compile(program, backend="eager")
        for n in (2, 5, 9, 60, 39, 41, 70):
            expected, got = program(X, n), run(X, n)
            assert got[1] == expected[1] and torch.equal(got[0], expected[0])


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(20))

    def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers[index](x) + 1


def test_an_index_of_layers_is_not_compiled_for_for_ever() -> None:
    """Which layer runs is decided by Python: code for each, up to the limit, whose warning names the index; then eager."""
    model = Layers()
    run = fxloom.compile(model, backend="eager")
    counts = []
    with pytest.warns(RuntimeWarning) as warned:
        for _ in range(5):
            for index in range(20):
                torch.testing.assert_close(run(X, index), model(X, index))
            counts.append(fxloom.stats().compiles)
    assert counts[-1] == counts[-2] <= 60, counts
    assert "L['args'][1]" in str(warned[0].message) and "recompile_limit" in str(warned[0].message)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_strides_of_combinations(size: int) -> None:
    x = torch.rand(size)
    expected, got = torch.combinations(x), fxloom.compile(lambda x: torch.combinations(x), backend="eager", fullgraph=True)(x)
    assert torch.equal(got, expected) and got.stride() == expected.stride()


def kept(x: torch.Tensor, s: slice) -> Any:
    y = x[s] + (s.stop - s.start)
    fxloom.graph_break()
    return y * 2, x[s] + 1, s, repr(s), s == slice(5, 11)


SLICED: dict[str, tuple[Callable[..., Any], int]] = {
    "tensor": (lambda x, s: x[s] * 2, 2),
    "one of several": (lambda x, s: x.view(5, 20)[:3, s] * 2, 2),
    "its ends": (lambda x, s: x[s.start : s.stop + 1] * (s.stop - s.start), 2),
    "set": (lambda x, s: (made := x.clone(), made.__setitem__(s, 1.0), made)[2], 2),
    "returned": (lambda x, s: (x[s] * 2, s), 2),
}


@pytest.mark.parametrize("name", SLICED)
def test_the_ends_of_a_slice_are_numbers_that_may_change(name: str) -> None:
    program, most = SLICED[name]
    run = fxloom.compile(program, backend="eager", fullgraph=True)
    x = torch.arange(100.0)
    for n in SIZES[:4]:
        given = slice(n // 2, n)
        expected, got = program(x, given), run(x, given)
        if name == "returned":
            assert got[1] is given
            expected, got = expected[0], got[0]
        torch.testing.assert_close(got, expected)
    assert fxloom.stats().compiles == most
    if name == "tensor":
        assert torch.equal(run(x, slice(None, 3, 2)), x[:3:2] * 2)


def test_slices_over_a_break_and_in_texts() -> None:
    run = fxloom.compile(kept, backend="eager")
    x = torch.arange(100.0)
    for n in SIZES:
        given = slice(n, 2 * n + 1)
        expected, got = kept(x, given), run(x, given)
        assert got[2] is given and got[3:] == expected[3:]
        torch.testing.assert_close(got[:2], expected[:2])


@pytest.mark.parametrize("kind", ["int64", "float32", "range"])
def test_what_stays_a_constant_is_named_with_what_to_pass_instead(kind: str) -> None:
    import numpy

    # NumPy's numbers may change beside tensors, but what NumPy makes of them is compiled for
    run = fxloom.compile(lambda x, n: x * (n + 1) if kind != "range" else x * n.start, backend="eager")
    with pytest.warns(RuntimeWarning, match="its ends" if kind == "range" else rf"int\(...\) or float\(...\) of it.* a {kind}"):
        for n in range(2, 14):
            given = range(n) if kind == "range" else getattr(numpy, kind)(n)
            run(X, given)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_padding_by_nothing_keeps_strides(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = F.pad(x, (0, 0, (-x.shape[0]) % 4, 0))
        return y, y.is_contiguous(), y.stride()

    compiled = fxloom.compile(f, backend=backend, fullgraph=True)
    for size in (6, 8, 5, 4, 12, 7):
        for x in (torch.rand(9, size).t(), torch.rand(size, 9)):
            got, expected = compiled(x), f(x)
            torch.testing.assert_close(got[0], expected[0])
            assert got[1:] == expected[1:] and got[0].stride() == expected[0].stride()


RANGES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "a size less": lambda x, s: torch.arange(x.shape[0] - 1.0),
    "half a size": lambda x, s: torch.arange(x.shape[0] / 2),
    "from 0 to a float": lambda x, s: torch.arange(0, float(x.shape[0])).mean(),
    "from a float": lambda x, s: torch.arange(x.shape[0] * 0.5, x.shape[0] * 1.5),
    "with a step": lambda x, s: torch.arange(0, x.shape[0] * 1.0, 0.5),
    "a float": lambda x, s: torch.arange(s * 10),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_to_floats_are_of_floats(name: str, dynamic: bool | None, backend: str) -> None:
    compiled = fxloom.compile(RANGES[name], backend=backend, dynamic=dynamic)
    for size, s in zip(SIZES, FLOATS, strict=True):
        torch.testing.assert_close(compiled(torch.ones(size), s), RANGES[name](torch.ones(size), s))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("part", [lambda y: y.chunk(2, 1)[1], lambda y: y.split(y.shape[1] // 2, 1)[1], lambda y: y.t().chunk(3)[1].t()])
def test_writes_into_a_part_of_a_dynamic_dimension(part: Callable[[torch.Tensor], torch.Tensor], dynamic: bool | None, backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        part(y).mul_(2)
        return y

    compiled = fxloom.compile(f, backend=backend, dynamic=dynamic)
    for size in (6, 8, 10, 14):
        x = torch.rand(3, size)
        torch.testing.assert_close(compiled(x), f(x))
