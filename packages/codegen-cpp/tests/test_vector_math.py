"""Functions that are called in vectors: eager's results bit by bit, whatever the processor's vectors, and the C library's elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpp_kernels import pointwise, run

from fxloom_codegen_cpp import build, vector_math
from fxloom_codegen_cpp.toolchain import cpu_isa, find_toolchain
from fxloom_codegen_cpp.vector_math import FUNCTIONS, FUNCTIONS_F64, vector_library
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import torch_dtype

NUMEL = 1003  # not whole vectors


def _eager(op: str) -> Callable[..., torch.Tensor]:
    return getattr(torch, op)  # type: ignore[no-any-return]


def _computed(op: str, operands: int, dtype: str, x: torch.Tensor, y: torch.Tensor, store: FileStore) -> torch.Tensor:
    arguments = [*(x, y)[:operands], torch.empty_like(x)]
    run([pointwise(op, [dtype] * operands, dtype, len(x))], [arguments], store)
    return arguments[-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_those_of_the_exact_function(isa: str, dtype: str, store: FileStore) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUMEL, generator=generator, dtype=torch.float64).to(torch_dtype(dtype)) * 0.98 + 0.01
    y = torch.rand(NUMEL, generator=generator, dtype=torch.float64).to(torch_dtype(dtype)) * 3 + 0.1
    for op, (operands, _) in (FUNCTIONS if dtype == "float32" else FUNCTIONS_F64).items():
        got, eager = _computed(op, operands, dtype, x, y, store), _eager(op)(*(x, y)[:operands])
        ulp = torch.finfo(torch_dtype(dtype)).eps * eager.abs().clamp(min=0.1)
        assert bool(((got - eager).abs() <= 4 * ulp).all()), op


@pytest.mark.skipif("avx" not in cpu_isa() or vector_library() is None, reason="eager has no vectors here, or others")
def test_results_are_eagers(store: FileStore) -> None:
    x, y = torch.randn(NUMEL) * 20, torch.randn(NUMEL)
    for op in ("fmod", "nextafter", "lgamma"):
        operands = FUNCTIONS[op][0]
        assert torch.equal(_computed(op, operands, "float32", x, y, store), _eager(op)(*(x, y)[:operands])), op


def test_a_result_does_not_depend_on_its_place(isa: str, store: FileStore) -> None:
    """Vectors of every width, and what is left over at the end of a loop."""
    values = torch.randn(40)
    whole = _computed("sin", 1, "float32", values, values, store)
    for length in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 23, 31, 33):
        assert torch.equal(_computed("sin", 1, "float32", values[:length].clone(), values, store), whole[:length]), length


def test_the_c_library_serves_where_torch_brings_none(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "vector_library", lambda: None)
    x, y = torch.rand(NUMEL, dtype=torch.float64), torch.rand(NUMEL, dtype=torch.float64)
    for op, (operands, _) in FUNCTIONS_F64.items():
        got, eager = _computed(op, operands, "float64", x, y, store), _eager(op)(*(x, y)[:operands])
        torch.testing.assert_close(got, eager, rtol=1e-14, atol=1e-15, msg=op)
    assert "FX_FUNCTION" not in vector_math.definitions("fx_sin_f32(x)", None)


@pytest.mark.skipif(vector_library() is None, reason="torch brings no vector functions for this processor")
def test_loops_become_loops_over_vectors(tmp_path: Path, store: FileStore) -> None:
    """Beside a choice of two conditions too, in whose arm a compiler would call the function for one number."""
    toolchain = find_toolchain()
    if "g++" not in toolchain.command[0] or "avx" not in toolchain.isa:
        pytest.skip("asks g++ what it did, for AVX")
    text = build.translation_unit([], toolchain.isa, None) + vector_math.definitions("fx_atan2_f32(a, b)", vector_library())
    text += """
extern "C" void kernel(const float* a, const float* b, float* out) {
    #pragma omp simd
    for (i64 i = 0; i < 1000; ++i) {
        const bool both = (a[i] == b[i]) & (a[i] > 0.0f);
        const float v = fx_atan2_f32(a[i], b[i]);
        out[i] = blend<float>(both, a[i], maximum<float>(a[i], b[i]) + v);
    }
}
"""
    (tmp_path / "kernel.cpp").write_text(text)
    command = [*toolchain.command, *toolchain.flags, "-fopt-info-vec-optimized", "-c", str(tmp_path / "kernel.cpp"), "-o", str(tmp_path / "k.o")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "loop vectorized" in told, told  # there is no other loop
