"""Programs whose sizes change at every call: results are eager's, two compilations serve all, no kernel is built again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxloom
from fxloom_interfaces import telemetry

PAIRS = [(3, 5), (4, 7), (6, 9), (2, 11), (5, 3)]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, 4).transpose(1, 2) for part in self.project(x).split(16, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous().view(b, t, c)


def masked_attention(x: torch.Tensor) -> torch.Tensor:
    scores = x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x


def ragged_chunks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.log_softmax(c @ w, -1) for c in torch.chunk(x.reshape(-1, x.shape[-1]), 6)])


class IntoWiderBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], x.shape[1] + 1, x.shape[2])
        h[:, 1:] = x
        for norm, linear in zip(self.norms, self.linears, strict=True):
            h = h + linear(norm(h))
        return h


def split_reshape_cat(x: torch.Tensor) -> torch.Tensor:
    parts = [p.reshape(x.shape[0], -1).relu() for p in torch.split(x, [2, 3, 5], dim=1)]
    return torch.cat(parts, 1) + 1


def rand(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


Program = tuple[Callable[[], Callable[..., Any]], list[tuple[Any, ...]]]
INFERENCE: dict[str, Program] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), [(rand(b, s, 8),) for b, s in PAIRS]),
    "attention": (Attention, [(rand(b, s, 16),) for b, s in PAIRS]),
    "masked_attention": (lambda: masked_attention, [(rand(b, s, 16),) for b, s in PAIRS]),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).eval(),
        [(rand(b, 3, 16 + 2 * s, 20),) for b, s in PAIRS],
    ),
    "cat": (lambda: lambda x, y: torch.cat([x, y.sin()], 1), [(rand(b, s), rand(b, s + 1)) for b, s in PAIRS]),
    "neighbours": (lambda: lambda x: x[:, 1:] - x[:, :-1], [(rand(b, s),) for b, s in PAIRS]),
    "positions": (lambda: lambda x: x + torch.arange(x.shape[1]), [(rand(b, s),) for b, s in PAIRS]),
    "pad": (lambda: lambda x: F.pad(x, (1, 2, 0, 3)), [(rand(b, s),) for b, s in PAIRS]),
    "chunk": (lambda: lambda x: x.chunk(2, 1)[0] * 2, [(rand(b, s),) for b, s in PAIRS]),
    "views": (lambda: lambda x: (x.t(), x.view(-1), x.transpose(0, 1).reshape(-1)), [(rand(b, s),) for b, s in PAIRS]),
    "numbers": (
        lambda: lambda x: (x * len(x) + x.numel(), x.shape, x.shape[0] * x.shape[1] + 1),
        [(rand(b, s),) for b, s in PAIRS],
    ),
    "integer": (lambda: lambda x, n: (x * n + n, n // 2), [(rand(3, 3), n) for n in (3, 5, 7, 9, 12)]),
    "float": (lambda: lambda x, rate: (x - rate * x.sin(), rate * 2), [(rand(3, 3), rate) for rate in (0.1, 0.2, 0.3, 0.4)]),
    "interpolate": (lambda: lambda x: F.interpolate(x, scale_factor=2.0), [(rand(2, 3, b + 4, s + 4),) for b, s in PAIRS]),
    "gather": (
        lambda: lambda x, i: x.gather(1, i),
        [(rand(b, s), torch.arange(b * 2).view(b, 2) % s) for b, s in PAIRS],
    ),
    "split_reshape_cat": (lambda: split_reshape_cat, [(rand(b, 10, s),) for b, s in PAIRS]),
}
TRAINING: dict[str, Program] = {
    "attention": INFERENCE["attention"],
    "norm": (
        lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)), [(rand(b, s, 8),) for b, s in PAIRS]
    ),
    "group_norm": (lambda: nn.GroupNorm(2, 4), [(rand(b, 4, s + 3),) for b, s in PAIRS]),
    "product": (lambda: torch.bmm, [(rand(b, s, 4), rand(b, 4, s)) for b, s in PAIRS]),
    "into_wider_buffer": (IntoWiderBuffer, [(rand(b, s, 16),) for b, s in PAIRS]),
}  # fmt: skip


def close(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    elif isinstance(expected, tuple):
        assert type(got) is type(expected)
        for one, other in zip(got, expected, strict=True):
            close(one, other)
    else:
        assert type(got) is type(expected) and got == expected


def check_counts(most: int) -> None:
    stats = fxloom.stats()
    assert stats.compiles <= most, stats.recompile_reasons
    assert not stats.break_reasons
    assert stats.compiler_runs + stats.cached_builds <= 2 * most


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", INFERENCE)
def test_inference_at_any_size(name: str, dynamic: bool | None) -> None:
    fxloom.reset()
    make, calls = INFERENCE[name]
    torch.manual_seed(0)
    program = make()
    compiled = fxloom.compile(program, dynamic=dynamic)
    with torch.no_grad():
        for args in calls:
            close(compiled(*args), program(*args))
    check_counts(1 if dynamic else 2)


@pytest.mark.parametrize("name", TRAINING)
def test_training_at_any_size(name: str) -> None:
    fxloom.reset()
    make, calls = TRAINING[name]
    torch.manual_seed(0)
    program = make()
    compiled = fxloom.compile(program)
    for args in calls:
        gradients = []
        for run in (program, compiled):
            inputs = [value.clone().requires_grad_() for value in args]
            out = run(*inputs)
            out.square().sum().backward()
            gradients.append([out.detach(), *(value.grad for value in inputs)])
        close(tuple(gradients[1]), tuple(gradients[0]))
    check_counts(2)


def test_a_ragged_last_chunk() -> None:
    fxloom.reset()
    w = rand(8, 10)
    compiled = fxloom.compile(ragged_chunks, dynamic=True)
    for n in (13, 17, 20):
        x = rand(2, n, 8)
        torch.testing.assert_close(compiled(x, w), ragged_chunks(x, w), rtol=1e-5, atol=1e-5)


def test_pieces_by_values_in_a_tensor() -> None:
    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.split(x, [i + j for i, j in zip(a.tolist(), b.tolist(), strict=True)])

    args = (torch.arange(20.0), torch.tensor([2, 5, 3]), torch.tensor([3, 4, 3]))
    assert [len(piece) for piece in fxloom.compile(fn)(*args)] == [5, 9, 6]


def test_static_sizes_are_compiled_for_each_when_asked() -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x: x * 2, dynamic=False)
    for n in (3, 4, 5):
        compiled(rand(n, 3))
    assert fxloom.stats().compiles == 3


def test_memory_of_symbolic_size_is_used_again() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x @ w).sin()
        return x

    fxloom.reset()
    programs: list[str] = []

    def listen(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.ArtifactWritten) and event.name == "ir_post_fusion.txt":
            programs.append(event.text)

    with telemetry.listen(listen, artifacts=True):
        compiled = fxloom.compile(fn, dynamic=True)
        for n in (3, 5, 9):
            torch.testing.assert_close(compiled(rand(n, 4), rand(4, 4)), fn(rand(n, 4), rand(4, 4)))
    (program,) = programs
    assert program.count(" = allocate ") == 2 and program.count(" = reuse ") == 6


def test_sizes_that_are_equal_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum() + y

    def compiles(options: dict[str, bool] | None) -> int:
        fxloom.reset()
        compiled = fxloom.compile(program, backend="aot_eager", dynamic=True, options=options)
        for first, second in ((4, 4), (5, 5), (6, 7)):
            x, y = torch.randn(first), torch.randn(second)
            assert torch.equal(compiled(x, y), program(x, y))
        return fxloom.stats().compiles

    assert compiles(None) == 2  # one graph where they are equal
    assert compiles({"duck_shapes": False}) == 1
    monkeypatch.setenv("FXLOOM_DUCK_SHAPES", "0")
    assert compiles(None) == 1
    assert compiles({"duck_shapes": True}) == 2


class ByIndex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
        self.factors = [float(n) for n in range(12)]

    def forward(self, x: torch.Tensor, index: int, rate: float) -> torch.Tensor:
        return torch.addmm(self.layers[index].bias, x, self.layers[index].weight) * self.factors[index] * rate


def test_an_index_of_layers_is_compiled_for_up_to_the_limit_then_one_warning(counters_at_zero: None) -> None:
    model = ByIndex()
    compiled = fxloom.compile(model, backend="aot_eager", options={"recompile_limit": 4})
    with pytest.warns(RuntimeWarning, match=r"of a ByIndex .* in eager from now on: it was compiled 4 times") as caught:
        compilations = []
        for _ in range(3):
            for index in range(12):
                x, rate = torch.randn(3, 4), 0.1 * index
                torch.testing.assert_close(compiled(x, index, rate), model(x, index, rate))
            compilations.append(fxloom.stats().compiles)
    assert len(caught) == 1 and fxloom.stats().graphs == 4
    assert compilations[1] == compilations[2]


def test_a_rate_is_no_reason_to_compile_again(counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x, rate: x - rate * x.sin(), backend="aot_eager")
    for step in range(12):
        x, rate = torch.randn(3), 0.5 / (step + 1)
        torch.testing.assert_close(compiled(x, rate), x - rate * x.sin())
    assert fxloom.stats().compiles == 2


def test_a_marked_dimension_serves_the_multiples(counters_at_zero: None) -> None:
    """Where the first size is by chance that of the view, that is no reason to look at it."""
    compiled = fxloom.compile(lambda x: x.view(4, -1) * 2, backend="inductor")
    for size in (4, 8, 12):
        x = torch.randn(size, 3)
        fxloom.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), x.view(4, -1) * 2)
    assert fxloom.stats().compiles == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[-7:] * 2,
        lambda x: x[:7] * 2,
        lambda x: x[2:9] * 2,
        lambda x: x[max(0, x.shape[0] - 7) :] + 1,
        lambda x: x[:, 1:] * x[:, :-1],
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_slices_past_the_end_are_for_any_size(f: Any, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(f, backend=backend, dynamic=True, fullgraph=True)
    for size in (7, 8, 6, 9, 5, 12):
        x = torch.randn(size, size + 3)
        expected = f(x)
        assert torch.equal(compiled(x), expected)
        assert compiled(x).stride() == expected.stride()
    assert fxloom.stats().compiles == 1
