"""Registries: lookup, refusals, conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from fxloom_interfaces import plugins
from fxloom_interfaces.backend import BackendEntry, eager
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.errors import PluginError, PluginVersionError
from fxloom_interfaces.plugins import BACKENDS, Registry, codegens_by_device
from fxloom_interfaces.versions import BACKEND, LOOP_IR, Version


@dataclass(frozen=True)
class Toy:
    name: str = "toy"
    device_types: tuple[str, ...] = ("cpu",)
    loop_ir: Version = LOOP_IR
    capabilities: Capabilities = Capabilities()

    def emit(self, kernel: Any, name: str) -> Any: ...

    def build(self, sources: Any, store: Any) -> Any: ...


def registry(*toys: Toy) -> Registry[Any]:
    made: Registry[Any] = Registry("fxloom.codegen.test", plugins._check_codegen)
    for toy in toys:
        made.register(toy.name, toy)
    return made


def test_builtin_eager_is_found_and_runs() -> None:
    assert "eager" in BACKENDS.names()
    assert BACKENDS.load("eager").load() is eager


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean 'eager'"):
        BACKENDS.load("eagre")


@pytest.mark.parametrize(
    ("speaks", "fix"),
    [(Version(LOOP_IR.major + 1, 0), "upgrade fxloom"), (Version(LOOP_IR.major - 1, 9), "upgrade the plugin")],
)
def test_other_major_version_is_refused_with_both_versions_and_the_fix(speaks: Version, fix: str) -> None:
    with pytest.raises(PluginVersionError, match=fix) as caught:
        registry(Toy(loop_ir=speaks))
    assert str(speaks) in str(caught.value)
    assert str(LOOP_IR) in str(caught.value)


def test_newer_minor_version_is_refused_and_older_is_not() -> None:
    with pytest.raises(PluginVersionError):
        registry(Toy(loop_ir=Version(LOOP_IR.major, LOOP_IR.minor + 1)))
    registry(Toy(loop_ir=Version(LOOP_IR.major, 0)))


def test_what_is_no_plugin_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(PluginError, match="lacks name, device_types"):
        registry().register("x", object())
    with pytest.raises(PluginError, match="a backend is"):
        BACKENDS._check(3, "x")


def test_name_taken_twice_is_refused() -> None:
    with pytest.raises(PluginError, match="already"):
        registry(Toy(), Toy())


def test_two_plugins_for_a_device_need_a_choice() -> None:
    found = registry(Toy(), Toy(name="other"))
    with pytest.raises(PluginError, match="serves device 'cpu'.*options"):
        codegens_by_device(registry=found)
    assert codegens_by_device("other", found)["cpu"].name == "other"


def test_two_distributions_of_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("toy", "a:X", "g"), EntryPoint("toy", "b:X", "g")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    with pytest.raises(PluginError, match=r"two distributions.*a:X.*b:X"):
        Registry("g", plugins._check_codegen).names()


def test_plugin_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint("toy", "no_such_module:X", "g")])
    with pytest.raises(PluginError, match="no_such_module:X can't be imported"):
        Registry("g", plugins._check_codegen).load("toy")


def test_plain_function_is_a_backend_and_other_version_is_not() -> None:
    assert BACKENDS._check(eager, "mine").load() is eager
    with pytest.raises(PluginVersionError):
        BACKENDS._check(BackendEntry("mine", Version(BACKEND.major + 1, 0), lambda: eager), "mine")
