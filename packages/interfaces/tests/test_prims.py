"""The register of prims and the verifier of their dialect."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.fx

from fxloom_interfaces.dialects.prims_dialect import verify
from fxloom_interfaces.errors import IRError, VerificationError
from fxloom_interfaces.meta import set_fake
from fxloom_interfaces.prim_calls import CALLS, call_reason
from fxloom_interfaces.prims import LIMIT, PRIMS, Meta, documentation, p, recording

TWO_OPERANDS = {"zeta", "igamma", "igammac", *(name for name in PRIMS if "polynomial" in name)}


def samples(name: str) -> tuple[Any, ...]:
    x, y = torch.rand(3, 4) * 0.5 + 1.2, torch.rand(3, 4) + 1
    i, b = torch.arange(12).view(3, 4) + 1, torch.rand(3, 4) > 0.5
    special: dict[str, tuple[Any, ...]] = {
        "where": (b, x, y), "fma": (x, y, x),
        "convert": (x, torch.int64), "copy": (x,), "any": (b, (0,)), "all": (b, (0, 1)),
        "argmax": (x, 1), "argmin": (x, 0), "var_mean": (x, (1,), 1.0), "sort": (x, 1, False, True),
        "broadcast_in_dim": (x, (2, 3, 5, 4), (1, 3)), "reshape": (x, (2, 6)), "permute": (x, (1, 0)),
        "slice": (x, (0, 1), (3, 4), (2, 1)), "cat": ([x, y], 1), "pad": (x, 0.5, (1, 0), (0, 2)), "flip": (x, (0,)),
        "full": ((2, 3), 1.5, torch.float32, "cpu"), "iota": (5, 2, 3, torch.int64, "cpu"), "uniform": ((2,), torch.float32, "cpu"),
        "normal": ((2,), torch.float64, "cpu"), "gather": (x, 1, i % 4), "index_select": (x, torch.tensor([2, 0]), 0),
        "scatter": (x, 0, i % 3, y), "scatter_add": (x, 0, i % 3, y), "mm": (x, y.t().contiguous()),
        "bmm": (x[None], y.t().contiguous()[None]),
        "transposed_convolution": (torch.rand(2, 6, 3), torch.rand(6, 2, 3), (2,), (1,), (1,), (1,), 2),
        "gather_nd": (x, [i % 3, -(i % 4) - 1]), "scatter_nd": (x, [i % 3], torch.rand(3, 4, 4)),
        "scatter_nd_add": (x, [i % 3, i % 4], y), "searchsorted": (torch.arange(5.0), x, True), "to_device": (x, "cpu"),
        "bitcast": (x, torch.int16), "randint": ((2,), 0, 5, torch.int32, "cpu"), "frexp": (x,), "gcd": (i, i % 3),
        "scatter_prod": (x, 0, i % 3, y), "scatter_amax": (x, 0, i % 3, y), "scatter_amin": (x, 0, i % 3, y),
        "convolution": (torch.rand(2, 4, 6), torch.rand(6, 2, 3), (2,), (1,), (1,), 2),
    }  # fmt: skip
    if name in special:
        return special[name]
    family = PRIMS[name].family
    if family == "reductions":
        return x, (1,)
    if family == "scans":
        return x, 1
    if name in ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"):
        return (i,) if name == "bitwise_not" else (i, i % 3)
    if name in ("asin", "acos", "atanh", "erfinv", "ndtri"):
        return (x - 1,)
    if name == "bitwise_not":
        return (i,)
    return (x, y) if name in TWO_OPERANDS or "two" in family else (x,)


def meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), value.dtype)
    return tuple(meta(item) for item in value) if isinstance(value, tuple) else value


def operand(value: Any) -> Any:
    if isinstance(value, list):
        return [meta(item) for item in value]
    return meta(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", list(PRIMS))
def test_rule_says_what_the_reference_gives_and_nothing_aliases(name: str) -> None:
    args = samples(name)
    prim = PRIMS[name]
    result = prim(*args)
    assert prim.infer(*[operand(value) for value in args]) == meta(result)
    inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
    results = result if isinstance(result, tuple) else (result,)
    assert not inputs & {r.untyped_storage().data_ptr() for r in results}


def test_the_list_is_closed_and_documented() -> None:
    assert 80 <= len(PRIMS) <= LIMIT
    text = documentation()
    assert all(f"| `{name}` |" in text for name in PRIMS)


def test_a_recorder_takes_calls_in_the_place_of_references() -> None:
    class Names:
        def record(self, prim: Any, args: Any, kwargs: Any) -> Any:
            return prim.name, args, kwargs

    with recording(Names()):
        assert p.add(1, 2) == ("add", (1, 2), {})
        with pytest.raises(ZeroDivisionError):
            p.exp(1 / 0)
    assert p.add(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]


def test_calls_are_listed_with_reasons() -> None:
    aten = torch.ops.aten
    assert "Fourier" in str(call_reason(aten._fft_r2c.default, ()))
    assert call_reason(aten.add.Tensor, (torch.ones(2),)) is None
    assert "complex" in str(call_reason(aten.add.Tensor, (torch.ones(2, dtype=torch.complex64),)))
    missing = [name for name in CALLS if not name.startswith("fxloom.") and not hasattr(aten, name.removeprefix("aten."))]
    assert not missing


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("add", (Meta((3, 4), torch.float32), Meta((4,), torch.float32)), "don't broadcast"),
        ("add", (Meta((3,), torch.float32), Meta((3,), torch.float64)), "don't promote"),
        ("exp", (Meta((3,), torch.int64),), "not defined"),
        ("sum", (Meta((3, 4), torch.float32), (0, 0)), "twice"),
        ("reshape", (Meta((3, 4), torch.float32), (5,)), "reshape"),
    ],
)
def test_broken_rules_are_named(name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(IRError, match=message):
        PRIMS[name].infer(*args)


def graph(target: Any, *values: torch.Tensor, result: torch.Tensor) -> torch.fx.GraphModule:
    made = torch.fx.Graph()
    inputs = [made.placeholder(f"x{number}") for number in range(len(values))]
    for node, value in zip(inputs, values):
        set_fake(node, value)
    call = made.call_function(target, tuple(inputs))
    set_fake(call, result)
    made.output((call,))
    return torch.fx.GraphModule(torch.nn.Module(), made)


def test_graphs_are_pickled_and_traced_again() -> None:
    x = torch.rand(3, 4)
    gm = graph(PRIMS["add"], x, x, result=x)
    for again in (pickle.loads(pickle.dumps(gm)), copy.deepcopy(gm), torch.fx.symbolic_trace(gm)):
        assert [node.target for node in again.graph.nodes if node.op == "call_function"] == [PRIMS["add"]]
        assert torch.equal(again.forward(x, x)[0], x + x)
    assert pickle.loads(pickle.dumps(PRIMS["add"])) is PRIMS["add"]


def test_verifier_accepts_prims_and_refuses_the_rest() -> None:
    x, y = torch.zeros(3, 4), torch.zeros(4)
    verify(graph(PRIMS["add"], x, x, result=x))
    with pytest.raises(VerificationError, match="rule operands"):
        verify(graph(PRIMS["add"], x, y, result=x))
    with pytest.raises(VerificationError, match="rule result"):
        verify(graph(PRIMS["exp"], x, result=y))
    with pytest.raises(VerificationError, match="rule known-target"):
        verify(graph(torch.ops.aten.add.Tensor, x, x, result=x))
