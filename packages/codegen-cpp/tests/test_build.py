"""Toolchain and cache: one compiler run per batch, none the second time; failures say what to do."""

from __future__ import annotations

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cpp_kernels import pointwise

from fxloom_codegen_cpp import launch
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_codegen_cpp.toolchain import cpu_isa, find_toolchain
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.codegen import Codegen, KernelSource, check_codegen
from fxloom_interfaces.errors import ToolchainError


def test_importing_the_plugin_pulls_in_neither_torch_nor_sympy() -> None:
    code = "import sys; import fxloom_codegen_cpp.plugin; print([m for m in ('torch', 'sympy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_is_a_plugin() -> None:
    assert isinstance(PLUGIN, Codegen)
    assert check_codegen(PLUGIN) is PLUGIN


def test_one_compiler_run_then_none(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    sources = [PLUGIN.emit(pointwise(op, ["float32"] * 2, "float32"), f"k_{op}") for op in ("add", "sub", "mul")]
    first = PLUGIN.build(sources, store)
    second = PLUGIN.build(sources, FileStore(tmp_path))
    assert (first.compiler_runs, first.cached) == (1, False)
    assert (second.compiler_runs, second.cached) == (0, True)
    assert set(first.callables) == {"k_add", "k_sub", "k_mul"}
    assert cpu_isa() in first.source


def test_threads_that_want_the_same_kernel_compile_it_once(tmp_path: Path) -> None:
    sources = [PLUGIN.emit(pointwise("add", ["float32"] * 2, "float32"), "k")]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: PLUGIN.build(sources, FileStore(tmp_path)), range(4)))
    assert sum(b.compiler_runs for b in built) == 1


def test_a_failing_compiler_says_what_it_ran_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        PLUGIN.build([KernelSource("broken", "c++", "this is no C++;", {"arguments": 1})], FileStore(tmp_path))
    text = str(caught.value)
    assert "-march=native" in text
    assert "this is no C++" in text
    assert "FXLOOM_DISABLE=1" in text
    assert 'backend="aot_eager"' in text


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_toolchain.cache_clear()
    monkeypatch.setenv("CXX", "/nowhere/g++")
    try:
        with pytest.raises(ToolchainError, match="CXX=/nowhere/g\\+\\+"):
            find_toolchain()
    finally:
        find_toolchain.cache_clear()


def test_cxx_may_carry_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_toolchain.cache_clear()
    monkeypatch.setenv("CXX", "env LANG=C g++ -O1")
    try:
        toolchain = find_toolchain()
        assert toolchain.command[1:] == ("LANG=C", "g++", "-O1")
        assert toolchain.identity.endswith("-O1"), "arguments are part of the key"
        built = PLUGIN.build([PLUGIN.emit(pointwise("add", ["float32"] * 2, "float32"), "k_add")], FileStore(tmp_path))
        assert built.compiler_runs == 1
    finally:
        find_toolchain.cache_clear()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an architecture of x86")
def test_an_architecture_in_cxx_replaces_this_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for another processor have another key."""
    sources = [PLUGIN.emit(pointwise("add", ["float32"] * 2, "float32"), "k_add")]
    find_toolchain.cache_clear()
    monkeypatch.setenv("CXX", "g++ -march=x86-64")
    try:
        assert not [flag for flag in find_toolchain().flags if flag.startswith(("-march", "-mprefer"))]
        assert PLUGIN.build(sources, FileStore(tmp_path)).compiler_runs == 1
    finally:
        monkeypatch.undo()
        find_toolchain.cache_clear()
    assert PLUGIN.build(sources, FileStore(tmp_path)).compiler_runs == 1


@pytest.mark.parametrize("native", [True, False])
def test_both_ways_of_launching(native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if native and not launch.is_native():
        pytest.skip("the extension was not built")
    if not native:
        monkeypatch.setattr(launch, "_launch", None)
    built = PLUGIN.build([PLUGIN.emit(pointwise("add", ["float32"] * 2, "float32", 5), "k")], FileStore(tmp_path))
    a, b, out = torch.arange(5.0), torch.ones(5), torch.empty(5)
    built.callables["k"](a.data_ptr(), b.data_ptr(), out.data_ptr())
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(TypeError, match="3"):
        built.callables["k"](a.data_ptr())
    with pytest.raises(TypeError):
        built.callables["k"](a, b, out)


def test_kernels_follow_torchs_thread_count(tmp_path: Path) -> None:
    """The OpenMP runtime is torch's own, so torch.set_num_threads reaches the kernels."""
    source = 'extern "C" i64 threads(const i64* arguments) { *(i64*)arguments[0] = omp_get_max_threads(); return 0; }\n'
    built = PLUGIN.build([KernelSource("threads", "c++", source, {"arguments": 1})], FileStore(tmp_path))
    before = torch.get_num_threads()
    out = torch.zeros(1, dtype=torch.int64)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            built.callables["threads"](out.data_ptr())
            assert out.item() == count
    finally:
        torch.set_num_threads(before)
