"""What is said when a number that only the run tells is not what the program or an operator takes it for: the program's own words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fxloom

BACKENDS = ["eager", "aot_eager", "inductor"]
OPTIONS = {"capture_scalar_outputs": True}


def with_constant_text(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k < 5, lambda: "too big")
    return x * k


def with_constant_text_of_an_equality(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k == 3, lambda: "three, please")
    return x * k


def with_a_number_in_the_text(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k < 5, lambda: f"too big {k}")
    return x * k


def without_text(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k < 5)
    return x * k


def never_checked(x: Tensor, n: Tensor) -> Tensor:
    return x.sum() + torch.zeros(n.item() + 1) + torch.ones(n.item() * 2 - 2)


def with_several_numbers_in_the_text(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    size = x.shape[0]
    torch._check(k < size, lambda: f"{{}} {size} has no {k}")
    return x[k]


def with_another_exception(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check_value(k < 5, lambda: f"too big {k}")
    return x * k


def index(x: Tensor, n: Tensor) -> Tensor:
    return x[n.item()] * 2


def index_from_the_end(x: Tensor, n: Tensor) -> Tensor:
    return x[None, -n.item()] * 2


def select(x: Tensor, n: Tensor) -> Tensor:
    return x.view(-1, 1).select(0, n.item()) * 2


def write(x: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    y[n.item()] = 1
    return y


LINE = rf".*{__name__}\.py:\d+ in "
MESSAGES: list[tuple[Callable[[Tensor, Tensor], Tensor], str]] = [
    (with_constant_text, "^too big$"),
    (with_constant_text_of_an_equality, "^three, please$"),
    (with_a_number_in_the_text, "^too big 7$"),
    (without_text, rf"^n\.item\(\) <= 4 does not hold {LINE}without_text: torch\._check\(k < 5\)"),
    (never_checked, rf"^n\.item\(\) == 3 does not hold {LINE}never_checked: return"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fn", "message"), MESSAGES, ids=[fn.__name__ for fn, _ in MESSAGES])
def test_a_check_that_fails_speaks_as_the_program_does(
    fn: Callable[[Tensor, Tensor], Tensor], message: str, backend: str, counters_at_zero: None
) -> None:
    compiled = fxloom.compile(fn, backend=backend, fullgraph=True, options=OPTIONS)
    x = torch.ones(2)
    assert torch.equal(compiled(x, torch.tensor(3)), fn(x, torch.tensor(3)))
    with pytest.raises(RuntimeError, match=message):
        compiled(x, torch.tensor(7))
    assert fxloom.stats().graphs == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn", [with_a_number_in_the_text, with_several_numbers_in_the_text, with_another_exception, index, index_from_the_end, select, write]
)
def test_what_fails_fails_as_in_eager(fn: Callable[[Tensor, Tensor], Tensor], backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(fn, backend=backend, fullgraph=True, dynamic=True, options=OPTIONS)
    for size in (5, 6):
        x = torch.arange(float(size))
        assert torch.equal(compiled(x, torch.tensor(4)), fn(x, torch.tensor(4)))
        with pytest.raises(Exception, match="7") as expected:
            fn(x, torch.tensor(7))
        with pytest.raises(expected.type, match=f"^{re.escape(str(expected.value))}$"):
            compiled(x, torch.tensor(7))
    assert fxloom.stats().graphs == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_message_that_would_be_seen_being_made_is_not_made_early(backend: str) -> None:
    made: list[int] = []

    def message() -> str:
        made.append(1)
        return "too big"

    def fn(x: Tensor, n: Tensor) -> Tensor:
        torch._check(n.item() < 5, message)
        return x * n.item()

    compiled = fxloom.compile(fn, backend=backend, options=OPTIONS)
    assert torch.equal(compiled(torch.ones(2), torch.tensor(3)), torch.full((2,), 3.0))
    assert not made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (4, 5)])
def test_sizes_that_nothing_looks_at_are_checked_to_be_one(sizes: tuple[int, int], backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x, y: x + y, backend=backend)

    def call(left: int, right: int) -> Tensor:
        x, y = torch.ones(left), torch.ones(right)
        fxloom.mark_unbacked(x, 0)
        fxloom.mark_unbacked(y, 0)
        return compiled(x, y)

    assert torch.equal(call(3, 3), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match=rf"x\.size\(0\) == y\.size\(0\) does not hold {LINE}"):
        call(*sizes)
    assert fxloom.stats().graphs == 1


def test_guards_on_sizes_read_as_conditions_of_the_program_and_name_the_line(counters_at_zero: None) -> None:
    def fn(x: Tensor) -> Tensor:
        if x.shape[0] % 2 == 0:
            x = x + 1
        if x.shape[0] // 2 > 2:
            x = x * 2
        return x

    x = torch.ones(6)
    fxloom.mark_dynamic(x, 0)
    texts = [str(guard) for guard in fxloom.explain(fn)(x).guards if guard.kind.name == "SIZES"]
    line = r" \(asked at .*test_messages_of_checks\.py:\d+ in .*fn: if x\.shape\[0\] "
    assert any(re.match(r"L\['x'\]\.size\(0\) % 2 == 0" + line + "% 2 == 0:", text) for text in texts), texts
    assert any(re.match(r"L\['x'\]\.size\(0\) // 2 >= 3" + line + "// 2 > 2:", text) for text in texts), texts
    assert not any("SizeCheck" in text or re.search(r"\bs\d", text) for text in texts), texts

    compiled = fxloom.compile(fn, backend="eager", dynamic=True)
    compiled(torch.ones(6))
    compiled(torch.ones(7))
    assert re.search(r"L\['x'\]\.size\(0\) % 2 == 0 does not hold for L\['x'\]\.size\(0\) = 7" + line, fxloom.stats().recompile_reasons[0])


@torch.library.custom_op("fxloom_tests::places_of_ones", mutates_args=())
def places_of_ones(x: Tensor) -> Tensor:
    return torch.nonzero(x).contiguous()


@places_of_ones.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)


def three_places(x: Tensor) -> Tensor:
    found = places_of_ones(x)
    torch._check(found.shape[0] == 3)
    return found * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_of_another_size_than_asserted_names_the_programs_line(backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(three_places, backend=backend, fullgraph=True, options={"capture_dynamic_output_shape_ops": True})
    assert torch.equal(compiled(torch.tensor([1.0, 1, 1, 0])), three_places(torch.tensor([1.0, 1, 1, 0])))
    with pytest.raises(RuntimeError, match=rf"{LINE}three_places: "):
        compiled(torch.ones(4))
