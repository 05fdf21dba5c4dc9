"""Arguments that eager's kernels refuse are refused by compiled programs, with the same exception, at the program's line.

Shape rules, decompositions and lowerings don't state these checks: eager's kernels are asked (`fxloom_shapes.fake.argument_checks`), and what
depends on the values in tensors is a check in the graph.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom
from fxloom_shapes.fake import argument_checks

BACKENDS = ["aot_eager", "inductor"]
Program = Callable[[Tensor], Any]

#: x: float32 of (4, 5); the first line of each family is that of the report
REFUSED: dict[str, Program] = {
    # numbers that do not fit the dtype
    "fill_uint8": lambda x: x.byte().fill_(300),
    "fill_half": lambda x: x.half().fill_(1e10),
    "fill_nan": lambda x: x.byte().fill_(float("nan")),
    "fill_infinity": lambda x: x.long().fill_(float("inf")),
    "full_like": lambda x: torch.full_like(x.byte(), 300),
    "full_like_negative": lambda x: torch.full_like(x.byte(), -300),
    "new_full": lambda x: x.byte().new_full((2,), 300),
    "clamp": lambda x: x.byte().clamp(0, 300),
    "clamp_min": lambda x: x.byte().clamp_min(-300),
    "hardtanh": lambda x: F.hardtanh(x.to(torch.int8), -300, 300),
    "threshold": lambda x: F.threshold(x.byte(), 300, 0),
    "pad": lambda x: F.pad(x.byte(), (1, 1), value=300),
    "masked_fill": lambda x: x.byte().masked_fill(x > 0, 300),
    "index_fill": lambda x: x.byte().index_fill(0, torch.tensor([0]), 300),
    "pow": lambda x: x.byte() ** 300,
    "int8_floordiv": lambda x: x.to(torch.int8) // 256,
    "int8_remainder": lambda x: x.to(torch.int8) % 256,
    "randint": lambda x: torch.randint(0, 300, (3,), dtype=torch.uint8) + x[0, 0],
    "masked_fill_complex": lambda x: x.masked_fill(x > 0, 1j),
    "masked_fill_of_a_tensor": lambda x: x.byte().masked_fill(x < 9, (x[0, 0] * 0 + 300).long()),
    # kinds of numbers
    "alpha_of_add": lambda x: torch.add(x.byte(), x.byte(), alpha=1.5),
    "alpha_of_sub": lambda x: torch.sub(x.long(), x.long(), alpha=1.5),
    "number_minus_bools": lambda x: True - (x > 0),
    "inplace_result": lambda x: torch.arange(4).clone().mul_(1.5) + x[0, 0],
    "inplace_complex": lambda x: x.clone().add_(1j),
    "inplace_division": lambda x: x.long().div_(2),
    # dtypes of operands
    "mask_of_integers": lambda x: x.masked_fill(x.long(), 0.0),
    "lerp_end": lambda x: torch.lerp(x, x.double(), 0.5),
    "lerp_weight": lambda x: torch.lerp(x, x, x.double()),
    "heaviside": lambda x: torch.heaviside(x.byte(), x),
    "logit_of_complex": lambda x: torch.logit(x.cfloat()),
    "std_of_integers": lambda x: x.long().std(),
    "layer_norm_weight": lambda x: F.layer_norm(x, (5,), torch.ones(5).double()),
    "index_add_source": lambda x: x.index_add(0, torch.zeros(4, dtype=torch.long), x.double()),
    "bernoulli_of_integers": lambda x: torch.bernoulli(x.long()),
    # words and ranks
    "gelu": lambda x: F.gelu(x, approximate="foo"),
    "one_dimensional_fill": lambda x: x.masked_fill(x > 0, torch.ones(5)),
    # places and sizes
    "select_scatter": lambda x: torch.select_scatter(x, x[0], 0, 10),
    "select_scatter_size": lambda x: torch.select_scatter(x, x[0, :3], 0, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2], 0, 0, 3),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[0]),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0], (2, 2), (1, 2)),
    "softmax_dim": lambda x: x.softmax(3),
    "amax_of_nothing": lambda x: x[:0].amax(0),
    "argmax_of_nothing": lambda x: x[:0].argmax(0),
    "mse_loss": lambda x: F.mse_loss(x, x[:, :3]),
    "binary_cross_entropy_size": lambda x: F.binary_cross_entropy(torch.sigmoid(x), x[:, :3]),
    "cross_entropy_size": lambda x: F.cross_entropy(x.view(2, 2, 5, 1), torch.zeros(2, 4, 1, dtype=torch.long)),
    "index_add_size": lambda x: x.index_add(0, torch.zeros(4, dtype=torch.long), x.view(4, 5)[:, :3]),
    "index_add_larger": lambda x: x[:, :2].index_add(0, torch.zeros(4, dtype=torch.long), x),
    "index_reduce_size": lambda x: x.index_reduce(1, torch.zeros(5, dtype=torch.long), x[:3], "amax"),
    "written_size": lambda x: x.clone().index_put_((torch.tensor([0, 1]),), x[0, :4]),
    "written_larger": lambda x: x.clone().index_put_((torch.tensor([0, 1]),), x[:3]),
    "written_apart": lambda x: x.view(2, 2, 5).index_put((torch.tensor([0, 1]), None, torch.tensor([0, 1])), x[0, :3]),
    "written_rank": lambda x: x.index_put((torch.tensor([0, 1]),), x[None, :2]),
    "written_by_mask_size": lambda x: x.index_put((x[:, 0] > 0,), x[0, :4]),
    "mask_size": lambda x: x.clone().index_put_((x[0] > 0,), x[0, 0]),
    "mask_smaller": lambda x: x.clone().index_put_((x[:3, 0] > 0,), x[0, 0]),
    "mask_second_axis": lambda x: x.index_put((torch.tensor([0]), x[:, 0] > 0), x[0, 0]),
    # dtypes of places, and of what is written there
    "index_select_floats": lambda x: x.index_select(0, x[:, 0]),
    "index_select_int16": lambda x: x.index_select(0, torch.zeros(2, dtype=torch.int16)),
    "index_select_rank": lambda x: x.index_select(0, torch.zeros(2, 2, dtype=torch.long)),
    "written_dtype": lambda x: x.clone().index_put_((torch.tensor([0, 1]),), x[0].double()),
    "written_number_dtype": lambda x: x.index_put((torch.tensor([0, 1]),), x[0, 0].long()),
    "written_int16": lambda x: x.index_put((torch.zeros(2, dtype=torch.int16),), x[0]),
    "cross_entropy_weight": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long), x[0].double()),
    "margin_weight": lambda x: F.multi_margin_loss(x, torch.zeros(4, dtype=torch.long), weight=x[0].double()),
    "batch_norm_weight": lambda x: F.batch_norm(x, None, None, x[0].double(), training=True),
    "batch_norm_mean": lambda x: F.batch_norm(x, x[0].double(), x[0].double()),
    "group_norm_weight": lambda x: F.group_norm(x, 5, x[0].double()),
    "searchsorted_bools": lambda x: torch.searchsorted(x[0] > 5, x > 5),
    "bucketize_rank": lambda x: torch.bucketize(x, x),
    # parameters
    "smooth_l1_beta": lambda x: F.smooth_l1_loss(x, x, beta=-1.0),
    "huber_delta": lambda x: F.huber_loss(x, x, delta=-1.0),
    "dropout": lambda x: torch.native_dropout(x, 1.5, True),
    "uniform": lambda x: x.clone().uniform_(2.0, 1.0),
    "normal": lambda x: torch.normal(x, -1.0),
    "normal_": lambda x: x.clone().normal_(0.0, -1.0),
    "bernoulli_": lambda x: x.clone().bernoulli_(1.5),
    # values in tensors
    "target": lambda x: F.binary_cross_entropy(torch.sigmoid(x), x * 0 + 2),
    "probability": lambda x: F.binary_cross_entropy(x * 0 + 2, x * 0),
    "probability_nan": lambda x: F.binary_cross_entropy(x * float("nan"), x * 0),
    "deviations": lambda x: torch.normal(0.0, x * 0 - 1),
    "deviations_of_means": lambda x: torch.normal(x, x * 0 - 1),
    "bernoulli": lambda x: torch.bernoulli(x * 0 + 2),
    "bernoulli_negative": lambda x: torch.bernoulli(x * 0 - 0.5),
    "bernoulli_nan": lambda x: torch.bernoulli(x * float("nan")),
}

#: eager's kernels take these there, or end the process
NOT_REFUSED_ON_CUDA = {
    "int8_floordiv", "int8_remainder", "dropout", "target", "probability", "probability_nan", "deviations", "deviations_of_means",
    "bernoulli", "bernoulli_negative", "bernoulli_nan",
}  # fmt: skip
cpu_only = pytest.mark.cpu_only("eager's kernels on CUDA take it, or end the process")


def outcome(program: Program) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program(torch.linspace(0.1, 2, 20).view(4, 5))
    return type(found.value), str(found.value).partition(".  (Could")[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=cpu_only if n in NOT_REFUSED_ON_CUDA else ()) for n in REFUSED])
def test_what_eager_refuses(name: str, backend: str) -> None:
    compiled = fxloom.compile(REFUSED[name], backend=backend)
    (kind, text), expected = outcome(compiled), outcome(REFUSED[name])
    assert kind is expected[0]
    assert text.startswith(expected[1].splitlines()[0].rstrip("."))


def tried(x: Tensor) -> Tensor:
    try:
        return x.byte().fill_(300)
    except RuntimeError:
        return x + 1


def suppressed(x: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        return F.gelu(x, approximate="foo")
    return x + 2


def after_the_fact(x: Tensor) -> Tensor:
    try:
        return torch.bernoulli(x * 0 + 2)
    except RuntimeError:
        return x + 3


class Swallow:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return error[0] is RuntimeError


def exited(x: Tensor) -> Tensor:
    with Swallow():
        return torch.lerp(x, x.double(), 0.5)
    return x + 4


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("program", [tried, suppressed, after_the_fact, exited])
@cpu_only
def test_the_programs_handlers_see_it(program: Program, backend: str) -> None:
    x = torch.linspace(0.1, 2, 20).view(4, 5)
    compiled = fxloom.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))


def test_a_lowering_that_raises_leaves_the_call_to_eager(monkeypatch: pytest.MonkeyPatch, counters_at_zero: None) -> None:
    """Whether the program's call raises only eager can tell; that it did not is reported."""
    from fxloom_inductor_core.lowering.load_all import rules

    def raises(*args: Any) -> Any:
        raise ValueError("of a lowering")

    monkeypatch.setitem(rules(), torch.ops.aten.sin.default, raises)  # type: ignore[arg-type]  # a dict
    torch.testing.assert_close(fxloom.compile(lambda x: x.sin() + 1)(torch.ones(2)), torch.ones(2).sin() + 1)
    (broke,) = fxloom.stats().break_reasons
    assert broke.key == "operator_raises" and "of a lowering" in broke.details


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16], ids=str)
def test_numbers_that_change_stay_in_the_dtypes_range(dtype: torch.dtype, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x, number: torch.full_like(x, number), options={"recompile_limit": 8})
    x = torch.ones(4, dtype=dtype)
    fitting, outside = (range(2, 9), 300) if dtype is torch.uint8 else ([number + 0.5 for number in range(7)], 1e6)
    for number in fitting:
        torch.testing.assert_close(compiled(x, number), torch.full_like(x, number))
    before = fxloom.stats().compiles
    assert before <= 3, "one for the first number, one for any"
    with pytest.raises(RuntimeError, match="cannot be converted to type"):
        compiled(x, outside)
    torch.testing.assert_close(compiled(x, fitting[0]), torch.full_like(x, fitting[0]))


