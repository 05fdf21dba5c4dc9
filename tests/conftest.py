"""Fixtures of the tests that need all packages."""

import pytest

import fxloom

pytest.register_assert_rewrite("training_programs")  # its comparison explains itself as a test's would


@pytest.fixture
def counters_at_zero() -> None:
    """Nothing compiled, nothing counted."""
    fxloom.reset()
