"""Dynamic sizes and numbers seen from capture alone: when they become symbolic, what is guarded, what users may say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxloom_dynamo import _native, optimize
from fxloom_dynamo.guard.dynamic_shapes import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic, parse_dynamic_shapes
from fxloom_dynamo.guard.entries import CapturedFrame
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.guard.sizes import _statement
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.symbolic_math import UNARY
from fxloom_shapes import ConstraintViolated
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import Atom, apply, const, of_atom
from fxloom_shapes.expressions.statements import Comparison, Relation


def close(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, (tuple, list)):
        assert type(got) is type(expected)
        for one, other in zip(got, expected, strict=True):
            close(one, other)
    else:
        assert type(got) is type(expected) and got == expected


class Captured:
    """A function run through capture; `frames` are the compilations."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.frames: list[CapturedFrame] = []
        self.compiled = optimize(None, on_capture=self.frames.append, **options)(fn)

    def __call__(self, *args: Any) -> None:
        close(self.compiled(*args), self.fn(*args))

    @property
    def breaks(self) -> list[Any]:
        return [frame.info.broke for frame in self.frames if frame.info.broke is not None]

    def size_guards(self) -> list[str]:
        return [str(guard.expected) for guard in self.frames[-1].guards if guard.kind is GuardKind.SIZES]


def test_a_dimension_is_static_until_a_second_size_is_seen() -> None:
    run = Captured(lambda x: x.view(-1) * x.shape[0])
    for n in (3, 3, 5, 7, 9):
        run(torch.ones(n, 4))
    assert len(run.frames) == 2
    assert run.size_guards() == ["2 <= L['x'].size(0)"]


def test_sizes_zero_and_one_are_compiled_apart() -> None:
    run = Captured(lambda x: x + 1, dynamic=True)
    for n in (5, 1, 0, 7):
        run(torch.ones(n, 4))
    assert len(run.frames) == 3


def test_only_what_was_decided_is_guarded_and_names_the_line() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 10:
            return x + 1
        return x - 1

    run = Captured(fn, dynamic=True)
    for n in (4, 7, 10):
        run(torch.ones(n))
    assert len(run.frames) == 1 and run.size_guards() == ["2 <= L['x'].size(0) <= 10"]
    run(torch.ones(11))
    assert len(run.frames) == 2 and run.size_guards() == ["11 <= L['x'].size(0)"]


def test_equal_sizes_of_several_tensors_are_one_guard() -> None:
    run = Captured(lambda x, y: x + y, dynamic=True)
    run(torch.ones(4, 6), torch.ones(4, 6))
    assert run.size_guards() == ["2 <= L['x'].size(0) == L['y'].size(0)", "2 <= L['x'].size(1) == L['y'].size(1)"]


@pytest.mark.parametrize("values", [(3, 5, 7, 9, 12), (0.5, 0.25, 0.125, 3.0)])
def test_numbers_become_dynamic_too(values: tuple[Any, ...]) -> None:
    run = Captured(lambda x, n: (x * n + n, n * 2))
    for n in values:
        run(torch.ones(3), n)
    assert len(run.frames) == 2


def test_what_needs_the_very_number_gets_it_under_a_guard() -> None:
    def fn(x: torch.Tensor, n: int) -> Any:
        return x + sum(range(n)), {n: "n"}, f"{n}", [0] * n, n.bit_length()

    run = Captured(fn, dynamic=True)
    run(torch.ones(3), 5)
    run(torch.ones(3), 6)
    assert len(run.frames) == 2 and not run.breaks


def test_a_marked_dimension_is_dynamic_at_once() -> None:
    run = Captured(lambda x: x * x.shape[0])
    for n in (6, 9, 12):
        x = torch.ones(n, 3)
        mark_dynamic(x, 0)
        run(x)
    assert len(run.frames) == 1


