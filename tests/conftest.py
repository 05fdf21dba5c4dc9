"""Fixtures of the tests that need all packages."""

import pytest

import fxloom


@pytest.fixture
def counters_at_zero() -> None:
    """Nothing compiled, nothing counted."""
    fxloom.reset()
