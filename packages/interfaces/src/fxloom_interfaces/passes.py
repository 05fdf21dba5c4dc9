"""Passes of users: functions that change what is compiled, at named points of the way from a captured graph to kernels.

In: a pass and the point where it runs. Out: the passes of a point, in order of registration. Invariant: a pass says by its key what
it does, so that two compilations with the same passes, graphs and options give the same; the keys are part of what identifies
a compiled graph.

Passes that fxloom brings itself are in inductor-core's list, before those of users at "after_aot" and behind them at "before_aot".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError, PluginError

#: point -> what a pass gets there
POINTS = {
    "before_aot": "a GraphModule in the torch dialect, before autograd has seen it",
    "after_aot": "a GraphModule in the aten dialect: a forward, backward or inference graph",
    "loop_ir": "inductor-core's LoweredGraph: loops and library calls in program order, before they are scheduled",
}


@runtime_checkable
class Pass(Protocol):
    """One pass. name: unique at its point; what `disabled_passes` and statistics call it."""

    name: str

    def key(self) -> str:
        """What the pass does, as text: changes whenever it would do something else. A version and its parameters will do."""
        ...

    def __call__(self, graph: Any, /) -> int:
        """Edit `graph` in place (see POINTS for its type); how many changes were made. 0 leaves it as it was.

        A node that is made gets a fake value (`fxloom_interfaces.meta.set_fake`). The graph is verified after a change.
        """
        ...


#: a pass and its point
Placed = tuple[str, Pass]

_registered: list[Placed] = []


def register_pass(point: str, graph_pass: Pass) -> None:
    """Run `graph_pass` at `point` in every compilation from now on, after those that are registered there already.

    ConfigError for an unknown point, PluginError for what is no pass, or when one of this name is registered at the point.
    """
    placed = check_placed(point, graph_pass)
    if any(at == point and known.name == graph_pass.name for at, known in _registered):
        raise PluginError(graph_pass.name, f"a pass of this name is registered at {point!r} already")
    _registered.append(placed)


def unregister_pass(point: str, name: str) -> None:
    """Take back `register_pass`. KeyError where there is none."""
    for place, (at, known) in enumerate(_registered):
        if at == point and known.name == name:
            del _registered[place]
            return
    raise KeyError(f"no pass {name!r} is registered at {point!r}")


def registered_passes() -> tuple[Placed, ...]:
    """All that are registered now, in order."""
    return tuple(_registered)


def placed_passes(given: object) -> tuple[Placed, ...]:
    """`{point: [pass, ...]}`, or pairs, as pairs. ConfigError or PluginError for anything else."""
    if isinstance(given, Mapping):
        pairs: Iterable[Any] = [
            (point, one) for point, some in given.items() for one in (some if isinstance(some, (list, tuple)) else [some])
        ]
    elif isinstance(given, (list, tuple)):
        pairs = given
    else:
        raise ConfigError(f"passes must be a mapping of points to lists of passes, got {type(given).__name__}")
    placed = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ConfigError(f"passes are pairs of a point and a pass, got {pair!r}")
        placed.append(check_placed(*pair))
    return tuple(placed)


def check_placed(point: str, graph_pass: Any) -> Placed:
    """The pair, checked."""
    if point not in POINTS:
        raise ConfigError(f"unknown point {point!r} for a pass{nearest(str(point), list(POINTS))}")
    name = getattr(graph_pass, "name", None)
    if not isinstance(graph_pass, Pass) or not isinstance(name, str) or not name:
        raise PluginError(str(name or type(graph_pass).__name__), "is no pass: it needs a name, a method key() and to be callable")
    key = graph_pass.key()
    if not isinstance(key, str):
        raise PluginError(name, f"key() of a pass returns text, got {type(key).__name__}")
    return point, graph_pass


def key_of_passes(placed: Iterable[Placed]) -> str:
    """The passes as text: point, name and key of each, in order."""
    return "\n".join(f"{point} {one.name} {one.key()}" for point, one in placed)
