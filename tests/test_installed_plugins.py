"""What else is installed does not disturb `fxloom.compile(model)`: plugins of strangers, found as pip leaves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fxloom
from fxloom.info import collect_info
from fxloom_interfaces import plugins

pytestmark = pytest.mark.cpu_only("it installs plugins for the CPU")

SECOND = """
from dataclasses import replace
from fxloom_codegen_cpp.plugin import PLUGIN as CPP
from fxloom_interfaces.codegen import Capabilities

class Second:
    name, device_types, loop_ir, capabilities = "second", ("cpu",), CPP.loop_ir, CPP.capabilities
    def emit(self, kernel, name):
        raise AssertionError("nobody asked for it")
    def build(self, sources, store): ...

PLUGIN = Second()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """`install(distribution, group, source)`: a module of that source, as an entry point called like its distribution."""

    def install(name: str, group: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}:PLUGIN\n")
        monkeypatch.syspath_prepend(tmp_path)

    for registry in (plugins.BACKENDS, plugins.CODEGENS, plugins.REPLAYERS):
        monkeypatch.setattr(registry, "_entry_points", None)
        monkeypatch.setattr(registry, "_loaded", {})
        monkeypatch.setattr(registry, "_set_aside", set())
    fxloom.reset()
    return install


def run(**options: object) -> None:
    x = torch.randn(8)
    assert torch.equal(fxloom.compile(lambda x: torch.relu(x) + 1, **options)(x), torch.relu(x) + 1)


def test_a_second_plugin_for_the_cpu_changes_nothing(install: Callable[[str, str, str], None]) -> None:
    install("second", "fxloom.codegen", SECOND)
    run()
    assert set(fxloom.stats().kernels) == {"cpp"}
    with pytest.raises(fxloom.exc.BackendCompilerFailed, match="nobody asked for it"):
        run(options={"codegen": "second"})


@pytest.mark.parametrize("group", ["fxloom.codegen", "fxloom.replayers", "fxloom.backends"])
def test_a_plugin_that_does_not_import_is_told_of_once_and_listed(install: Callable[[str, str, str], None], group: str) -> None:
    install("torn", group, "raise OSError('libtorn.so: no such file')")
    if group == "fxloom.codegen":
        with pytest.warns(fxloom.exc.FallbackWarning, match="torn 1.0.*OSError: libtorn.so: no such file.*pip uninstall torn") as warned:
            run()
            run()
        assert len(warned) == 1
        assert fxloom.stats().fallbacks == {"plugin": 1}
    else:
        run()  # what is loaded by its name alone is not looked at
    assert set(fxloom.stats().kernels) == {"cpp"}
    listed = [line for line in collect_info()["plugins"] if "broken" in line]
    assert len(listed) == 1
    assert "torn 1.0" in listed[0]
    assert "OSError: libtorn.so" in listed[0]


def test_a_plugin_that_does_not_import_is_an_error_where_it_is_asked_for(install: Callable[[str, str, str], None]) -> None:
    install("torn", "fxloom.codegen", "raise OSError('libtorn.so: no such file')")
    with pytest.raises(fxloom.exc.PluginError, match="torn.*can't be imported.*OSError"):
        fxloom.compile(torch.relu, suppress_errors=True, options={"codegen": "torn"})
