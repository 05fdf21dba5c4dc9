"""The contract of `Codegen`, as tests: subclass, define the fixture `plugin` (and `device`, if it isn't "cpu"), run pytest.

In: the plugin. Out: failures where it breaks the contract: kernels compute what they mean, sources are the same at every
emission, a second build finds the first. A case that the plugin's capabilities rule out is skipped.
"""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.codegen import Codegen, EmitsGrouped, check_codegen
from fxloom_testing.kernels import CASES, GROUPED_CASES, GroupedCase, KernelCase


class CodegenContract:
    """What every code generator does. A case that the plugin's capabilities rule out is skipped, by name of what it lacks."""

    @pytest.fixture
    def plugin(self) -> Codegen:
        """The plugin under test."""
        raise LookupError("define the fixture `plugin` in your subclass of CodegenContract")

    @pytest.fixture
    def device(self) -> str:
        """Where its kernels run."""
        return "cpu"

    #: Dotted name of the entry object, `package.module:OBJECT`; checked to import without torch where it is given.
    entry_point: str | None = None

    def test_object_is_whole_and_speaks_our_version(self, plugin: Codegen) -> None:
        assert check_codegen(plugin) is plugin
        assert plugin.name.isidentifier()
        assert plugin.device_types
        assert dataclasses.is_dataclass(plugin.capabilities)

    def test_entry_object_imports_neither_torch_nor_a_toolchain(self) -> None:
        if self.entry_point is None:
            pytest.skip("entry_point is not given")
        module = self.entry_point.split(":")[0]
        code = f"import sys, {module}; print('torch' in sys.modules, 'triton' in sys.modules)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.split() == ["False", "False"]

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_kernel_computes_what_it_means(self, case: KernelCase, plugin: Codegen, device: str, tmp_path: Path) -> None:
        skip_unless_able(case, plugin)
        torch.manual_seed(0)
        buffers = [tensor.to(device) for tensor in case.make()]
        expected = case.expected([tensor.cpu() for tensor in buffers])
        source = plugin.emit(case.kernel, "kernel_under_test")
        built = plugin.build([source], FileStore(tmp_path))
        launch(plugin, built.callables["kernel_under_test"], buffers)
        written = [t for t, b in zip(buffers, case.kernel.arguments, strict=True) if b.role in ("out", "inout")]
        for got, want in zip(written, expected, strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=3e-6, atol=2e-6, equal_nan=True, msg=lambda m: f"{m}\n{built.source}")

    def test_emission_is_deterministic(self, plugin: Codegen) -> None:
        for case in CASES:
            if not lacks(case, plugin):
                assert plugin.emit(case.kernel, "k").text == plugin.emit(pickle.loads(pickle.dumps(case.kernel)), "k").text

    def test_many_kernels_are_built_at_once_and_found_again(self, plugin: Codegen, device: str, tmp_path: Path) -> None:
        able = [case for case in CASES if not lacks(case, plugin)][:5]
        sources = [plugin.emit(case.kernel, f"kernel_{number}") for number, case in enumerate(able)]
        first = plugin.build(sources, FileStore(tmp_path))
        again = plugin.build(sources, FileStore(tmp_path))
        assert set(first.callables) == set(again.callables) == {source.name for source in sources}
        assert not first.cached
        assert again.cached
        for number, case in enumerate(able):
            buffers = [tensor.to(device) for tensor in case.make()]
            expected = case.expected([tensor.cpu() for tensor in buffers])
            launch(plugin, again.callables[f"kernel_{number}"], buffers)
            torch.testing.assert_close(buffers[-1].cpu(), expected[-1], rtol=3e-6, atol=2e-6, equal_nan=True)

    @pytest.mark.parametrize("case", GROUPED_CASES, ids=lambda case: case.name)
    def test_grouped_kernel_runs_on_every_set(self, case: GroupedCase, plugin: Codegen, device: str, tmp_path: Path) -> None:
        if "grouped" not in plugin.capabilities.fusions:
            pytest.skip(f"plugin {plugin.name} has no grouped launches")
        assert isinstance(plugin, EmitsGrouped)
        source = plugin.emit_grouped(case.kernel, "grouped_under_test")
        assert source == plugin.emit_grouped(pickle.loads(pickle.dumps(case.kernel)), "grouped_under_test")
        kernel = plugin.build([source], FileStore(tmp_path)).callables["grouped_under_test"]
        torch.manual_seed(0)
        sets = [([tensor.to(device) for tensor in case.make(*sizes)], sizes) for sizes in case.sizes]
        for chosen in (sets, sets[:1], sets[::-1]):
            expected = [case.expected([tensor.cpu() for tensor in buffers], sizes) for buffers, sizes in chosen]
            arguments: list[Any] = []
            for buffers, sizes in chosen:
                arguments += [b.data_ptr() if plugin.capabilities.arguments == "address" else b for b in buffers] + list(sizes)
            kernel(arguments)
            for (buffers, _), wanted in zip(chosen, expected, strict=True):
                written = [t for t, b in zip(buffers, case.kernel.arguments, strict=True) if b.role in ("out", "inout")]
                for got, want in zip(written, wanted, strict=True):
                    torch.testing.assert_close(got.cpu(), want, rtol=3e-6, atol=2e-6)

    def test_empty_build_is_no_error(self, plugin: Codegen, tmp_path: Path) -> None:
        assert dict(plugin.build([], FileStore(tmp_path)).callables) == {}


def lacks(case: KernelCase, plugin: Codegen) -> list[str]:
    """What of the case's needs the plugin does not offer."""
    missing = []
    for need in (*case.needs, *(f"dtypes:{buffer.dtype}" for buffer in case.kernel.buffers)):
        name, _, value = need.partition(":")
        offered = getattr(plugin.capabilities, name)
        if not (value in offered if value else offered):
            missing.append(need)
    return missing


def skip_unless_able(case: KernelCase, plugin: Codegen) -> None:
    missing = lacks(case, plugin)
    if missing:
        pytest.skip(f"plugin {plugin.name} does not offer {', '.join(sorted(set(missing)))}")


def launch(plugin: Codegen, kernel: Callable[..., Any], buffers: list[torch.Tensor]) -> None:
    """Call a built kernel by the launch convention."""
    kernel(*(buffer.data_ptr() if plugin.capabilities.arguments == "address" else buffer for buffer in buffers))
