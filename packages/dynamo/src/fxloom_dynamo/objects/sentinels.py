"""Sentinels that stand for things that are no values of the program, and exceptions of the evaluator itself.

Handlers, semantics and the shadow heap give and take them. None of them may ever be seen by the program: a sentinel that reaches
C code or a graph is a fault of fxloom.
"""

from __future__ import annotations

from typing import Any

from fxloom_interfaces.errors import GraphBreak


class Sentinel:
    """A named singleton. Sentinels compare by identity."""

    __slots__ = ("label",)

    def __init__(self, label: str) -> None:
        self.label = label

    def __repr__(self) -> str:
        return f"<{self.label}>"


#: the NULL of CPython's calling convention on the value stack
NULL = Sentinel("NULL")
#: a slot of a proxy whose original has not been read yet
UNREAD = Sentinel("UNREAD")
#: no such thing (a lookup's answer)
ABSENT = Sentinel("ABSENT")
#: a name that the program deleted from a namespace that capture only overlays
DELETED = Sentinel("DELETED")


class Raised(BaseException):
    """The program raised `exc`. Carries it through the evaluator, so that our own faults are never taken for it."""

    def __init__(self, exc: BaseException, settled: bool = False) -> None:
        """settled: raised before; its context stays what it is."""
        super().__init__(exc)
        self.exc = exc
        self.settled = settled


class RestartCapture(GraphBreak):
    """What this attempt learned makes the next one go on where it stopped: capture starts again, with no break."""

    def __init__(self, details: str) -> None:
        super().__init__("capture_fault", f"captured again for {details}, to no avail")


class Traceback:
    """Stands for the traceback of an exception that the program raised while capturing."""

    __slots__ = ()


class Address(int):
    """`id()` of an object that the program made: known to be its own, but not which number it would have been."""

    __slots__ = ()


class FrameObject:
    """Stands for a frame of the program (`sys._getframe()`)."""

    __slots__ = ("depth", "frame")

    def __init__(self, frame: Any, depth: int) -> None:
        self.frame = frame
        self.depth = depth


def own_dict(obj: Any) -> dict[str, Any]:
    """An instance's `__dict__`, whatever `__getattribute__` its class defines."""
    try:
        return object.__getattribute__(obj, "__dict__")  # type: ignore[no-any-return]  # a dict
    except AttributeError:  # type variables of CPython 3.12 and later hide it, and keep in it where they were made
        return {"__module__": obj.__module__}


#: what a handler returns to leave the loop
RETURN = Sentinel("RETURN")
YIELD = Sentinel("YIELD")
