"""Fakes carry the bits that say that elements are conjugated or negated on reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxloom_shapes import FakeMode, FakeTensor, UnsupportedTensor

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "conj": lambda x: x.conj(),
    "twice": lambda x: x.conj().conj(),
    "imag": lambda x: x.conj().imag,
    "seen otherwise": lambda x: x.mH[1:].unsqueeze(0).permute(2, 0, 1),
    "resolved": lambda x: x.conj().resolve_conj(),
    "cloned": lambda x: x.conj().clone(),
    "multiplied": lambda x: x.conj() * 2,
    "product": lambda x: x.mH @ x,
    "transposed in place": lambda x: x.conj().t_(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_eagers(name: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    mode = FakeMode()
    with mode:
        fake = PROGRAMS[name](mode.from_tensor(x))
    real = PROGRAMS[name](x)
    assert isinstance(fake, FakeTensor)
    assert (fake.is_conj(), fake.is_neg(), fake.stride()) == (real.is_conj(), real.is_neg(), real.stride())


def test_what_eager_refuses_fakes_refuse() -> None:
    mode = FakeMode()
    fake = mode.from_tensor(torch.randn(3, dtype=torch.complex64))
    with mode, pytest.raises(RuntimeError, match="view_as_real doesn't work on unresolved conjugated tensors"):
        torch.view_as_real(fake.conj())


VIEWS: dict[str, Callable[[Any], Any]] = {
    "conjugated": torch.Tensor.conj,
    "negated": lambda x: x.conj().imag,
    "both": lambda x: torch._neg_view(x.conj()),
    "of a leaf": lambda x: x.requires_grad_().conj(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_fake_of_a_lazy_view_keeps_its_bits_and_memory(name: str) -> None:
    base = torch.randn(3, 4, dtype=torch.complex64)
    real = VIEWS[name](base)
    mode = FakeMode()
    fake, fake_base = mode.from_tensor(real), mode.from_tensor(base)
    assert (fake.is_conj(), fake.is_neg(), fake.stride()) == (real.is_conj(), real.is_neg(), real.stride())
    assert fake.storage_token is fake_base.storage_token
    for program in (lambda x: x[1:].t(), lambda x: x * 2, lambda x: x.clone(), lambda x: x.resolve_conj(), lambda x: x.resolve_neg()):
        with mode:
            result = program(fake)
        expected = program(real)
        assert (result.is_conj(), result.is_neg(), result.stride()) == (expected.is_conj(), expected.is_neg(), expected.stride())
    with pytest.raises(UnsupportedTensor, match="lazily conjugated or negated"):
        mode.from_tensor(real, as_stored=True)


def test_lazy_and_plain_tensors_have_plans_of_their_own() -> None:
    mode = FakeMode()
    x = torch.randn(3, dtype=torch.complex64)
    with mode:
        assert [mode.from_tensor(value).conj().is_conj() for value in (x, x.conj(), x, x.conj())] == [True, False, True, False]
