"""Lazily conjugated views: fakes carry the bit, so what shows it is captured like the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import check

X = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))

WHOLE: dict[str, Callable[[Any], Any]] = {
    "conj": lambda x: x.conj(),
    "product": lambda x: (x * 2).mH @ x,
    "imaginary part of what is not conjugated": lambda x: x.imag * 2,
    "asked of what is not conjugated": lambda x: (x * 1).is_conj(),
    "asked": lambda x: (x * 2).conj().is_conj(),
    "resolved": lambda x: (x * 2).conj().resolve_conj().is_conj(),
    "imaginary part": lambda x: (x * 2).conj().imag + 1,
    "written through": lambda x: _set((x * 2).conj()),
    "seen as real": lambda x: torch.view_as_real((x * 2).conj().resolve_conj()),
}


def _set(view: Any) -> Any:
    view[0] = 1 + 2j
    return view.is_conj(), view.imag


@pytest.mark.parametrize("name", WHOLE)
def test_captured_whole(name: str) -> None:
    assert check(WHOLE[name], X).breaks == ()
