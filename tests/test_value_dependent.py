"""Sizes and numbers known only at run time: one graph, eager's results and gradients, with each backend.

`.item()`, masks, `nonzero`, `unique`, `repeat_interleave`, ragged splits; what is made of their results; facts that the
program asserts, which are checked when the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

#: what eager says of masks of that type
pytestmark = pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
M = torch.tensor([True, False] * 4)


def item_arange(x: Any) -> Any:
    n = x.sum().item()
    torch._check(n >= 0)
    torch._check(n < 100)
    return torch.arange(n) * 2 + n


def item_zeros(x: Any, y: Any) -> Any:
    n = int(x[0].item())
    torch._check(n >= 1)
    z = torch.zeros(n, 4) + 1
    return ((z @ y).relu(), z.sum(0), n * 2)


def masked(x: Any) -> Any:
    return x[x > 0] * 2 + 1


def masked_sum(x: Any) -> Any:
    return (x[x > 0] * 2).sum()


def nonz(x: Any) -> Any:
    i = torch.nonzero(x > 0)
    return (i.float() * 2, i.shape[0])


def nonz_gather(x: Any) -> Any:
    i = torch.nonzero(x > 0).squeeze(1)
    return x[i] * x[i].sin()


def uniq(x: Any) -> Any:
    u = torch.unique(x)
    return u * 2


def uniq_inv(x: Any) -> Any:
    u, i, c = torch.unique(x, return_inverse=True, return_counts=True)
    return (u.float() / c, u[i] + 1)


def rep(x: Any, r: Any) -> Any:
    return torch.repeat_interleave(x, r) * 2


def rep2(x: Any, r: Any) -> Any:
    return torch.repeat_interleave(x, r, dim=0).sin() + 1


def ragged(x: Any, s: Any) -> Any:
    return [p * 2 for p in torch.split(x, s.tolist())]


def ragged_cat(x: Any, s: Any) -> Any:
    return torch.cat([p.cumsum(0) for p in torch.split(x, s.tolist())])


def item_float(x: Any) -> Any:
    a = x.mean().item()
    return x * a + 1


def item_index(x: Any, i: Any) -> Any:
    return x[i.item()] * 2


def item_narrow(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n] * 2


def item_slice(x: Any, i: Any) -> Any:
    return x[: i.item()].sum(0)


def masked_select(x: Any) -> Any:
    return torch.masked_select(x, x > 0) + 1


def where1(x: Any) -> Any:
    (i,) = torch.where(x > 0)
    return x[i] + 1


def two(x: Any) -> Any:
    a = x[x > 0]
    b = x[x <= 0]
    return torch.cat([a, b]) * 2


def softmax_masked(x: Any, m: Any) -> Any:
    return torch.softmax(x[m], -1)


def linear_masked(x: Any, m: Any, w: Any) -> Any:
    return F.linear(x[m], w).relu()


def layernorm_masked(x: Any, m: Any) -> Any:
    return F.layer_norm(x[m], (4,))


def scatter_back(x: Any, m: Any) -> Any:
    y = torch.zeros_like(x)
    y[m] = x[m] * 2
    return y


def uc(x: Any) -> Any:
    return torch.unique_consecutive(x) * 2


def bincount(x: Any) -> Any:
    return torch.bincount(x) + 1


def view_item(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n > 0)
    torch._check(x.numel() % n == 0)
    return x.reshape(n, -1) * 2


def branch(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n > 3)
    return x + 1 if n > 2 else x - 1


def experts(x: Any, g: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(3):
        idx = torch.where(g == e)[0]
        out.index_add_(0, idx, x[idx] * (e + 1))
    return out


def ud(x: Any) -> Any:
    return torch.unique(x, dim=1) * 2


def udc(x: Any) -> Any:
    return torch.unique_consecutive(x, return_inverse=True, dim=0)


def mask2(x: Any, m: Any, k: Any) -> Any:
    return x[m, :, k] * 2 + 1


def mask_mid(x: Any, k: Any) -> Any:
    return (x[:, k].sum(1), x[:, :, k[:3]])


def mask_idx(x: Any, m: Any, i: Any) -> Any:
    return x[m, i] + 1


def mask_u8(x: Any, m: Any) -> Any:
    return x[m.to(torch.uint8)] * 2


def twice(x: Any) -> Any:
    y = x[x > 0]
    return y[y < 1] * 2


def unique_len(x: Any) -> Any:
    n = torch.unique(x).shape[0]
    return (torch.zeros(n) + x.float().mean(), n)


def views(x: Any) -> Any:
    y = x[x > 0] * 2
    return (y.view(1, -1), y.unsqueeze(0), y[1:] if 0 else y)


def bmm_masked(x: Any, m: Any) -> Any:
    y = x[m]
    return (y @ y.T, (y.unsqueeze(0) @ y.T.unsqueeze(0)).softmax(-1))


def sort_masked(x: Any) -> Any:
    y = x[x > 0]
    return (torch.sort(y)[0], y.max() if 0 else y.sum(), y.cumsum(0))


def stackm(x: Any) -> Any:
    y = x[x > 0]
    return (torch.stack([y, y * 2]), torch.cat([y, x]), y.mean(), y.std() if 0 else y.var())


def conv_masked(x: Any, m: Any, w: Any) -> Any:
    return F.conv1d(x[m].unsqueeze(1), w)


def embed(x: Any, m: Any, w: Any) -> Any:
    return F.embedding(x[m], w)


def arange_mask(lens: Any, x: Any) -> Any:
    mx = int(lens.max().item())
    torch._check(mx > 0)
    torch._check(mx < 100)
    return (torch.arange(mx)[None, :] < lens[:, None]).float() * x


def pad_item(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n >= 0)
    torch._check(n < 100)
    return F.pad(x, (0, n))


def expand_item(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n >= 0)
    return x.unsqueeze(0).expand(n, -1) * 2


def new_item(x: Any, i: Any) -> Any:
    n = i.item()
    torch._check(n >= 0)
    return (x.new_zeros(n, 3) + x.sum(), torch.full((n,), n), torch.ones(n, n).triu(), torch.randn(n, 2).shape)


def ce(x: Any, m: Any, t: Any) -> Any:
    return F.cross_entropy(x[m], t[m])


def bn(x: Any, m: Any) -> Any:
    return (F.relu(x[m].mean(0)), x[m].amax(1))


def setm(x: Any, m: Any) -> Any:
    x = x.clone()
    x[m] = 0.0
    return x * 2


def masked_scatter(x: Any, m: Any) -> Any:
    return x.masked_scatter(m, x * 2)


def split_tensor(x: Any, s: Any) -> Any:
    a, b, c = torch.split(x, s.tolist(), 0)
    return (a.sum(0) + b.sum(0), c)


def draw(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


torch.manual_seed(0)
CASES: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (item_arange, [(torch.tensor([2, 3]),), (torch.tensor([5, 3]),)]),
    (item_zeros, [(torch.tensor([2, 3]), torch.randn(4, 3)), (torch.tensor([7, 3]), torch.randn(4, 3))]),
    (masked, [(torch.randn(10),), (torch.randn(10),)]),
    (masked_sum, [(torch.randn(10),), (torch.randn(10),)]),
    (nonz, [(torch.randn(10),), (torch.randn(10),)]),
    (nonz_gather, [(torch.randn(10),), (torch.randn(10),)]),
    (uniq, [(torch.randint(0, 5, (10,)),), (torch.randint(0, 9, (10,)),)]),
    (uniq_inv, [(torch.randint(0, 5, (10,)),), (torch.randint(0, 9, (10,)),)]),
    (rep, [(torch.randn(3), torch.tensor([1, 2, 3])), (torch.randn(3), torch.tensor([4, 2, 3]))]),
    (rep2, [(torch.randn(3, 4), torch.tensor([1, 2, 3])), (torch.randn(3, 4), torch.tensor([4, 2, 3]))]),
    (ragged, [(torch.randn(10, 2), torch.tensor([1, 2, 7])), (torch.randn(10, 2), torch.tensor([4, 3, 3]))]),
    (ragged_cat, [(torch.randn(10, 2), torch.tensor([1, 2, 7])), (torch.randn(10, 2), torch.tensor([4, 3, 3]))]),
    (item_float, [(torch.randn(4),), (torch.randn(4),)]),
    (item_index, [(torch.randn(4, 3), torch.tensor(2)), (torch.randn(4, 3), torch.tensor(-1))]),
    (item_narrow, [(torch.randn(4, 3), torch.tensor(2)), (torch.randn(4, 3), torch.tensor(3))]),
    (item_slice, [(torch.randn(4, 3), torch.tensor(2)), (torch.randn(4, 3), torch.tensor(-1)), (torch.randn(4, 3), torch.tensor(7))]),
    (masked_select, [(torch.randn(10),), (torch.randn(10),)]),
    (where1, [(torch.randn(10),), (torch.randn(10),)]),
    (two, [(torch.randn(10),), (torch.randn(10),)]),
    (softmax_masked, [(torch.randn(8, 4), M), (torch.randn(8, 4), ~M | M)]),
    (linear_masked, [(torch.randn(8, 4), M, torch.randn(5, 4)), (torch.randn(8, 4), ~M & M, torch.randn(5, 4))]),
    (layernorm_masked, [(torch.randn(8, 4), M), (torch.randn(8, 4), ~M | M)]),
    (scatter_back, [(torch.randn(8, 4), M), (torch.randn(8, 4), ~M | M)]),
    (uc, [(torch.randint(0, 3, (10,)),)]),
    (bincount, [(torch.randint(0, 5, (10,)),), (torch.randint(0, 9, (10,)),)]),
    (view_item, [(torch.randn(12), torch.tensor(3)), (torch.randn(12), torch.tensor(6))]),
    (branch, [(torch.randn(4), torch.tensor(5)), (torch.randn(4), torch.tensor(7))]),
    (experts, [(torch.randn(8, 4), torch.randint(0, 3, (8,))), (torch.randn(8, 4), torch.randint(0, 3, (8,)))]),
    (ud, [(torch.randint(0, 2, (4, 6)),), (torch.randint(0, 2, (4, 6)),)]),
    (udc, [(torch.randint(0, 2, (6,)),), (torch.randint(0, 2, (6,)),)]),
    (mask2, [(torch.randn(4, 5, 6), torch.tensor([True, False, True, True]), torch.tensor([1, 1, 1, 0, 0, 0]).bool())]),
    (
        mask_mid,
        [(torch.randn(4, 5, 3), torch.tensor([1, 0, 1, 1, 0]).bool()), (torch.randn(4, 5, 3), torch.tensor([1, 1, 1, 1, 0]).bool())],
    ),
    (mask_idx, [(torch.randn(4, 5), torch.tensor([1, 0, 1, 1]).bool(), torch.tensor([0, 4, 2]))]),
    (mask_u8, [(torch.randn(4, 5), torch.tensor([1, 0, 1, 1]).bool())]),
    (twice, [(torch.randn(10),), (torch.randn(10),)]),
    (unique_len, [(torch.randint(0, 5, (10,)),), (torch.randint(0, 9, (10,)),)]),
    (views, [(torch.randn(10),), (torch.randn(10),)]),
    (bmm_masked, [(torch.randn(8, 4), M), (torch.randn(8, 4), M & ~M), (torch.randn(8, 4), M | ~M)]),
    (sort_masked, [(torch.randn(10),), (torch.randn(10),)]),
    (stackm, [(torch.randn(10),), (torch.randn(10),)]),
    (conv_masked, [(torch.randn(8, 6), M, torch.randn(2, 1, 3)), (torch.randn(8, 6), M | ~M, torch.randn(2, 1, 3))]),
    (embed, [(torch.randint(0, 5, (8,)), M, torch.randn(5, 4)), (torch.randint(0, 5, (8,)), M | ~M, torch.randn(5, 4))]),
    (arange_mask, [(torch.tensor([1, 3]), torch.tensor(2.0)), (torch.tensor([1, 6]), torch.tensor(2.0))]),
    (pad_item, [(torch.randn(3, 4), torch.tensor(2)), (torch.randn(3, 4), torch.tensor(0))]),
    (expand_item, [(torch.randn(4), torch.tensor(2)), (torch.randn(4), torch.tensor(0))]),
    (new_item, [(torch.randn(4), torch.tensor(2)), (torch.randn(4), torch.tensor(5))]),
    (ce, [(torch.randn(8, 4), M, torch.randint(0, 4, (8,))), (torch.randn(8, 4), M | ~M, torch.randint(0, 4, (8,)))]),
    (bn, [(torch.randn(8, 4), M), (torch.randn(8, 4), M | ~M)]),
    (setm, [(torch.randn(8, 4), M), (torch.randn(8, 4), M | ~M)]),
    (masked_scatter, [(torch.randn(8, 4), torch.rand(8, 4) > 0.5)]),
    (split_tensor, [(torch.randn(10, 2), torch.tensor([1, 2, 7])), (torch.randn(10, 2), torch.tensor([4, 3, 3]))]),
]


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.stride() == expected.stride() or 0 in expected.shape
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    else:
        assert type(got) is type(expected) and got == expected


def one_graph() -> None:
    stats = fxloom.stats()
    assert (stats.graphs, stats.graph_breaks, stats.compiles) == (1, 0, 1), (stats.break_reasons, stats.recompile_reasons)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fn, calls", CASES, ids=[fn.__name__ for fn, _ in CASES])
def test_results_are_eagers(fn: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(fn, backend=backend, options=OPTIONS)
    for args in calls:
        same(compiled(*args), fn(*args))
    one_graph()


def leaves(args: tuple[Any, ...]) -> list[Any]:
    return [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]


#: their derivatives in torch ask for the number itself
NO_DERIVATIVE = {"sort_masked", "stackm", "ragged_cat"}
TRAINED = [(fn, calls) for fn, calls in CASES if any(a.is_floating_point() for a in calls[0]) and fn.__name__ not in NO_DERIVATIVE]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn, calls", TRAINED, ids=[fn.__name__ for fn, _ in TRAINED])
def test_gradients_are_eagers(fn: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(fn, backend=backend, options=OPTIONS)
    for args in calls:
        found = []
        for run in (fn, compiled):
            inputs = leaves(args)
            out = run(*inputs)
            parts = [t for t in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(t, torch.Tensor) and t.requires_grad]
            if parts:
                sum(part.square().sum() for part in parts).backward()
            found.append([out, [t.grad for t in inputs if t.grad is not None]])
        same(found[1], found[0])
    one_graph()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_the_program_asserts_is_checked_when_it_runs(backend: str) -> None:
    fxloom.reset()

    def fn(x: Any) -> Any:
        n = x.item()
        torch._check(n >= 2)
        return torch.ones(n) * n

    compiled = fxloom.compile(fn, backend=backend, options=OPTIONS)
    same(compiled(torch.tensor(3)), fn(torch.tensor(3)))
    with pytest.raises(RuntimeError, match=r"x\.item\(\) >= 2 does not hold .*test_value_dependent.py:\d+ in .*torch\._check"):
        compiled(torch.tensor(1))
    one_graph()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_index_is_checked_when_it_runs(backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(item_index, backend=backend, options=OPTIONS)
    x = torch.randn(4, 3)
    same(compiled(x, torch.tensor(-4)), x[-4] * 2)
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
        compiled(x, torch.tensor(4))


def test_without_being_asked_a_number_is_a_graph_break() -> None:
    fxloom.reset()
    compiled = fxloom.compile(item_float, backend="eager")
    compiled(torch.ones(3))
    assert fxloom.stats().graph_breaks


@torch.library.custom_op("fxloom_test_value_dependent::count", mutates_args=())
def _count(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@_count.register_fake
def _(x: torch.Tensor) -> Any:
    return torch.library.get_ctx().new_dynamic_size()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_custom_operator_that_counts(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(_count(x)) + 1

    options = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    compiled = fxloom.compile(fn, backend=backend, fullgraph=True, options=options)
    for x in (torch.tensor([1.0, -1.0, 2.0, 3.0]), torch.ones(5), -torch.ones(2)):
        assert torch.equal(compiled(x), fn(x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_answers_about_whole_tensors_are_numbers_of_the_graph(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[bool, bool, bool, torch.Tensor]:
        return torch.equal(x, y), torch.allclose(x, y), x.equal(y[:2]), x + y

    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(3)
    for y in (x.clone(), x + 1e-7, x + 1):
        result, expected = compiled(x, y), program(x, y)
        assert result[:3] == expected[:3] and [type(value) for value in result[:3]] == [bool] * 3
        assert torch.equal(result[3], expected[3])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_pieces_at_places_that_a_tensor_holds(backend: str) -> None:
    def program(x: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
        return [piece + 1 for piece in torch.tensor_split(x, places)] + [*x.tensor_split(places, dim=0)]

    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(7, 3)
    for places in (torch.tensor([2, 5]), torch.tensor([1, 6])):
        for result, expected in zip(compiled(x, places), program(x, places), strict=True):
            assert torch.equal(result, expected) and result.stride() == expected.stride()
