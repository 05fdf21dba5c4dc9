"""The contract of a `Replayer`, as tests: subclass, define the fixtures `replayer` and `device`, run pytest.

In: the replayer. Out: failures where the wrapped callable's results are not those of the callable, or don't stay valid, also when
shapes change.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_interfaces.replayer import Replayer, ReplaySignature, check_replayer


def affine(inputs: list[Any]) -> list[Any]:
    """weight (static), x -> x * weight + 1, and clears its list as compiled code may."""
    weight, x = inputs
    inputs.clear()
    return [x * weight + 1]


class ReplayerContract:
    """What every replayer does, whether it records or declines."""

    @pytest.fixture
    def replayer(self) -> Replayer:
        """The plugin under test."""
        raise LookupError("define the fixture `replayer` in your subclass of ReplayerContract")

    @pytest.fixture
    def device(self) -> str:
        """Where the callable runs."""
        return "cpu"

    def test_object_is_whole_and_speaks_our_version(self, replayer: Replayer) -> None:
        assert check_replayer(replayer) is replayer
        assert replayer.device_types

    def test_results_are_those_of_the_callable_and_stay_valid(self, replayer: Replayer, device: str) -> None:
        wrapped = replayer.wrap(affine, ReplaySignature(static_inputs=(0,), devices=(device,), name="affine"))
        weight = torch.randn(4, device=device)
        held = []
        for _ in range(6):
            x = torch.randn(3, 4, device=device)
            held.append((wrapped([weight, x])[0], x * weight + 1))
        for got, want in held:
            torch.testing.assert_close(got, want)

    def test_shapes_may_change(self, replayer: Replayer, device: str) -> None:
        wrapped = replayer.wrap(affine, ReplaySignature(static_inputs=(0,), devices=(device,), name="affine"))
        weight = torch.randn(4, device=device)
        for size in (1, 5, 1, 5, 2, 1):
            x = torch.randn(size, 4, device=device)
            torch.testing.assert_close(wrapped([weight, x])[0], x * weight + 1)
