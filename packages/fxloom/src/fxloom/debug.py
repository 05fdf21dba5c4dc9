"""The debug folder: every artefact of one compilation, written under the names of docs/architecture.md.

In: telemetry's `ArtifactWritten` events. Out: files, in one sub-folder per compiled graph, numbered in order.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fxloom_interfaces import telemetry

_numbers = itertools.count()
_lock = threading.Lock()


class DebugFolder:
    """Writes artefacts below `root`. A name that comes again starts the next graph's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / f"run_{os.getpid()}"
        self._folder: Path | None = None
        self._written: set[str] = set()

    def __call__(self, event: telemetry.Event) -> None:
        if not isinstance(event, telemetry.ArtifactWritten):
            return
        with _lock:
            if self._folder is None or event.name in self._written:
                self._folder = self.root / f"graph_{next(_numbers):03}"
                self._folder.mkdir(parents=True, exist_ok=True)
                self._written = set()
            self._written.add(event.name)
            (self._folder / event.name).write_text(event.text)


@contextmanager
def debug_folder(root: Path) -> Iterator[DebugFolder]:
    """Write what is compiled within the block below `root`."""
    folder = DebugFolder(root)
    with telemetry.listen(folder, artifacts=True):
        yield folder
