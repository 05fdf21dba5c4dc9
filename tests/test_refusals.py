"""What eager's kernels refuse, compiled programs refuse too, in the same words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxloom

FLOATS, INTS, MASK = torch.randn(5), torch.arange(5), torch.arange(5) > 2

REFUSED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "not_of_floats": (lambda x: torch.bitwise_not(x), (FLOATS,)),
    "and_of_floats": (lambda x: x & x, (FLOATS,)),
    "xor_of_float_and_int": (lambda x, i: x ^ i, (FLOATS, INTS)),
    "shift_of_bools": (lambda b: b << b, (MASK,)),
    "difference_of_bools": (lambda b: b - b, (MASK,)),
    "difference_with_bool": (lambda x, b: x - b, (FLOATS, MASK)),
    "relu_of_bools": (lambda b: b.relu(), (MASK,)),
    "floor_of_bools": (lambda b: b.floor(), (MASK,)),
    "argmax_of_bools": (lambda b: b.argmax(), (MASK,)),
    "integer_division_by_zero": (lambda i: i // 0, (INTS,)),
    "integer_remainder_by_zero": (lambda i: i % 0, (INTS,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_in_its_words(name: str) -> None:
    function, inputs = REFUSED[name]
    with pytest.raises(RuntimeError) as in_eager:
        function(*inputs)
    with pytest.raises(type(in_eager.value)) as compiled:
        fxloom.compile(function)(*inputs)
    assert str(compiled.value).startswith(str(in_eager.value).splitlines()[0])


OUT_OF_RANGE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2)),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[:, None]),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x.expand(2, 3), i),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_an_index_out_of_range_raises_what_eager_raises(name: str, backend: str) -> None:
    x, i = torch.randn(3), torch.tensor([0, 5])
    with pytest.raises((IndexError, RuntimeError)) as eager:
        OUT_OF_RANGE[name](x, i)
    with pytest.raises((IndexError, RuntimeError)) as compiled:
        fxloom.compile(OUT_OF_RANGE[name], backend=backend)(x, i)
    assert type(compiled.value) is type(eager.value)