def test_specializing_a_marked_dimension_names_the_line_that_did_it() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == 6 else x

    x = torch.ones(6)
    mark_dynamic(x, 0)
    with pytest.raises(
        ConstraintViolated, match=r"L\['x'\].size\(0\) is marked dynamic.* x\.size\(0\) == 6 at .*test_dynamic_sizes.py:\d+ in .*fn: return"
    ):
        optimize(None)(fn)(x)
    y = torch.ones(6)
    maybe_mark_dynamic(y, 0)
    assert torch.equal(optimize(None)(fn)(y), y + 1)


def test_a_promised_range_is_held() -> None:
    x = torch.ones(12)
    mark_dynamic(x, 0, min=2, max=10)
    with pytest.raises(ConstraintViolated, match="out of the promised range"):
        optimize(None)(lambda x: x + 1)(x)


def test_a_static_mark_wins() -> None:
    run = Captured(lambda x: x + 1, dynamic=True)
    for n in (3, 4):
        x = torch.ones(n)
        mark_static(x, 0)
        run(x)
    assert len(run.frames) == 2 and not run.size_guards()


def test_an_unbacked_mark_serves_zero_and_one_as_well() -> None:
    run = Captured(lambda x: x * 2)
    for n in (5, 1, 0, 8):
        x = torch.ones(n)
        mark_unbacked(x, 0)
        run(x)
    assert len(run.frames) == 1


def test_dynamic_shapes_by_argument() -> None:
    run = Captured(lambda x, ys: x + ys[0], dynamic_shapes={"x": {0: "n"}, "ys": [{0: "n"}]})
    for n in (4, 6, 8):
        run(torch.ones(n, 3), [torch.ones(n, 3)])
    assert len(run.frames) == 1


def test_dynamic_shapes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dynamic_shapes for x\[0\]"):
        parse_dynamic_shapes({"x": {0: 3.5}})


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, n: x * n.item(), (4, 6)),
        (lambda x, n: (x + 1, int(n) + 2), (4, 6)),
        (lambda x, n: [a + 1 for a in n.expand(2).tolist()], (4, 6)),
        (lambda x, n: torch.zeros(n.item()).sum() + x, (4, 6)),
    ],
)
def test_numbers_out_of_tensors_stay_in_the_graph_when_asked(fn: Callable[..., Any], args: tuple[int, ...]) -> None:
    run = Captured(fn, capture_scalar_outputs=True)
    for n in args:
        run(torch.ones(3), torch.tensor(n))
    assert len(run.frames) == 1 and not run.breaks


@pytest.mark.parametrize("fn", [lambda x: x[x > 0] * 2, lambda x: x.nonzero() + 1, lambda x: x[x > 0].shape[0] * 3, torch.unique])
def test_shapes_that_depend_on_values_stay_in_the_graph_when_asked(fn: Callable[..., Any]) -> None:
    run = Captured(lambda x: fn(x), capture_dynamic_output_shape_ops=True)
    for x in (torch.tensor([1.0, 0, 2]), torch.tensor([1.0, 3, 2])):
        run(x)
    assert len(run.frames) == 1 and not run.breaks


def test_an_assertion_about_a_captured_number_is_checked_at_run_time() -> None:
    def fn(n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k <= 8)
        return torch.zeros(k) if k < 9 else torch.ones(k)

    run = Captured(fn, capture_scalar_outputs=True)
    run(torch.tensor(4))
    assert len(run.frames) == 1 and not run.breaks
    with pytest.raises(RuntimeError):
        run.compiled(torch.tensor(9))


# --- the machine that checks sizes ---------------------------------------------------------------------------------------

_OPCODES = ["const", "load", "add", "mul", "FloorDiv", "Mod", "Min", "Max", "==", "!=", ">=", "and", "or"]


