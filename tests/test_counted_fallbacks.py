"""What runs in eager though it was to be compiled: counted by kind in `stats()`, with the user's line in the warning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxloom
from fxloom_codegen_cpp.toolchain import find_toolchain

pytestmark = pytest.mark.usefixtures("counters_at_zero")


@pytest.mark.cpu_only("it is the C++ compiler that is missing")
def test_a_missing_compiler_is_told_of_where_errors_are_suppressed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("FXLOOM_CACHE_DIR", str(tmp_path))
    find_toolchain.cache_clear()  # an earlier test may have found one

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 3.25

    x = torch.randn(7)
    compiled = fxloom.compile(program, suppress_errors=True)
    with pytest.warns(fxloom.exc.FallbackWarning, match="ToolchainError: no C.. compiler: CXX=.*no-compiler") as warned:
        for _ in range(3):
            assert torch.equal(compiled(x), program(x))
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, program.__code__.co_firstlineno)]
    assert fxloom.stats().fallbacks == {"backend_failed": 1}
    assert "no-compiler" in fxloom.stats().fallback_reasons["backend_failed"]
    with pytest.raises(fxloom.exc.BackendCompilerFailed, match="no-compiler"):
        fxloom.compile(program)(x)


def test_a_kernel_that_raises_is_told_of_and_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.cos(x) * 5.5

    x = torch.randn(7)
    compiled = fxloom.compile(program)
    compiled(x)
    assert fxloom.stats().fallbacks == {}

    def fail(self: object, inputs: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("fxloom_inductor_core.compile.CompiledGraph.__call__", fail)
    with pytest.warns(fxloom.exc.FallbackWarning, match="eager did not: RuntimeError: out of memory") as warned:
        for _ in range(3):
            assert torch.equal(compiled(x), torch.cos(x) * 5.5)
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, program.__code__.co_firstlineno)]
    assert fxloom.stats().fallbacks == {"graph_raised": 3, "graph_alone_raised": 3}
    assert len(calls) == 4


@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_what_the_program_handles_is_counted_and_not_told() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        try:
            return x[index] + 1
        except IndexError:
            return x

    compiled = fxloom.compile(program)
    x = torch.randn(7)
    for index in (1, 9, 2, 9):
        assert torch.equal(compiled(x, torch.tensor([index])), program(x, torch.tensor([index])))
    assert fxloom.stats().fallbacks == {"graph_raised": 2}
