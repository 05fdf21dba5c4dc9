"""Whole programs and torch's operator database by way of prims, and that every operator has a way there."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmark_modules import load

import fxloom
import fxloom_ops.recurrent  # noqa: F401  # its operators exist from here on; a program loads them with its first recurrent layer
from fxloom_aot import aot_graph
from fxloom_decomp import lower_to_prims, prims_compiler, table
from fxloom_inductor_core.lowering.load_all import rules
from fxloom_interfaces.dialects.prims_dialect import NUMBER_TARGETS
from fxloom_interfaces.prim_calls import CALLS, call_reason
from fxloom_interfaces.prims import PRIMS, Prim

# --- completeness ---------------------------------------------------------------------------------------------------------

#: numbers about layouts, which values of the dialect don't have
LAYOUTS = {"sym_stride", "sym_storage_offset", "sym_is_contiguous", "sym_numel"}


def has_a_way(op: Any) -> bool:
    return op in table("prims") or call_reason(op, ()) is not None or op in NUMBER_TARGETS


def of_namespace(namespace: str) -> list[Any]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"{namespace}::"):
            packet, _, overload = name.partition("::")[2].partition(".")
            found.append(getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default"))
    return found


def is_functional(op: Any) -> bool:
    """False for operators that write, which no aten graph holds."""
    return not any(argument.alias_info is not None and argument.alias_info.is_write for argument in op._schema.arguments)


def is_composite(op: Any) -> bool:
    """True for operators that torch itself takes apart before a graph sees them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def test_every_operator_that_inductor_lowers_has_a_way_to_prims() -> None:
    missing = [str(op) for op in rules() if isinstance(op, torch._ops.OpOverload) and is_functional(op) and not has_a_way(op)]
    assert not missing


def test_every_core_operator_has_a_way_to_prims() -> None:
    core = [op for op in of_namespace("aten") if torch.Tag.core in op.tags and is_functional(op) and not is_composite(op)]
    assert len(core) > 150
    assert not [str(op) for op in core if not has_a_way(op) and op.overloadpacket.__name__ not in LAYOUTS]


def test_every_operator_of_fxloom_has_a_way_to_prims() -> None:
    rules()
    assert not [str(op) for op in of_namespace("fxloom") if not has_a_way(op)]


def test_no_listed_call_has_a_name_that_torch_lacks() -> None:
    rules()
    for name in CALLS:
        namespace, _, packet = name.partition(".")
        assert hasattr(getattr(torch.ops, namespace), packet), name


# --- the operator database ------------------------------------------------------------------------------------------------

#: in the default suite each operator's turn comes in one of so many, by its place in the database
SAMPLED = 16


