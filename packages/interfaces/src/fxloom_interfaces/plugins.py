"""Finding plugins. One entry-point group per interface; looked up on first use, loaded only when asked for.

A registry takes plugins directly too (tests, applications); these win over installed ones of the same name.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fxloom_interfaces import backend, codegen, replayer
from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError, PluginError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """An installed plugin: its entry point's name and value, and the distribution that brings it."""

    group: str
    name: str
    value: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.group}: {self.name} = {self.value} ({self.distribution})"


class Registry(Generic[T]):
    """The plugins of one group. check: refuses what is no plugin of the interface, by PluginError."""

    def __init__(self, group: str, check: Callable[[Any, str], T]) -> None:
        self.group = group
        self._check = check
        self._entry_points: dict[str, importlib.metadata.EntryPoint] | None = None
        self._loaded: dict[str, T] = {}

    def register(self, name: str, plugin: Any) -> None:
        """Add `plugin` under `name` for this process. PluginError when the name is registered already."""
        if name in self._loaded:
            raise PluginError(name, f"is registered in group {self.group} already")
        self._loaded[name] = self._check(plugin, name)

    def unregister(self, name: str) -> None:
        """Take back `register`."""
        del self._loaded[name]

    def names(self) -> tuple[str, ...]:
        """All names, sorted; loads nothing."""
        return tuple(sorted(self._found().keys() | self._loaded.keys()))

    def load(self, name: str) -> T:
        """The plugin called `name`. PluginError when there is none or it can't be imported or is refused."""
        if name not in self._loaded:
            entry_point = self._found().get(name)
            if entry_point is None:
                raise PluginError(name, f"not found in group {self.group}{nearest(name, list(self.names()))}")
            try:
                plugin = entry_point.load()
            except Exception as error:
                raise PluginError(name, f"{entry_point.value} can't be imported: {type(error).__name__}: {error}") from error
            self._loaded[name] = self._check(plugin, name)
        return self._loaded[name]

    def load_all(self) -> Mapping[str, T]:
        """All plugins by name."""
        return {name: self.load(name) for name in self.names()}

    def found(self) -> tuple[Found, ...]:
        """What is installed, loaded or not."""
        return tuple(
            Found(self.group, name, point.value, _distribution(point)) for name, point in sorted(self._found().items())
        )

    def _found(self) -> dict[str, importlib.metadata.EntryPoint]:
        if self._entry_points is None:
            points: dict[str, importlib.metadata.EntryPoint] = {}
            for point in importlib.metadata.entry_points(group=self.group):
                other = points.get(point.name)
                if other is not None and (other.value, _distribution(other)) != (point.value, _distribution(point)):
                    raise PluginError(
                        point.name,
                        f"two distributions bring it in group {self.group}: {_distribution(other)} ({other.value}) and "
                        f"{_distribution(point)} ({point.value}); uninstall one of them",
                    )
                points[point.name] = point
            self._entry_points = points
        return self._entry_points


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown distribution"


def _check_codegen(plugin: Any, name: str) -> codegen.Codegen:
    missing = [member for member in ("name", "device_types", "loop_ir", "capabilities", "emit", "build") if not hasattr(plugin, member)]
    if missing:
        raise PluginError(name, f"is no code generator: it lacks {', '.join(missing)}")
    return codegen.check_codegen(plugin)


def _check_replayer(plugin: Any, name: str) -> replayer.Replayer:
    missing = [member for member in ("name", "interface", "device_types", "wrap") if not hasattr(plugin, member)]
    if missing:
        raise PluginError(name, f"is no replayer: it lacks {', '.join(missing)}")
    return replayer.check_replayer(plugin)


BACKENDS: Registry[backend.BackendEntry] = Registry(backend.GROUP, backend.check_backend)
CODEGENS: Registry[codegen.Codegen] = Registry(codegen.GROUP, _check_codegen)
REPLAYERS: Registry[replayer.Replayer] = Registry(replayer.GROUP, _check_replayer)


def codegens_by_device(prefer: str | None = None, registry: Registry[codegen.Codegen] = CODEGENS) -> dict[str, codegen.Codegen]:
    """The code generator of each device type. prefer: name of the one that wins where several serve a device.

    PluginError when two serve one device and neither is preferred.
    """
    by_device: dict[str, codegen.Codegen] = {}
    if prefer is not None:
        chosen = registry.load(prefer)
        by_device = dict.fromkeys(chosen.device_types, chosen)
    settled = set(by_device)
    for plugin in registry.load_all().values():
        for device in plugin.device_types:
            if device in settled:
                continue
            other = by_device.setdefault(device, plugin)
            if other is not plugin:
                raise PluginError(
                    plugin.name,
                    f"serves device {device!r}, and so does plugin {other.name!r}; choose with options={{'codegen': {plugin.name!r}}}",
                )
    return by_device


def backend_function(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """The backend that a user names or gives. PluginError for a name that nobody registered, ConfigError for anything else."""
    function = BACKENDS.load(given).load() if isinstance(given, str) else given
    if not callable(function):
        raise ConfigError(f"backend must be a name or a function (gm, example_inputs) -> callable, got {type(given).__name__}")
    return function
