"""Many small programs in which sizes are numbers: one compilation serves them all, two where the first is static; results are eager's."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

SIZES = (4, 6, 9, 12, 5)

OF_NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "dictval": lambda x: x * {"n": x.shape[0]}["n"],
    "intuple": lambda x: x + 1 if x.shape[0] in (100, 200) else x - 1,
    "cmp_chain": lambda x: x + 1 if 2 < x.shape[0] < 100 else x - 1,
    "cmp2": lambda x: x + 1 if x.shape[0] < x.shape[1] else x - 1,
    "cmp_shape": lambda x: x + 1 if x.shape == (x * 2).shape else x - 1,
    "cmp_shape_tuple": lambda x: x + 1 if x.shape == (3, 3) else x - 1,
    "cmp_none": lambda x: x + 1 if x.shape[0] is not None else x,
    "isinstance_int": lambda x: x + isinstance(x.shape[0], int),
    "type_is": lambda x: x + (type(x.shape[0]) is int),
    "len": lambda x: x * len(x),
    "len_shape": lambda x: x * len(x.shape),
    "dim_ndim": lambda x: x * x.dim() * x.ndim,
    "numel": lambda x: x * x.numel() + x.nelement(),
    "size_neg": lambda x: x * x.size(-1) + x.shape[-2],
    "sorted": lambda x: x * sorted([x.shape[1], x.shape[0]])[0],
    "minmax": lambda x: x * min(x.shape) * max(x.shape) + min(x.shape[0], 7),
    "sum": lambda x: x * sum(x.shape),
    "abs_neg": lambda x: x * abs(-x.shape[0]),
    "divmod": lambda x: x * divmod(x.shape[0], 3)[1],
    "pow": lambda x: x * x.shape[0] ** 2,
    "pow_half": lambda x: x / x.shape[1] ** 0.5,
    "truediv": lambda x: x * (x.shape[0] / x.shape[1]),
    "bool": lambda x: x + 1 if x.shape[0] else x,
    "bool_f": lambda x: x + bool(x.shape[0]),
    "not": lambda x: x + 1 if not x.shape[0] else x - 1,
    "and": lambda x: x + (x.shape[0] and x.shape[1]),
    "or": lambda x: x + (x.shape[0] or 5),
    "float": lambda x: x * float(x.shape[0]),
    "int": lambda x: x * int(x.shape[0]),
    "int_float": lambda x: x * int(float(x.shape[0]) * 0.5),
    "sqrt": lambda x: x * math.sqrt(x.shape[0]),
    "log": lambda x: x * math.log(x.shape[0]) + math.log2(x.shape[1]),
    "isqrt": lambda x: x * math.isqrt(x.shape[0]),
    "round": lambda x: x * round(x.shape[0] / 3),
    "round_nd": lambda x: x * round(x.shape[0] / 3, 2),
    "trunc": lambda x: x * math.trunc(x.shape[0] / 3),
    "gcd": lambda x: x * math.gcd(x.shape[0], 12),
    "prod": lambda x: x * math.prod(x.shape),
    "bit": lambda x: x * (x.shape[0] & 3) + (x.shape[0] | 1) + (x.shape[0] << 1) + (x.shape[0] >> 1) + ~x.shape[0] + (x.shape[0] ^ 5),
    "bitlen": lambda x: x * x.shape[0].bit_length(),
    "opindex": lambda x: x * operator.index(x.shape[0]) * operator.mul(x.shape[0], 2),
    "accum": lambda x: x * list(itertools.accumulate(x.shape))[-1],
    "zip": lambda x: x * sum((a * b for a, b in zip(x.shape, x.stride()))),
    "map": lambda x: x * sum(map(lambda s: s + 1, x.shape)),
    "filter": lambda x: x * len(list(filter(lambda s: s > 1, x.shape))),
    "any_all": lambda x: x + any(s == 1 for s in x.shape) + all(s > 1 for s in x.shape),
    "dictcomp": lambda x: x * sum({i: s for i, s in enumerate(x.shape)}.values()),
    "unflatten": lambda x: x.unflatten(1, (1, x.shape[1])),
    "repeat": lambda x: x.repeat(2, x.shape[0]),
    "tile": lambda x: x.tile(x.shape[0]),
    "ri": lambda x: x.repeat_interleave(x.shape[0], 0),
    "unfold": lambda x: x.unfold(1, 3, 2) * 1,
    "as_strided": lambda x: x.as_strided((x.shape[0], 2), (x.shape[1], 1)) * 1,
    "split": lambda x: x.split([2, x.shape[0] - 2])[1] * 1,
    "tsplit": lambda x: x.tensor_split(2)[1] * 1,
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 2) * 1,
    "select": lambda x: x.select(0, x.shape[0] - 1) * 1,
    "slice_set": lambda x: (lambda y: (y.__setitem__((slice(0, y.shape[0] // 2),), 0.0), y)[1])(x.clone()),
    "roll": lambda x: x.roll(x.shape[0] // 2, 0),
    "flip": lambda x: x.flip(0) * x.shape[0],
    "mm": lambda x: x @ x.t() / x.shape[1],
    "softmax": lambda x: x.softmax(-1) * x.size(0),
    "topk": lambda x: x.topk(min(3, x.shape[1]))[0],
    "topk_s": lambda x: x.topk(x.shape[1] // 2)[0],
    "sort": lambda x: x.sort(1)[0][:, : x.shape[0]],
    "cumsum": lambda x: x.cumsum(0) / x.shape[0],
    "mean": lambda x: x.sum() / x.numel(),
    "var": lambda x: ((x - x.mean(0)) ** 2).sum(0) / (x.shape[0] - 1),
    "is_contig": lambda x: x + 1 if x.is_contiguous() else x,
    "stride": lambda x: x * x.stride(0) + x.storage_offset(),
    "nbytes": lambda x: x * x.nbytes + x.element_size(),
    "vdim": lambda x: x.sum(dim=x.dim() - 1) + x.shape[0],
    "swap": lambda x: x.swapaxes(0, 1)[: x.shape[0]] * 1,
    "clamp": lambda x: x.clamp(max=x.shape[0] / 10),
    "return_only": lambda x: (x.shape[0] * 3 + 1, x.sin()),
    "return_dict": lambda x: {"n": x.shape[0], "x": x + 1, "l": [x.shape[1]]},
    "while": lambda x: (lambda n: [(n := (n // 2)) for _ in range(3)][-1])(x.shape[0]) * x,
    "unbind": lambda x: x.t()[:3].unbind(0)[0] * 1,
    "shape_eq_list": lambda x: x + (list(x.shape) == [x.shape[0], x.shape[1]]),
    "kw": lambda x: (lambda **k: x * k["n"])(n=x.shape[0]),
    "default": lambda x: (lambda n=x.shape[0]: x * n)(),
    "closure": lambda x: (lambda n: lambda: x * n)(x.shape[0])(),
    "partial": lambda x: functools.partial(operator.mul, x.shape[0])(2) * x,
    "quantile": lambda x: x.quantile(1 / x.shape[0]),
    "ravel": lambda x: x.ravel()[: x.shape[0]] + 0,
    "unique_consecutive dims": lambda x: x.sum((0, 1)) * len(x.size()),
    "rsub": lambda x: x.shape[0] - x,
    "rdiv": lambda x: x.shape[0] / x,
    "setitem size": lambda x: (lambda y: (y.__setitem__(0, x.shape[0]), y)[1])(x.clone()),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.shape[0]),
    "isinstance numbers": lambda x: x + isinstance(x.shape[0], numbers.Integral),
    "operator itemgetter": lambda x: x * operator.itemgetter(0)(x.shape),
    "getattr shape": lambda x: x * getattr(x, "shape")[0],
    "shape.index": lambda x: x * x.shape.index(x.shape[1]),
    "max default": lambda x: x * max([s for s in x.shape], default=0),
    "max key": lambda x: x * max(x.shape, key=lambda s: -s),
    "sum start": lambda x: x * sum(x.shape, 2),
    "starred": lambda x: (lambda a, *b: x * a * b[0])(*x.shape),
    "walrus": lambda x: x * n if (n := x.shape[0]) > 1 else x,
    "inplace": lambda x: x.clone().mul_(x.shape[0]).add_(1),
    "detach": lambda x: x.detach() * x.shape[0],
}
INTO_OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "isinst_size": lambda x: x + isinstance(x.shape, torch.Size) + isinstance(x.shape, tuple),
    "range_cols": lambda x: torch.stack([x[:, i] for i in range(x.shape[1] - x.shape[0])]),
    "range_step": lambda x: sum(x[:, i : i + 2].sum() for i in range(0, 3, 1)),
    "size_none": lambda x: x.new_zeros(x.size()),
    "unpack": lambda x: (lambda a, b: x.reshape(b, a))(*x.shape),
    "star": lambda x: x.new_ones(*x.shape, 2),
    "shape_slice": lambda x: x.new_ones(x.shape[:1] + x.shape[1:]),
    "shape_list": lambda x: x.new_ones(list(x.shape)[::-1]),
    "shape_append": lambda x: x.view([x.shape[0], 1] + list(x.shape[1:])),
    "floordiv": lambda x: x[: x.shape[0] // 2],
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 2)],
    "floor": lambda x: x[: math.floor(x.shape[0] / 3)],
    "reduce": lambda x: x.view(functools.reduce(operator.mul, x.shape)),
    "listcomp": lambda x: x.new_zeros([s * 2 for s in x.shape]),
    "symint": lambda x: x * torch.sym_int(x.shape[0] / 2),
    "symfloat": lambda x: x * torch.sym_float(x.shape[0]),
    "symmax": lambda x: x * torch.sym_max(x.shape[0], 7) * torch.sym_min(x.shape[1], 8),
    "symmaxf": lambda x: x * torch.sym_max(x.shape[0], 7.5),
    "symnot": lambda x: x + 1 if torch.sym_not(x.shape[0] > 100) else x,
    "arange": lambda x: torch.arange(x.shape[0]) + torch.arange(0, x.shape[0] * 2, 2),
    "arange_neg": lambda x: torch.arange(x.shape[0], 0, -1),
    "arange_like": lambda x: torch.arange(x.shape[0] * x.shape[1]).view(x.shape) + x,
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0]) * torch.ones(x.shape[0]),
    "eye": lambda x: torch.eye(x.shape[0], x.shape[1]) + x,
    "full": lambda x: torch.full((x.shape[0],), x.shape[1]) + torch.full((2, x.shape[0]), 1.5),
    "tensor": lambda x: torch.tensor([x.shape[0], x.shape[1]]) * 2,
    "tensorf": lambda x: torch.tensor(x.shape[0], dtype=torch.float32) * x,
    "as_tensor": lambda x: torch.as_tensor([1, x.shape[0]]),
    "view": lambda x: x.view(-1).view(x.shape[1], x.shape[0]),
    "view_m1": lambda x: x.view(x.shape[0], -1, 1),
    "view_str": lambda x: x.view(1, *x.shape, 1),
    "reshape": lambda x: x.t().reshape(x.shape[0] * x.shape[1]),
    "flatten": lambda x: x[None].flatten(1) * x.shape[0],
    "expand": lambda x: x[:1].expand(x.shape[0] * 2, -1) * 1,
    "expand_as": lambda x: x[:1].expand_as(x) + x,
    "pad": lambda x: F.pad(x, (0, 16 - x.shape[1], 1, 0)),
    "padc": lambda x: F.pad(x, (0, 20 - x.shape[1]), value=x.shape[0]),
    "pad_reflect": lambda x: F.pad(x[None], (1, x.shape[0] // 2), mode="reflect"),
    "interp": lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 7)),
    "interp_s": lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "F.unfold": lambda x: F.unfold(x[None, None], 2),
    "as_strided2": lambda x: torch.as_strided(x, (x.shape[1], x.shape[0]), (1, x.shape[1])) * 1,
    "idx_neg": lambda x: x[-1] + x[x.shape[0] - 1] + x[-x.shape[0]],
    "slice_step": lambda x: x[::2, 1::3] * 1,
    "slice_neg": lambda x: x[-3:-1] * 1,
    "slice_big": lambda x: x[:100] * 1,
    "slice_half": lambda x: torch.cat([x[: x.shape[0] // 2], x[x.shape[0] // 2 :]]),
    "tri": lambda x: torch.tril(torch.ones(x.shape[0], x.shape[0]), x.shape[0] - 2) + torch.triu(torch.ones(x.shape[0], x.shape[0])),
    "mask": lambda x: x.masked_fill(torch.arange(x.shape[1]) < x.shape[0], 0.0),
    "causal": lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1) + x[:, :1],
    "cat": lambda x: torch.cat([x, x.new_zeros(3, x.shape[1])]),
    "stack": lambda x: torch.stack([x, x], 1).view(x.shape[0] * 2, -1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) * x.shape[0],
    "bmm": lambda x: torch.bmm(x[None].expand(x.shape[0], -1, -1), x.t()[None].expand(x.shape[0], -1, -1)),
    "ln": lambda x: F.layer_norm(x, x.shape[1:]),
    "ln2": lambda x: F.layer_norm(x, [x.shape[-1]]),
    "onehot": lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[1]),
    "gather": lambda x: x.gather(1, torch.arange(x.shape[0])[:, None]),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, torch.arange(x.shape[0])[:, None], x.shape[0] * 1.0),
    "index_add": lambda x: torch.zeros(x.shape[0], x.shape[1]).index_add(0, torch.arange(x.shape[0]), x),
    "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij")[0],
    "outer": lambda x: torch.outer(torch.arange(x.shape[0]), torch.arange(x.shape[1])) + x,
    "bucket": lambda x: torch.bucketize(x, torch.linspace(-1, 1, x.shape[0])),
    "diag": lambda x: torch.diag(torch.ones(x.shape[0])) + x[:, :1] + x.diagonal()[:, None],
    "trace": lambda x: x[:, : x.shape[0]].trace(),
    "conv": lambda x: F.conv1d(x[None], torch.ones(2, x.shape[0], 3)),
    "pool": lambda x: F.avg_pool1d(x[None], 2) + x.shape[0],
    "emb": lambda x: F.embedding(torch.arange(x.shape[0]) % 4, torch.ones(4, 5)),
    "empty_strided": lambda x: torch.empty_strided(x.shape, x.stride()).fill_(1) + x,
    "new": lambda x: x.new_full((x.shape[0],), x.shape[1]) + x.new_tensor([x.shape[0]]),
    "contig": lambda x: x.t().contiguous().view(-1) + x.stride(0),
    "squeeze": lambda x: x[None].squeeze() * 1,
    "unsq": lambda x: x.unsqueeze(-1).expand(-1, -1, x.shape[0]) * 1,
    "permute": lambda x: x[None].permute(2, 0, 1).reshape(x.shape[1], -1),
    "rot": lambda x: torch.rot90(x) + 0,
    "kron": lambda x: torch.kron(x, torch.ones(2, 2)),
    "pixel": lambda x: F.pixel_shuffle(x[None, None].expand(1, 4, -1, -1), 2),
    "fft": lambda x: torch.fft.rfft(x, x.shape[1]),
    "hann": lambda x: torch.hann_window(x.shape[1]) * x,
    "where": lambda x: torch.where(torch.arange(x.shape[1]) < x.shape[0], x, 0.0),
    "addc": lambda x: torch.add(x, x, alpha=x.shape[0]),
    "lerp": lambda x: torch.lerp(x, x * 2, 1 / x.shape[0]),
    "dropout": lambda x: F.dropout(x, 1 / x.shape[0], training=False),
    "ceil_div": lambda x: x.new_zeros((x.shape[0] + 7) // 8 * 8),
    "pow2": lambda x: x.new_zeros(2 ** math.ceil(math.log2(x.shape[0]))),
    "pow2b": lambda x: x.new_zeros(1 << (x.shape[0] - 1).bit_length()),
    "attn": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
    "heads": lambda x: x[..., None].expand(-1, -1, 4).reshape(x.shape[0], x.shape[1], 2, 2).transpose(1, 2).reshape(x.shape[0], 2, -1),
    "vmap": lambda x: torch.vmap(lambda r: r * r.shape[0])(x),
    "torch_size": lambda x: x.new_zeros(torch.Size([x.shape[0], 2])) + x.new_zeros(torch.Size((x.shape[0], 1))),
    "size_numel": lambda x: x * torch.Size([x.shape[0], 2]).numel(),
    "broadcast_shapes": lambda x: x.new_zeros(torch.broadcast_shapes(x.shape, (1, x.shape[1]))),
    "result_type": lambda x: x.new_zeros(x.shape[0], dtype=torch.result_type(x, x.shape[0])),
    "check_v": lambda x: (
        torch._check_value(x.shape[0] > 1, lambda: "no"),
        torch._check_index(x.shape[0] > 1),
        torch._check_type(x.shape[0] > 1),
        x + 1,
    )[-1],
    "lambda sizes": lambda x: (lambda a, b: x.reshape(b, a))(*reversed(x.shape)).shape[0] * x,
    "cumulative": lambda x: torch.cat([x[: i + 1].sum(0, keepdim=True) for i in range(3)]) * x.shape[0],
    "moe": lambda x: x.view(-1, x.shape[1])[: x.shape[0] * 2 // 3].repeat(2, 1),
    "rope": lambda x: (lambda t: torch.cat([torch.outer(t, t).cos()[:, :1] * x, x], 1))(torch.arange(x.shape[0], dtype=torch.float32)),
    "alibi": lambda x: (torch.arange(x.shape[0])[None] - torch.arange(x.shape[0])[:, None]).abs().neg() * 0.5,
    "posemb": lambda x: F.interpolate(torch.ones(1, 2, 4, 4), size=(x.shape[0], x.shape[1]), mode="bicubic"),
    "groupnorm": lambda x: F.group_norm(x[None].expand(2, -1, -1)[:, :4], 2),
    "tril_indices": lambda x: torch.tril_indices(x.shape[0], x.shape[0]),
    "cdist": lambda x: torch.cdist(x, x) / x.shape[0],
    "movedim": lambda x: x[None].movedim(0, -1).shape[0] * x,
    "view dtype": lambda x: x.view(torch.int32) + x.shape[0],
    "to": lambda x: x.to(torch.float64) * x.shape[0],
    "type promo": lambda x: torch.arange(x.shape[0]) * x.shape[0] + 1.5,
    "int tensor div": lambda x: torch.arange(x.shape[0]) // x.shape[0],
    "int / size": lambda x: torch.arange(x.shape[0]) / x.shape[0],
    "remainder": lambda x: torch.arange(20) % x.shape[0],
    "pow tensor": lambda x: 2 ** torch.arange(x.shape[0]) + (x.shape[0] ** torch.arange(3)).sum(),
    "compare tensor": lambda x: (torch.arange(20) < x.shape[0]) & (torch.arange(20) > x.shape[0] // 2),
    "eq tensor": lambda x: torch.arange(20) == x.shape[0],
    "fill": lambda x: torch.zeros(3).fill_(x.shape[0]),
    "full_like": lambda x: torch.full_like(x, x.shape[0]),
    "index_put": lambda x: x.index_put((torch.arange(x.shape[0]), torch.arange(x.shape[0])), torch.tensor(0.0)),
    "scalar_tensor": lambda x: torch.scalar_tensor(x.shape[0]) * x,
    "item of const": lambda x: x * torch.tensor(3).item() * x.shape[0],
    "tuple add": lambda x: x.new_zeros(x.shape + x.shape),
    "tuple mul": lambda x: x.new_zeros(x.shape[:1] * 2),
    "slice obj": lambda x: x[slice(1, x.shape[0] - 1)] * 1,
    "ellipsis": lambda x: x[..., : x.shape[0]] * 1,
    "neg slice": lambda x: x[:-1, 1:] * 1,
    "arange slice": lambda x: x[torch.arange(x.shape[0] - 1)] * 1,
    "list index": lambda x: x[[0, x.shape[0] - 1]] * 1,
    "ternary": lambda x: x[: 3 if x.shape[0] > 3 else 1] * 1,
}
OF_AN_INT: dict[str, Callable[[Tensor, int], Any]] = {
    "product": lambda x, n: x * n,
    "end of a slice": lambda x, n: x[:, : n // 2 + 1] * 1,
    "view": lambda x, n: torch.zeros(n * 2).view(n, 2) + x[0, 0],
    "comparison": lambda x, n: x if n > 100 else -x,
    "index": lambda x, n: x[n // 4] * 1,
    "float": lambda x, n: x * (n * 0.5),
    "returned": lambda x, n: (x + 1, n + 1),
    "exponent": lambda x, n: x**n,
    "size": lambda x, n: x.new_zeros([n, n]),
    "larger": lambda x, n: x * max(n, 5),
    "arange": lambda x, n: torch.arange(n) + x[0, 0],
    "tensor": lambda x, n: torch.tensor([n]) + x[0, 0].long(),
    "new tensor": lambda x, n: x.new_tensor([n, 1]) + x.long().new_tensor(n),
    "value of a dict": lambda x, n: x * {"a": n}["a"],
    "pieces": lambda x, n: [part * 2 for part in F.pad(x, (0, 12)).split([n, 20 - n], 1)],
}


def over_a_break(x: Tensor) -> Any:
    n, sizes, half, part = x.shape[0], [x.shape[0], {"k": x.shape[1]}], x.shape[0] // 2, x.shape[0] / 3
    y = x * 2
    fxloom.graph_break()
    return y * n + sizes[1]["k"], y[:half].view(half, -1) * part, sizes, x.shape


class Counting(nn.Module):
    """Numbers as attributes that every call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.seen, self.last = 0, 0, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.seen += x.shape[0]
        self.last = [x.shape[0], x.shape[1]]
        return x * self.steps + self.seen


