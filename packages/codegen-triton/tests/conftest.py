"""Kernels run in Triton's interpreter, on CPU tensors, or with FXLOOM_TEST_GPU=1 on a real GPU.

Triton reads its variable when it is first imported. The interpreter checks no types, so at the end a process without it takes
all kernels of the session through Triton's front end.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

if os.environ.get("FXLOOM_TEST_GPU") != "1":
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton was imported before its interpreter was asked for")
    os.environ["TRITON_INTERPRET"] = "1"

collect_ignore = ["golden"]
#: Scatters that Triton has on a GPU, and its interpreter has not.
NOT_INTERPRETED = frozenset({"add bfloat16"})


@pytest.fixture
def device() -> str:
    """Where kernels run."""
    return "cuda" if os.environ.get("FXLOOM_TEST_GPU") == "1" else "cpu"


@pytest.fixture
def plugin() -> Any:
    """The plugin, less what its interpreter can't run where kernels run in that."""
    from fxloom_codegen_triton import PLUGIN

    if os.environ.get("FXLOOM_TEST_GPU") == "1":
        return PLUGIN
    able = replace(PLUGIN.capabilities, scatters=PLUGIN.capabilities.scatters - NOT_INTERPRETED)
    return replace(PLUGIN, capabilities=able)


@pytest.fixture(scope="session", autouse=True)
def compiles_for_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails, after the last test, where Triton refuses a kernel that some test built."""
    from fxloom_codegen_triton import build

    sources: dict[str, Any] = {}
    plain = build.build_kernels

    def recording(batch: Any, store: Any) -> Any:
        sources.update((source.text, source) for source in batch)
        return plain(batch, store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_kernels", recording)
        yield
    if os.environ.get("FXLOOM_TEST_GPU") == "1":
        return  # they were compiled
    path = tmp_path_factory.mktemp("kernels") / "all.pickle"
    path.write_bytes(pickle.dumps(list(sources.values())))
    command = [sys.executable, "-m", "fxloom_codegen_triton.check", str(path)]
    found = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes masked-out lanes with NumPy, which warns of what nobody reads."""
    with np.errstate(all="ignore"):
        yield