def database(dtype: torch.dtype, samples: int, every: int) -> tuple[int, list[str], collections.Counter[str]]:
    from torch.testing._internal.common_methods_invocations import op_db

    conformance = load("prims")
    conformance.unseeded()
    wrong, equal, seen = [], 0, collections.Counter[str]()
    for position, op in enumerate(op_db):
        if position % every or op.name.startswith(conformance.SKIPPED) or dtype not in op.supported_dtypes("cpu"):
            continue
        text = conformance.check(op, dtype, samples, True, seen)
        equal += text is None
        if text is not None and op.name not in conformance.KNOWN:
            wrong.append(f"{op.name}: {text}")
    return equal, wrong, seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_sample_of_the_database_is_as_eager(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal, wrong, seen = database(dtype, 2, SAMPLED if dtype is torch.float32 else 3 * SAMPLED)
    assert not wrong, "\n".join(wrong)
    assert equal >= (35 if dtype is torch.float32 else 4)
    assert seen["untraced"] < equal


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64],
    ids=str,
)
def test_the_database_is_as_eager(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal, wrong, seen = database(dtype, 5, 1)
    assert not wrong, "\n".join(wrong)
    assert equal > 300
    if dtype is torch.float32:
        used = {name.removeprefix("prims.") for name in seen if name.startswith("prims.")}
        assert len(used) > 0.9 * len(PRIMS)


# --- programs -------------------------------------------------------------------------------------------------------------


def through_prims(fn: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[torch.fx.GraphModule]]:
    """`fn` compiled by way of prims, and the graphs that were made."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(gm: torch.fx.GraphModule, signature: Any) -> Any:
        graphs.append(lower_to_prims(gm))
        return prims_compiler(gm, signature)

    def backend(gm: torch.fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        return aot_graph(gm, example_inputs, compiler=compiler)

    backend.takes_integers = True  # type: ignore[attr-defined]
    backend.writes_last = True  # type: ignore[attr-defined]
    return fxloom.compile(fn, backend=backend, fullgraph=True, **options), graphs


def calls_of(gm: torch.fx.GraphModule) -> list[str]:
    """What is called beside prims and arithmetic on numbers."""
    return [
        str(node.target)
        for node in gm.graph.nodes
        if node.op == "call_function" and not isinstance(node.target, Prim) and node.target not in NUMBER_TARGETS
    ]


def test_a_model_trains_by_way_of_prims() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.MaxPool2d(2))
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 5))
    model = torch.nn.Sequential(layer, head)
    images, labels = torch.randn(2, 3, 6, 6), torch.tensor([1, 4])

    def step(model: torch.nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        return loss, list(torch.autograd.grad(loss, list(model.parameters())))

    expected = step(model)
    compiled, graphs = through_prims(model)
    found = step(compiled)  # type: ignore[arg-type]  # called like the module
    torch.testing.assert_close(found, expected)
    assert len(graphs) == 2
    assert {name for gm in graphs for name in calls_of(gm)} <= {"aten.convolution_backward.default"}


def dynamic_programs() -> list[Callable[..., torch.Tensor]]:
    def elementwise(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + x.shape[0]) * x.mean(0)

    def shapes(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[0] // 2
        return torch.cat([x[half:], x[:half] * 2]).reshape(-1, 2).t()

    def windows(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool1d(x[None], 3, stride=2, padding=1) + torch.arange(x.shape[0])[None, :, None]

    def norms(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.layer_norm(x, x.shape[1:]), 0).tril(1)

    def products(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x[0, 0], x, x.t()) + torch.diagonal(x @ x.t())

    def places(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(x.shape[0] - 1, -1, -1)].cumsum(0).roll(1, 0)

    return [elementwise, shapes, windows, norms, products, places]


@pytest.mark.parametrize("fn", dynamic_programs(), ids=lambda fn: fn.__name__)
def test_sizes_stay_symbols(fn: Callable[..., torch.Tensor]) -> None:
    compiled, graphs = through_prims(fn, dynamic=True)
    for size in (6, 8, 10):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(graphs) == 1
    assert not calls_of(graphs[0])


def test_floats_stay_symbols() -> None:
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        y = torch.nn.functional.elu(x, s) + torch.lerp(x, x * 2, s) * (1 - s)
        return torch.addcmul(y, x, x, value=s) + torch.full((3,), s * 2) + x.clamp(min=-s)

    compiled, graphs = through_prims(fn)
    for s in (0.3, 0.7, 0.9):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, s), fn(x, s))
    assert len(graphs) == 2  # of the first number, and of any
    assert not any(calls_of(gm) for gm in graphs)


def test_sizes_that_are_in_the_data() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        chosen = x[x > 0]
        return chosen.sum() + torch.nonzero(x).to(x.dtype).mean() + torch.ones(chosen.shape[0] + 1).sum()

    compiled, graphs = through_prims(fn)
    for _ in range(2):
        x = torch.randn(20)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(graphs) == 1
    assert {name for name in calls_of(graphs[0])} <= {"aten.nonzero.default", "aten.index.Tensor", "aten._assert_scalar.default"}
