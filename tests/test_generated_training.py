"""Programs drawn at random: views, in-place operators, dropout, detach, no_grad, graph breaks. Everything as in eager.

Compared are the results (values, strides, what aliases what and which is an input), gradients of the inputs, what the program
did to its inputs, and the state of the random number generator after forward and after backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fxloom

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
Values = list[torch.Tensor]


def _drop(t: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(t, 0.4)


#: new values from one
PURE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin, "tanh": torch.tanh, "twice": lambda t: t * 2, "exp": lambda t: t.clamp(-1, 1).exp(), "relu": torch.relu,
    "softmax": lambda t: t.softmax(-1), "clone": torch.clone, "dropout": _drop, "detach": torch.detach, "noise": lambda t: t + torch.rand_like(t),
    "cumsum": lambda t: t.cumsum(0), "normalize": lambda t: torch.nn.functional.layer_norm(t, t.shape[-1:]), "contiguous": lambda t: t.contiguous(),
}  # fmt: skip
#: views of the same number of elements or fewer; all keep two dims
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda t: t.t(), "rows": lambda t: t[: max(1, t.shape[0] // 2)], "columns": lambda t: t[:, ::2], "reshape": lambda t: t.reshape(-1, t.shape[0]),
    "narrow": lambda t: t.narrow(1, t.shape[1] // 2, 1), "select": lambda t: t[0].unsqueeze(0), "flip view": lambda t: t.transpose(0, 1), "chunk": lambda t: t.chunk(2, 0)[-1],
    "diagonal": lambda t: t.diagonal().unsqueeze(0), "expand": lambda t: t[:, :1].expand(-1, 3), "split": lambda t: t.split(1, 0)[0],
}  # fmt: skip
#: writes
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda t: t.mul_(1.5), "add_": lambda t: t.add_(0.25), "zero_": lambda t: t.zero_(), "sin_": lambda t: t.sin_(), "fill": lambda t: t.fill_(0.5),
    "masked": lambda t: t.masked_fill_(t > 0.5, 0.1), "item": lambda t: t.__setitem__(0, t[-1] * 2), "column": lambda t: t[:, 0].add_(1), "dropout_": lambda t: torch.nn.functional.dropout(t, 0.3, inplace=True),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """kind: pure, view, write, add, copy, no_grad or break. name: of the operator. at, other: which values."""

    kind: str
    name: str
    at: int
    other: int

    def run(self, values: Values) -> None:
        value = values[self.at % len(values)]
        match self.kind:
            case "pure":
                values.append(PURE[self.name](value))
            case "view":
                values.append(VIEWS[self.name](value))
            case "write":
                WRITES[self.name](value)
            case "no_grad":
                with torch.no_grad():
                    values.append(PURE[self.name](value))
            case "add":
                other = values[self.other % len(values)]
                values.append(value.sum(0, keepdim=True) + other.mean())
            case "copy":
                other = values[self.other % len(values)]
                value.copy_(other.mean().expand(value.shape))
            case "break":
                fxloom.graph_break()


def steps() -> st.SearchStrategy[list[Step]]:
    one = st.one_of(
        st.builds(Step, st.just("pure"), st.sampled_from(sorted(PURE)), st.integers(0, 7), st.just(0)),
        st.builds(Step, st.just("view"), st.sampled_from(sorted(VIEWS)), st.integers(0, 7), st.just(0)),
        st.builds(Step, st.just("write"), st.sampled_from(sorted(WRITES)), st.integers(0, 7), st.just(0)),
        st.builds(Step, st.just("no_grad"), st.sampled_from(["sin", "twice", "dropout"]), st.integers(0, 7), st.just(0)),
        st.builds(Step, st.sampled_from(["add", "copy"]), st.just(""), st.integers(0, 7), st.integers(0, 7)),
        st.builds(Step, st.just("break"), st.just(""), st.just(0), st.just(0)),
    )
    return st.lists(one, min_size=1, max_size=8)


def program(drawn: list[Step], shown: list[int]) -> Callable[..., Values]:
    def run(x: torch.Tensor, y: torch.Tensor) -> Values:
        values = [x * 1, y]
        for step in drawn:
            step.run(values)
        return [values[number % len(values)] for number in shown]

    return run


def outcome(run: Callable[..., Values], grads: tuple[bool, bool]) -> Any:
    """All that a caller can see; an exception by its kind."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(grads[0])
    leaf = torch.linspace(0, 2, 12).reshape(4, 3).requires_grad_(grads[1])
    y = leaf * 1 if grads[1] else leaf
    torch.manual_seed(5)
    try:
        results = run(x, y)
        state = torch.get_rng_state()
        inputs = {id(x): "x", id(y): "y"}
        about = [(r.stride(), r.storage_offset(), r.requires_grad, r.dtype, inputs.get(id(r))) for r in results]
        storages = [r.untyped_storage().data_ptr() for r in [x, y, *results]]
        aliases = [storages.index(pointer) for pointer in storages]
        same = [[a is b for b in results] for a in results]
        values = [r.detach().clone() for r in results]
        total = sum((r.square().sum() for r in results if r.requires_grad), torch.zeros(()))
        if total.requires_grad:
            total.backward()
        after = torch.get_rng_state()
        with torch.no_grad():  # an alias that is true shows what is written through another
            results[0].mul_(2) if not any(s == 0 and n > 1 for s, n in zip(results[0].stride(), results[0].shape, strict=True)) else None
        later = [r.detach().clone() for r in [x, y, *results]]
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)[:40], None
    return None, (about, aliases, same), [values, x.grad, leaf.grad, y.detach(), state, after, later]


def check(drawn: list[Step], shown: list[int], grads: tuple[bool, bool], backend: str) -> None:
    fxloom.reset()
    run = program(drawn, shown)
    options = {"eager_numbers": True} if backend == "inductor" else None
    expected = outcome(run, grads)
    mine = outcome(fxloom.compile(run, backend=backend, options=options), grads)
    assert mine[:2] == expected[:2]
    torch.testing.assert_close(mine[2], expected[2], equal_nan=True)


ARGUMENTS = {
    "drawn": steps(),
    "shown": st.lists(st.integers(0, 9), min_size=1, max_size=3),
    "grads": st.tuples(st.booleans(), st.booleans()),
}
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=CHECKS)
@given(**ARGUMENTS)
def test_through_aot(drawn: list[Step], shown: list[int], grads: tuple[bool, bool]) -> None:
    check(drawn, shown, grads, "aot_eager")


@settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=CHECKS)
@given(**ARGUMENTS)
def test_through_inductor(drawn: list[Step], shown: list[int], grads: tuple[bool, bool]) -> None:
    check(drawn, shown, grads, "inductor")


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, database=None, suppress_health_check=CHECKS)
@given(**ARGUMENTS)
def test_many_through_aot(drawn: list[Step], shown: list[int], grads: tuple[bool, bool]) -> None:
    check(drawn, shown, grads, "aot_eager")