def test_asking_draws_no_numbers() -> None:
    x = torch.full((8,), 0.5)
    torch.manual_seed(3)
    expected = torch.bernoulli(x), torch.native_dropout(x, 0.5, True)[0], torch.randint(0, 9, (8,)), torch.rand(3)
    torch.manual_seed(3)
    program = fxloom.compile(
        lambda x: (torch.bernoulli(x), torch.native_dropout(x, 0.5, True)[0], torch.randint(0, 9, (8,)), torch.rand(3)), backend="aot_eager"
    )
    torch.testing.assert_close(program(x), expected)


@pytest.mark.parametrize(
    "draw", [lambda x: torch.randint(0, 9, ()) + x, lambda x: torch.randn(()) + x, lambda x: torch.native_dropout(x, 0.5, True)[0]]
)
def test_asking_draws_no_numbers_for_what_has_no_axes(draw: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "_passed", {})  # what other tests asked would not be asked again
    x = torch.tensor(0.5)
    compiled = fxloom.compile(draw, backend="eager")
    torch.manual_seed(3)
    expected = draw(x), torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), expected[0])
    assert torch.equal(torch.rand(3), expected[1])


# --- torch's own list of what operators refuse ---

_QUICK = ("masked_fill", "gelu", "aminmax", "index_add", "nn.functional.gelu", "amax", "select_scatter", "clamp", "std")


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if value.layout is torch.strided else value
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _differences(names: Callable[[str], bool], backend: str) -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    found, count = [], 0
    for op in op_db:
        if op.error_inputs_func is None or not names(op.name):
            continue
        for number, refused in enumerate(op.error_inputs("cpu")):
            sample, kinds = refused.sample_input, []
            fxloom.reset()

            def call(first: Any, args: Any, kwargs: Any, op: Any = op) -> Any:
                return op.op(first, *args, **kwargs)

            for run in (call, fxloom.compile(call, backend=backend)):
                first, args, kwargs = _copied(sample.input), _copied(sample.args), {k: _copied(v) for k, v in sample.kwargs.items()}
                try:
                    run(first, args, kwargs)
                    kinds.append("nothing")
                except Exception as error:
                    kinds.append(type(error).__name__)
            count += 1
            if kinds[0] != kinds[1]:
                found.append(f"{op.name} {number}: eager raises {kinds[0]}, compiled {kinds[1]}")
    assert count > 10
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_error_inputs_of_some_operators(backend: str) -> None:
    assert not _differences(_QUICK.__contains__, backend)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_error_inputs_of_all_operators(backend: str) -> None:
    assert not _differences(lambda name: True, backend)


@pytest.mark.parametrize(("axes", "dtype"), [(3, torch.bfloat16), (3, torch.int32), (2, torch.uint8)], ids=str)
def test_averages_of_types_that_eager_has_no_kernel_for(axes: int, dtype: torch.dtype) -> None:
    pool = torch.ops.aten.avg_pool3d if axes == 3 else torch.ops.aten.avg_pool2d
    x = torch.ones([1, 1] + [4] * axes).to(dtype)
    for run in (pool, fxloom.compile(lambda x, window: pool(x, window), fullgraph=True)):
        with pytest.raises(NotImplementedError):
            run(x, [2])