def _run(code: list[int], values: tuple[int, ...]) -> bool:
    tree = _native.GuardTree()
    for slot in range(len(values)):
        tree.export_value(tree.add_node(-1, 0, slot, None, 0), slot)
    tree.add_size_program(list(range(len(values))), code, 0)
    tree.freeze(0, len(values))
    return tree.check(list(values), (), {}, {}, None) == -1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(["add", "mul", "FloorDiv", "Mod", "Min", "Max"]),
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.sampled_from(["==", "!=", ">="]),
)
def test_the_machine_computes_as_python_does(op: str, a: int, b: int, relation: str) -> None:
    code = [1, 0, 1, 1, _OPCODES.index(op), _OPCODES.index(relation)]
    table = {"add": a + b, "mul": a * b, "Min": min(a, b), "Max": max(a, b)}
    if b:
        table |= {"FloorDiv": a // b, "Mod": a % b}
    value = table.get(op)
    expected = value is not None and {"==": value == 0, "!=": value != 0, ">=": value >= 0}[relation]
    assert _run(code, (a, b)) == expected


A, B, P = (Atom("", (), name, rank) for rank, name in enumerate("abp"))
NUMBERS = [FloatExpr("int", (of_atom(A),)), FloatExpr("int", (of_atom(B),)), FloatExpr("symbol", (P,)), FloatExpr("const", (0.7,)), FloatExpr("const", (-2.0,))]
ROUNDED = ["Floor", "Ceil", "Trunc", "Round"]
OF_BITS = ["And", "Or", "Xor", "Power", "Gcd", "FloorDiv", "Mod", "Min", "Max"]


def below(real: FloatExpr) -> list[FloatExpr]:
    """It and all that it is made of."""
    inside = [] if real.kind in ("symbol", "const", "int") else [part for argument in real.args for part in below(argument)]
    return [real, *inside]


def holds(statement: Relation | Comparison, numbers: dict[str, Any]) -> bool:
    """What Python says; False where it raises, for which code is compiled anew."""
    try:
        return statement.holds(numbers)
    except (ArithmeticError, ValueError, TypeError):
        return False


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_the_machine_computes_floats_and_bits_as_python_does(data: st.DataObject) -> None:
    draw = data.draw
    numbers = {
        "a": draw(st.integers(-9, 40)),
        "b": draw(st.integers(0, 9)),
        "p": draw(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -7.25, 1e300, float("inf"), float("-inf"), float("nan")])),
    }

    def real(depth: int) -> FloatExpr:
        kind = draw(st.sampled_from(["leaf", "binary", "unary"] if depth else ["leaf"]))
        if kind == "leaf":
            return draw(st.sampled_from(NUMBERS))
        if kind == "unary":
            return FloatExpr(draw(st.sampled_from([*UNARY, "neg", "abs"])), (real(depth - 1),))
        operations = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
        return FloatExpr(draw(st.sampled_from(operations)), (FloatExpr("float", (real(depth - 1),)), FloatExpr("float", (real(depth - 1),))))

    which = draw(st.sampled_from(["comparison", "finite", "rounded", "bits", "alone"]))
    statement: Any
    if which == "comparison":
        statement = Comparison(draw(st.sampled_from(["==", "<", "<="])), (real(2), real(2)), draw(st.booleans()))
    elif which == "finite":
        statement = Comparison("finite", (real(2),), True)
    else:
        makers = {
            "rounded": lambda: apply(draw(st.sampled_from(ROUNDED)), real(2)),
            "bits": lambda: apply(draw(st.sampled_from(OF_BITS)), of_atom(A), of_atom(B)),
            "alone": lambda: apply(draw(st.sampled_from(["BitLength", "Isqrt"])), of_atom(A)),
        }
        statement = Relation(draw(st.sampled_from(["==", "!=", ">="])), makers[which]() - const(draw(st.integers(-2, 9))))
    code = _statement(statement, {"a": 0, "b": 1, "p": 2})
    expected = holds(statement, numbers)
    got = _run(code, tuple(numbers.values()))
    parts = statement.args if isinstance(statement, Comparison) else [p for atom in statement.poly.atoms() for p in atom.args]
    inner = [part for whole in parts if isinstance(whole, FloatExpr) for part in below(whole)]
    if which == "finite":
        inner = [part for part in inner if part not in parts]
    finite = all(holds(Comparison("finite", (part,)), numbers) for part in inner)  # each has a guard of its own that it is
    large = which == "rounded" and finite and any(abs(part.value(numbers)) >= 1 << 62 for part in inner)
    if finite and not large:
        assert got == expected, (str(statement), numbers)


