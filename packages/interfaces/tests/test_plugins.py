"""Registries: lookup, refusals, conflicts."""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fxloom_interfaces import plugins, telemetry
from fxloom_interfaces.backend import BackendEntry, eager
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.errors import FallbackWarning, PluginError, PluginVersionError
from fxloom_interfaces.plugins import BACKENDS, OWN_DISTRIBUTIONS, Registry, codegens_by_device
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
        Registry("g", plugins._check_codegen).load("toy")


def test_plugin_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint("toy", "no_such_module:X", "g")])
    with pytest.raises(PluginError, match="no_such_module:X can't be imported"):
        Registry("g", plugins._check_codegen).load("toy")


def test_plain_function_is_a_backend_and_other_version_is_not() -> None:
    assert BACKENDS._check(eager, "mine").load() is eager
    with pytest.raises(PluginVersionError):
        BACKENDS._check(BackendEntry("mine", Version(BACKEND.major + 1, 0), lambda: eager), "mine")


# ---- what is installed beside fxloom's own -----------------------------------------------------------------------------------


class Installed(Distribution):
    """A distribution that is there by name alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def metadata(self) -> Any:
        return {"Name": self._name, "Version": "1.0"}

    def read_text(self, filename: str) -> None: ...

    def locate_file(self, path: Any) -> Any: ...


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[Any]]:
    """`install(("dist", "name", plugin), ...)`: a registry of these entry points; a plugin that is an exception is raised by the import."""

    def install(*given: tuple[str, str, Any]) -> Registry[Any]:
        points = []
        for number, (distribution, name, plugin) in enumerate(given):
            module = ModuleType(f"installed_{number}")
            if isinstance(plugin, BaseException):

                def refuse(attribute: str, error: BaseException = plugin) -> Any:
                    if attribute == "PLUGIN":
                        raise error
                    raise AttributeError(attribute)

                module.__getattr__ = refuse  # type: ignore[method-assign]
            else:
                module.PLUGIN = plugin  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
            point = EntryPoint(name, f"{module.__name__}:PLUGIN", "g")
            points.append(point._for(Installed(distribution)))  # type: ignore[attr-defined]  # as importlib does
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
        return Registry("g", plugins._check_codegen)

    return install


OWN = ("fxloom-codegen-cpp", "cpp", Toy(name="cpp"))
BROKEN: dict[str, tuple[Any, str]] = {
    "an import that raises": (ImportError("no libnpu.so"), "ImportError: no libnpu.so"),
    "an import that fails in its own way": (KeyError("HOME"), "KeyError: 'HOME'"),
    "an import that exits": (SystemExit(3), "SystemExit: 3"),
    "another major version": (Toy(name="theirs", loop_ir=Version(LOOP_IR.major + 1, 0)), "upgrade fxloom"),
    "a version that is none": (Toy(name="theirs", loop_ir="1.0"), "is no plugin of g"),  # type: ignore[arg-type]
    "an object that is no plugin": (SimpleNamespace(name="theirs"), "lacks device_types"),
    "one text for device_types": (Toy(name="theirs", device_types="cpu"), "must be a tuple"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("others", [(), ("another",), ("another", "a third")])
def test_fxlooms_own_plugin_is_the_default(install: Callable[..., Registry[Any]], others: tuple[str, ...]) -> None:
    found = install(*((f"{name}-dist", name, Toy(name=name)) for name in others), OWN)
    assert codegens_by_device(None, found)["cpu"].name == "cpp"
    for name in others:
        assert codegens_by_device(name, found)["cpu"].name == name


def test_a_plugin_for_a_device_of_its_own_needs_no_choice(install: Callable[..., Registry[Any]]) -> None:
    found = codegens_by_device(None, install(("npu-dist", "npu", Toy(name="npu", device_types=("npu", "cpu"))), OWN))
    assert {device: plugin.name for device, plugin in found.items()} == {"cpu": "cpp", "npu": "npu"}


def test_strangers_that_serve_one_device_are_an_error_where_it_is_needed(install: Callable[..., Registry[Any]]) -> None:
    npu = Toy(name="one", device_types=("npu",))
    found = install(("one-dist", "one", npu), ("two-dist", "two", replace(npu, name="two")), OWN)
    assert list(codegens_by_device(None, found)) == ["cpu"]
    with pytest.raises(PluginError, match=r"'one'.*'npu'.*'two'.*options=\{'codegen': 'one'\} or 'two'"):
        codegens_by_device(None, found).get("npu")
    assert codegens_by_device("two", found)["npu"].name == "two"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_set_aside_with_one_warning(install: Callable[..., Registry[Any]], kind: str) -> None:
    plugin, why = BROKEN[kind]
    found = install(("their_dist", "theirs", plugin), OWN)
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append), pytest.warns(FallbackWarning) as warned:
        for _ in range(3):
            assert codegens_by_device(None, found)["cpu"].name == "cpp"
    (warning,) = warned
    assert all(part in str(warning.message) for part in ("their_dist 1.0", why, "pip uninstall their_dist")), str(warning.message)
    assert [event.kind for event in events if isinstance(event, telemetry.RanEager)] == ["plugin"]
    for _ in range(2):
        with pytest.raises(PluginError, match="theirs"):
            codegens_by_device("theirs", found)
    assert codegens_by_device("cpp", found)["cpu"].name == "cpp"


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_is_listed_with_the_cause(install: Callable[..., Registry[Any]], kind: str) -> None:
    plugin, why = BROKEN[kind]
    own, theirs = install(("their_dist", "theirs", plugin), OWN).examine()
    assert (own.broken, str(own)) == ("", "g: cpp = installed_1:PLUGIN (fxloom-codegen-cpp 1.0)")
    assert why in theirs.broken
    assert f"(their_dist 1.0), broken: {theirs.broken}" in str(theirs)


def test_a_stranger_with_the_name_of_fxlooms_own_is_set_aside(install: Callable[..., Registry[Any]]) -> None:
    found = install(("their_dist", "cpp", Toy(name="theirs")), OWN)
    with pytest.warns(FallbackWarning, match="their_dist 1.0.*fxloom-codegen-cpp 1.0 brings one of this name.*uninstall their_dist"):
        assert found.load("cpp").name == "cpp"
    assert codegens_by_device(None, found)["cpu"].name == "cpp"
    assert [bool(listed.broken) for listed in found.examine()] == [False, True]


def test_strangers_of_one_name_are_set_aside_until_asked_for(install: Callable[..., Registry[Any]]) -> None:
    found = install(("one-dist", "same", Toy(name="same")), ("two-dist", "same", Toy(name="same")), OWN)
    assert found.names() == ("cpp", "same")
    with pytest.warns(FallbackWarning, match=r"two distributions.*one-dist 1\.0.*two-dist 1\.0") as warned:
        assert codegens_by_device(None, found)["cpu"].name == "cpp"
    assert len(warned) == 2, "one for each"
    with pytest.raises(PluginError, match="two distributions"):
        codegens_by_device("same", found)


def test_a_registered_plugin_stands_in_the_place_of_the_installed_one(install: Callable[..., Registry[Any]]) -> None:
    found = install(OWN)
    found.register("mine", Toy(name="mine"))
    found.register("cpp", Toy(name="other"))
    assert codegens_by_device(None, found)["cpu"].name == "other"


def test_a_broken_plugin_of_ours_leaves_the_device_to_who_serves_it(install: Callable[..., Registry[Any]]) -> None:
    found = install(("fxloom-codegen-cpp", "cpp", ImportError("torn")), ("their_dist", "theirs", Toy(name="theirs")))
    with pytest.warns(FallbackWarning, match="torn"):
        assert codegens_by_device(None, found)["cpu"].name == "theirs"


def test_own_distributions_are_those_that_bring_plugins() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in Path(__file__).parents[2].glob("*/pyproject.toml")]
    bring = {p["name"] for p in projects if any(group.startswith("fxloom.") for group in p.get("entry-points", {}))}
    assert bring == OWN_DISTRIBUTIONS


def test_the_installed_plugins_of_fxloom_are_sound() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugins.CODEGENS.load_usable()
