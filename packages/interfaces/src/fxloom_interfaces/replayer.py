"""What a replayer is: it wraps a compiled callable so that later calls repeat recorded device work.

In: a callable of flat inputs, and what its signature says of them (`ReplaySignature`). Out: a callable of the same convention.
Invariant: the wrapped callable gives what the callable itself would have given; what can't be replayed runs it. A replayer never
needs to know who compiled the callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fxloom_interfaces.errors import PluginVersionError
from fxloom_interfaces.versions import REPLAYER, Version

GROUP = "fxloom.replayers"

FlatCallable = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ReplaySignature:
    """What a replayer must know of `fn(inputs: list) -> sequence`.

    static_inputs: positions whose storage stays in place from call to call (parameters, buffers); they are not copied,
    their addresses are compared. mutated_inputs: positions that `fn` writes to. devices: types of all devices used.
    name: for reports.
    """

    static_inputs: tuple[int, ...] = ()
    mutated_inputs: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    name: str = "graph"


@runtime_checkable
class Replayer(Protocol):
    """A replayer plugin. Importing the object pulls in no torch."""

    @property
    def name(self) -> str: ...

    @property
    def interface(self) -> Version: ...

    @property
    def device_types(self) -> tuple[str, ...]: ...

    def wrap(self, fn: FlatCallable, signature: ReplaySignature) -> FlatCallable:
        """A callable of the same convention that records and replays `fn`.

        Where it can't (a wrong device, unsafe mutation) it runs `fn` and says why by a `ReplaySkipped` event.
        """
        ...


_step = 0


def begin_step() -> None:
    """Count a new step of the program: a training step, a request, a token.

    A replayer that hands out the memory of its recordings may write over the results of a step once the next has begun.
    One that hands out copies has no use for it.
    """
    global _step
    _step += 1


def current_step() -> int:
    """How many steps have begun in this process."""
    return _step


def check_replayer(plugin: Replayer) -> Replayer:
    """`plugin` itself; PluginVersionError when it speaks another major version."""
    if not REPLAYER.accepts(plugin.interface):
        raise PluginVersionError(plugin.name, "replayer interface", plugin.interface, REPLAYER)
    return plugin
