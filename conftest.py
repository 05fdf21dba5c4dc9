"""For every test of this repository: what falls to eager without being asked to is an error.

With FXLOOM_TEST_DEVICE=cuda tensors are made on that device unless a test says where. Tests that count on the CPU fail then; the list
of failures is to be read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
import torch

from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import FallbackWarning

if "FXLOOM_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["FXLOOM_TEST_DEVICE"])


@pytest.fixture(autouse=True)
def _nothing_falls_to_eager(request: pytest.FixtureRequest) -> Iterator[None]:
    """A FallbackWarning is an error, also where a mark ignores warnings; a test that means it says `pytest.warns`.

    A fault of capture's fails the test even if its program has caught that error, unless the test is marked `capture_fault`.
    """
    faults: list[telemetry.RanEager] = []

    def listen(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.RanEager) and event.kind == "capture_fault":
            faults.append(event)

    warnings.filterwarnings("error", category=FallbackWarning)  # pytest takes it back with the test's other filters
    with telemetry.listen(listen):
        yield
    if faults and request.node.get_closest_marker("capture_fault") is None:
        pytest.fail("capture is at fault: " + "; ".join(f"{fault.cause} ({fault.site})" for fault in faults), pytrace=False)
