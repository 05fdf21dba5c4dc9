"""Lines of the program's source, for reports.

In: a file name and a line's number. Out: the text of the line. Invariant: `linecache` holds afterwards what it held before, for a
program may look.
"""

from __future__ import annotations

import linecache
from collections import OrderedDict
from typing import Any

_KEPT = 64
#: by file name, least recently used first
_lines: OrderedDict[str, list[str]] = OrderedDict()


def source_line(filename: str, line: int, global_names: dict[str, Any] | None = None) -> str:
    """The text of a line, stripped; "" where there is none. global_names: of its module, whose loader may know the text."""
    known = linecache.cache.get(filename)
    if known is not None and len(known) > 1:
        lines = linecache.getlines(filename)
    elif filename in _lines:
        lines = _lines[filename]
        _lines.move_to_end(filename)
    else:
        lines = linecache.getlines(filename, global_names)
        linecache.cache.pop(filename, None)
        if known is not None:
            linecache.cache[filename] = known  # a promise to read the file when someone asks
        _lines[filename] = lines
        if len(_lines) > _KEPT:
            _lines.popitem(last=False)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
