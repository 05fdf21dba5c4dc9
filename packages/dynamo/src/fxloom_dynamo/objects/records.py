"""What the shadow heap knows of one object that existed before the frame (`Record`), or of one namespace (`Namespace`).

The shadow heap makes them as the program reaches objects; `program_changes` compares them with the proxies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fxloom_dynamo.objects.sentinels import DELETED
from fxloom_interfaces.sources import Source


@dataclass(slots=True, eq=False)
class Record:
    """One original and its proxy.

    kind: `instance`, a container base's name, `tuple`, `tensor`, `cell` or `opaque` (stands for itself).
    read: contents as they were read, by key or index; what differs from them was written by the program.
    keys: of a dict in original order. filled: nothing is UNREAD any more, and the whole contents are guarded.
    listed: of a dict with keys that have proxies (tensors, say): the source of its values in order; number and identity
    of all keys are guarded then.
    slots: what C descriptors keep, by name, as it was read; UNREAD where the program wrote without reading.
    """

    original: Any
    proxy: Any
    source: Source
    kind: str
    read: dict[Any, Any] = field(default_factory=dict)
    keys: tuple[Any, ...] = ()
    filled: bool = False
    sources: list[Source] = field(default_factory=list)
    listed: Source | None = None
    slots: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Namespace:
    """A dict that can't be replaced (a module's globals): reads are cached, writes kept aside.

    behind: what the program would find under a name where capture has put something else.
    """

    real: dict[str, Any]
    source: Source
    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)
    behind: dict[str, Any] = field(default_factory=dict)

    def set(self, name: str, value: Any) -> None:
        if self.real is self.values:  # a dict of the program's own
            if value is DELETED:
                del self.values[name]
            else:
                self.values[name] = value
            return
        self.values[name] = value
        self.written[name] = None