def test_the_machine_refuses_what_is_no_integer_or_too_large() -> None:
    always = [1, 0, 0, 0, 3, 8]  # 0 * x == 0
    assert _run(always, (5,))
    assert not _run(always, (True,)) and not _run(always, (1 << 70,)) and not _run(always, (2.0,))  # type: ignore[arg-type]
    assert not _run([1, 0, 1, 0, 3, 10], (1 << 40,))  # overflow


def test_the_machine_refuses_broken_code() -> None:
    tree = _native.GuardTree()
    for code in ([], [0], [1, 3], [2], [0, 1, 0, 1], [99]):
        with pytest.raises(ValueError, match="size program"):
            tree.add_size_program([0], code, 0)


class MaskCache:
    def __init__(self):
        self.masks = {}

    def __call__(self, x):
        key = (x.shape[0], x.device)
        if key not in self.masks:
            self.masks[key] = torch.tril(torch.ones(x.shape[0], x.shape[0]))
        return x * self.masks[key]


def set_of_shapes(x):
    seen = {x.shape, (x.shape[0], "first")}
    seen.add(x.shape)
    seen.update([x.shape[:1]])
    return x + len(seen), x.shape in seen, {x.shape[0]: 1}.get(x.size(0)), hash(x.shape) == hash(tuple(x.shape)), sorted(map(str, seen))


@pytest.mark.parametrize("make", [MaskCache, lambda: set_of_shapes], ids=["a cache by size", "sets of shapes"])
def test_a_size_in_a_key_is_what_it_is_now(make):
    expected, frames = make(), []
    compiled = optimize("eager", on_capture=frames.append)(make())
    for size in (2, 3, 4, 5, 4, 3):
        x = torch.rand(size, size)
        wanted, got = expected(x), compiled(x)
        assert str(wanted) == str(got)
    assert [frame.info.broke for frame in frames] == [None] * len(frames)
    assert len(frames) <= 6


BAD_MARKS: list[tuple[dict[str, Any], str]] = [
    ({"dim": 1.0}, r"dimension as an int.* got 1\.0 \(float\)"),
    ({"dim": None}, "dimension as an int.* got None"),
    ({"dim": [0, "b"]}, "dimension as an int.* got 'b'"),
    ({"dim": 0, "min": 1.5}, r"min is 1\.5 \(float\)"),
    ({"dim": 0, "min": "a"}, r"min is 'a' \(str\)"),
    ({"dim": 0, "max": True}, "max is True"),
    ({"dim": 0, "min": -1}, "min is -1; no size is below 0"),
    ({"dim": 0, "name": 5}, r"name is 5 \(int\)"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_MARKS, ids=[str(given) for given, _ in BAD_MARKS])
def test_a_mark_that_makes_no_sense_is_refused_in_words(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mark_dynamic(torch.ones(2, 3), **arguments)


def test_marks_take_what_python_takes_for_an_int_and_refuse_what_is_no_tensor() -> None:
    class Index:
        def __index__(self) -> int:
            return 1

    run = Captured(lambda x: x * 2)
    for n in (3, 4, 5):
        x = torch.ones(2, n)
        mark_dynamic(x, Index())
        run(x)
    assert len(run.frames) == 1
    with pytest.raises(ConfigError, match="expected a tensor"):
        mark_static([1])  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(("given", "message"), [([{0: True}], "got list"), ([], "got list"), (7, "got int"), ({0: True}, "got 0")])
def test_dynamic_shapes_by_anything_but_names_is_refused_in_words(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"dynamic_shapes.*{message}"):
        parse_dynamic_shapes(given)
