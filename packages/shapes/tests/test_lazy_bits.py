"""Fakes carry the bits that say that elements are conjugated or negated on reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxloom_shapes import FakeMode, FakeTensor

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
