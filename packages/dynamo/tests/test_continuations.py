"""Continuations: what sets their stack up is no place to break."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxloom_dynamo
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_interfaces.errors import FallbackWarning


@pytest.mark.capture_fault
def test_a_fault_while_the_stack_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame runs as it is: a break there would skip the instruction that the continuation begins with."""
    translate = ShadowHeap.translate

    class Odd(dict):  # type: ignore[type-arg]  # any class will do
        pass

    def faulty(self: ShadowHeap, original: Any, source: Any) -> Any:
        if type(original) is Odd:
            raise RuntimeError("a fault of capture's")
        return translate(self, original, source)

    def make(x: torch.Tensor) -> Any:
        return Odd(value=x.sum().item())

    monkeypatch.setattr(ShadowHeap, "translate", faulty)

    def fn(x: torch.Tensor) -> Any:
        return x * len(fxloom_dynamo.disable(make)(x + 1))

    with pytest.warns(FallbackWarning, match="a fault of capture's"):
        assert fxloom_dynamo.optimize("eager")(fn)(torch.ones(2)).tolist() == [1, 1]
