"""Kernels run in Triton's interpreter, on CPU tensors, or with FXLOOM_TEST_GPU=1 on a real GPU.

Triton reads its variable when it is first imported.
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

if os.environ.get("FXLOOM_TEST_GPU") != "1":
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton was imported before its interpreter was asked for")
    os.environ["TRITON_INTERPRET"] = "1"

collect_ignore = ["golden"]


@pytest.fixture
def device() -> str:
    """Where kernels run."""
    return "cuda" if os.environ.get("FXLOOM_TEST_GPU") == "1" else "cpu"


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes masked-out lanes with NumPy, which warns of what nobody reads."""
    with np.errstate(all="ignore"):
        yield
