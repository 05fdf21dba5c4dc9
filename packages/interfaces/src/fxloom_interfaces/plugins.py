"""Finding plugins. One entry-point group per interface; looked up on first use, loaded only when asked for.

A registry takes plugins directly too (tests, applications); these win over installed ones of the same name. An installed plugin
must not affect programs that do not name it: fxloom's own plugins are the defaults, and a plugin that can't be used is skipped with
a warning. It is an error only where the user names it.

In: entry points of installed distributions, and plugins that are registered by hand. Out: the plugin of a name, checked.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fxloom_interfaces import backend, codegen, replayer, telemetry
from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError, PluginError

T = TypeVar("T")

#: the distributions of fxloom itself that bring plugins; these are the defaults
OWN_DISTRIBUTIONS = frozenset({"fxloom", "fxloom-interfaces", "fxloom-codegen-cpp", "fxloom-codegen-triton", "fxloom-cudagraphs"})


@dataclass(frozen=True, slots=True)
class Found:
    """An installed plugin: its entry point's name and value, and the distribution that brings it. broken: why it can't be used."""

    group: str
    name: str
    value: str
    distribution: str
    broken: str = ""

    def __str__(self) -> str:
        text = f"{self.group}: {self.name} = {self.value} ({self.distribution})"
        return f"{text}, broken: {self.broken}" if self.broken else text


class Registry(Generic[T]):
    """The plugins of one group. check: refuses what is not a plugin of the interface, by PluginError."""

    def __init__(self, group: str, check: Callable[[Any, str], T]) -> None:
        self.group = group
        self._check = check
        self._entry_points: dict[str, list[importlib.metadata.EntryPoint]] | None = None
        self._loaded: dict[str, T] = {}
        self._set_aside: set[tuple[str, str]] = set()  # names and values of entry points that were warned of

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
            points = self._found().get(name)
            if points is None:
                raise PluginError(name, f"not found in group {self.group}{nearest(name, list(self.names()))}")
            self._loaded[name] = self._load(self._chosen(points))
            for other in points[1:]:
                self._set_aside_once(other, PluginError(name, f"{_distribution(points[0])} brings one of this name, which is used"))
        return self._loaded[name]

    def load_usable(self) -> Mapping[str, T]:
        """All plugins that can be used, by name. Each other one is set aside, with a FallbackWarning when that is first seen."""
        usable: dict[str, T] = {}
        for name in self.names():
            try:
                usable[name] = self.load(name)
            except PluginError as error:
                for point in self._found()[name]:
                    self._set_aside_once(point, error)
        return usable

    def is_own(self, name: str) -> bool:
        """Whether the plugin called `name` is fxloom's, or was registered in the place of such a one."""
        return any(map(_is_own, self._found().get(name, ())))

    def found(self) -> tuple[Found, ...]:
        """What is installed, loaded or not."""
        return tuple(self._describe(point) for _, points in sorted(self._found().items()) for point in points)

    def examine(self) -> tuple[Found, ...]:
        """As `found`, with what is wrong with each plugin; loads all of them, and warns of none."""
        return tuple(self._describe(point, self._trouble(point)) for _, points in sorted(self._found().items()) for point in points)

    def _found(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        """Entry points by name; more than one where distributions bring the same name, fxloom's own first."""
        if self._entry_points is None:
            points: dict[str, list[importlib.metadata.EntryPoint]] = {}
            for point in importlib.metadata.entry_points(group=self.group):
                known = points.setdefault(point.name, [])
                if all((other.value, _distribution(other)) != (point.value, _distribution(point)) for other in known):
                    known.append(point)
            for known in points.values():
                known.sort(key=lambda point: (not _is_own(point), _distribution(point), point.value))
            self._entry_points = points
        return self._entry_points

    def _chosen(self, points: list[importlib.metadata.EntryPoint]) -> importlib.metadata.EntryPoint:
        """fxloom's own or the only one; PluginError where strangers bring the same name, which nobody can choose by."""
        first, *others = points
        if others and not _is_own(first):
            brought = " and ".join(f"{_distribution(point)} ({point.value})" for point in points)
            raise PluginError(first.name, f"two distributions bring it in group {self.group}: {brought}; uninstall one of them")
        return first

    def _load(self, point: importlib.metadata.EntryPoint) -> T:
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            text = f"{point.value} can't be imported ({_distribution(point)}): {type(error).__name__}: {error}"
            raise PluginError(point.name, text) from error
        try:
            return self._check(plugin, point.name)
        except PluginError:
            raise
        except Exception as error:
            text = f"{point.value} is no plugin of {self.group} ({_distribution(point)}): {type(error).__name__}: {error}"
            raise PluginError(point.name, text) from error

    def _trouble(self, point: importlib.metadata.EntryPoint) -> str:
        try:
            self._chosen(self._found()[point.name])
            self._load(point)
        except PluginError as error:
            return str(error)
        used = self._found()[point.name][0]
        return "" if point is used else f"not used, since {_distribution(used)} brings one of this name"

    def _describe(self, point: importlib.metadata.EntryPoint, broken: str = "") -> Found:
        return Found(self.group, point.name, point.value, _distribution(point), broken)

    def _set_aside_once(self, point: importlib.metadata.EntryPoint, error: PluginError) -> None:
        if (point.name, point.value) in self._set_aside:
            return
        self._set_aside.add((point.name, point.value))
        name = point.dist.name if point.dist is not None else "the distribution that brings it"
        text = f"fxloom leaves out {self._describe(point)}: {error}. Mend it, or remove it: pip uninstall {name}"
        telemetry.ran_eager("plugin", str(error), text)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown distribution"


def _is_own(point: importlib.metadata.EntryPoint) -> bool:
    return point.dist is not None and re.sub(r"[-_.]+", "-", point.dist.name).lower() in OWN_DISTRIBUTIONS


def _check_codegen(plugin: Any, name: str) -> codegen.Codegen:
    missing = [member for member in ("name", "device_types", "loop_ir", "capabilities", "emit", "build") if not hasattr(plugin, member)]
    if missing:
        raise PluginError(name, f"is no code generator: it lacks {', '.join(missing)}")
    if isinstance(plugin.device_types, str) or not all(isinstance(device, str) for device in plugin.device_types):
        raise PluginError(name, f"device_types must be a tuple of names, got {plugin.device_types!r}")
    return codegen.check_codegen(plugin)


def _check_replayer(plugin: Any, name: str) -> replayer.Replayer:
    missing = [member for member in ("name", "interface", "device_types", "wrap") if not hasattr(plugin, member)]
    if missing:
        raise PluginError(name, f"is no replayer: it lacks {', '.join(missing)}")
    return replayer.check_replayer(plugin)


BACKENDS: Registry[backend.BackendEntry] = Registry(backend.GROUP, backend.check_backend)
CODEGENS: Registry[codegen.Codegen] = Registry(codegen.GROUP, _check_codegen)
REPLAYERS: Registry[replayer.Replayer] = Registry(replayer.GROUP, _check_replayer)


class CodegensByDevice(Mapping[str, codegen.Codegen]):
    """Code generator by device type. A device that several serve, of which none is the default, is an error when it is needed.

    Iterating leaves such devices out.
    """

    def __init__(self, chosen: Mapping[str, codegen.Codegen], contested: Mapping[str, tuple[str, ...]]) -> None:
        self._chosen = chosen
        self._contested = contested

    def __getitem__(self, device: str) -> codegen.Codegen:
        """PluginError, with the names to choose from, for a contested device."""
        names = self._contested.get(device)
        if names is not None:
            raise PluginError(
                names[0],
                f"serves device {device!r}, and so does {' and '.join(f'plugin {name!r}' for name in names[1:])}; "
                f"choose with options={{'codegen': {names[0]!r}}} or {' or '.join(map(repr, names[1:]))}",
            )
        return self._chosen[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen)

    def __len__(self) -> int:
        return len(self._chosen)


def codegens_by_device(prefer: str | None = None, registry: Registry[codegen.Codegen] = CODEGENS) -> CodegensByDevice:
    """The code generator of each device type: the one that is called `prefer`, else fxloom's own, else the only one.

    PluginError when there is no usable plugin `prefer`, and when a choice is needed for every device. Other plugins that can't
    be used are set aside with a warning.
    """
    named = registry.load(prefer) if prefer is not None else None
    plugins = registry.load_usable()
    serving: dict[str, list[str]] = {}
    for name, plugin in plugins.items():
        for device in plugin.device_types:
            serving.setdefault(device, []).append(name)
    chosen: dict[str, codegen.Codegen] = {}
    contested: dict[str, tuple[str, ...]] = {}
    for device, names in serving.items():
        candidates = [name for name in names if registry.is_own(name)] or names
        if named is not None and device in named.device_types:
            chosen[device] = named
        elif len(candidates) == 1:
            chosen[device] = plugins[candidates[0]]
        else:
            contested[device] = tuple(candidates)
    found = CodegensByDevice(chosen, contested)
    if contested and not chosen:
        found[next(iter(contested))]  # raises
    return found


def backend_function(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """The backend that a user names or gives. PluginError for a name that nobody registered, ConfigError for anything else."""
    function = BACKENDS.load(given).load() if isinstance(given, str) else given
    if not callable(function):
        raise ConfigError(f"backend must be a name or a function (gm, example_inputs) -> callable, got {type(given).__name__}")
    return function
