"""For every test of this repository: what falls to eager without being asked to is an error.

With FXLOOM_TEST_DEVICE=cuda tensors, and generators, are made on that device unless a test says where. Tests that count on the CPU, or
have eager's own kernels end the process there, are marked `cpu_only("why")` and left out then.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import FallbackWarning

DEVICE = os.environ.get("FXLOOM_TEST_DEVICE")

if DEVICE is not None:
    torch.set_default_device(DEVICE)

    class _Generator(torch.Generator):
        """`torch.Generator()` doesn't follow the default device."""

        def __new__(cls, device: str = DEVICE) -> torch.Generator:  # type: ignore[misc]  # as torch's own class, which tests may ask for
            return _plain_generator(device)

    _plain_generator = torch.Generator
    torch.Generator = _Generator  # type: ignore[misc]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("cpu_only")
        if marker is not None and DEVICE not in (None, "cpu"):
            item.add_marker(pytest.mark.skip(reason=f"on the CPU only: {marker.args[0]}"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)` fails unless the file holds `text`; with --update-golden it writes the file."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            if os.environ.get("CI"):
                pytest.fail("golden files are written where their difference is reviewed, not in CI")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists() and text == path.read_text(), f"{path} differs: if that is meant, run with --update-golden and review it"

    return compare


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
