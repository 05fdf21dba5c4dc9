"""One artifact store for the session, outside the user's cache; the instruction sets that kernels are made for."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxloom_codegen_cpp.toolchain import cpu_isa, find_toolchain
from fxloom_interfaces.artifacts import FileStore

collect_ignore = ["golden"]
sys.path.insert(0, str(Path(__file__).parent))  # for cpp_kernels, which the tests share


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileStore]:
    yield FileStore(Path(tmp_path_factory.mktemp("store")))


_COMMANDS = {"native": "g++", "avx2": "g++ -march=haswell", "sse2": "g++ -march=x86-64"}


@pytest.fixture(params=list(_COMMANDS))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The compiler makes kernels for it."""
    if request.param != "native" and platform.machine() != "x86_64":
        pytest.skip("an architecture of x86")
    if request.param == "avx2" and "avx2" not in cpu_isa():
        pytest.skip("this processor has no AVX2")
    find_toolchain.cache_clear()
    monkeypatch.setenv("CXX", _COMMANDS[request.param])
    yield request.param
    find_toolchain.cache_clear()