class Cached(nn.Module):
    """Rows of a buffer are written and read by a position that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(64, 3))
        self.position = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows[self.position : self.position + x.shape[0]] = x[:, :3]
        self.position += x.shape[0]
        return self.rows[: self.position] * 1


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        assert type(got) is type(expected) and len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        same(list(got.values()), list(expected.values()))
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
        assert got.stride() == expected.stride()
    else:
        assert type(got) is type(expected) and got == expected


def run_all(program: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str, dynamic: bool | None) -> None:
    run = fxloom.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    for args in calls:
        same(run(*args), program(*args))
    stats = fxloom.stats()
    assert stats.compiles == (1 if dynamic else 2), stats.recompile_reasons


WAYS = [("eager", None), ("aot_eager", True), pytest.param("inductor", None, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("backend", "dynamic"), WAYS)
@pytest.mark.parametrize("name", [*OF_NUMBERS, *INTO_OPERATORS])
def test_sizes_are_numbers(name: str, backend: str, dynamic: bool | None) -> None:
    run_all({**OF_NUMBERS, **INTO_OPERATORS}[name], [(torch.randn(n, n + 3),) for n in SIZES], backend, dynamic)


@pytest.mark.parametrize(("backend", "dynamic"), WAYS)
@pytest.mark.parametrize("name", OF_AN_INT)
def test_ints_of_the_call_are_numbers(name: str, backend: str, dynamic: bool | None) -> None:
    run_all(OF_AN_INT[name], [(torch.randn(8, 8), n) for n in SIZES], backend, dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_over_a_break(dynamic: bool | None) -> None:
    run = fxloom.compile(over_a_break, backend="eager", dynamic=dynamic)
    for n in SIZES:
        x = torch.randn(n, n + 3)
        same(run(x), over_a_break(x))
    assert fxloom.stats().compiles == (2 if dynamic else 4)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("made", [Counting, Cached])
def test_attributes_that_every_call_changes(made: Callable[[], nn.Module], backend: str) -> None:
    expected, model = made(), made()
    run = fxloom.compile(model, backend=backend)
    for n in (*SIZES, *SIZES[:3]):
        x = torch.randn(n, n + 3)
        same(run(x), expected(x))
        own, other = ({k: v for k, v in vars(m).items() if isinstance(v, (int, list))} for m in (model, expected))
        assert own == other
    assert fxloom.stats().compiles <= 3, fxloom.stats().recompile_reasons


@pytest.mark.parametrize("output", [2, 3, (2, 1), (3, None)], ids=str)
def test_the_gradient_of_adaptive_pooling_is_compiled_for_no_size(output: Any) -> None:
    run = fxloom.compile(lambda x: F.adaptive_avg_pool2d(x, output), backend="inductor", dynamic=True)
    for n in (4, 6, 9, 12, 5):
        x = torch.randn(2, 3, n, n + 3, requires_grad=True)
        expected, got = F.adaptive_avg_pool2d(x, output), run(x)
        weight = torch.randn_like(expected)
        same([got, *torch.autograd.grad((got * weight).sum(), x)], [expected, *torch.autograd.grad((expected * weight).sum(), x)])
    assert fxloom.stats().compiles == 1, fxloom.stats().recompile_reasons
