"""Reporting: what listeners and the user are told of graph breaks, and of code that runs in eager for good.

In: a `Break`, or a function and the reason. Out: telemetry events, and warnings for what the user has not asked for; Unsupported where
`fullgraph` allows no break. Nothing here decides whether the graph breaks.
"""

from __future__ import annotations

import types

from fxloom_dynamo.breaks import CATALOGUE
from fxloom_dynamo.bytecode.source_lines import source_line
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.evaluation.frame_reports import Break
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import Site, Unsupported


def report_uncaptured(code: types.CodeType, config: CaptureConfig, reason: str) -> None:
    """Report that the function which the user had compiled is of a kind that is never captured; Unsupported with `fullgraph`."""
    report = Break("not_captured", f"{code.co_qualname} is {reason}", place_of(code))
    if config.fullgraph:
        raise Unsupported(str(report))
    report_break(report)


def place_of(code: types.CodeType) -> Site:
    """The first line of a function."""
    line = code.co_firstlineno
    return Site(code.co_filename, line, code.co_qualname, source_line(code.co_filename, line))


def report_break(broke: Break) -> None:
    """Report a break to whoever listens; a fault of capture's own is told to the user too."""
    kind = CATALOGUE.get(broke.key)
    hint = kind.hint if kind else ""
    telemetry.emit(telemetry.GraphBroke(broke.key, broke.details, hint, broke.site))
    if broke.key == "capture_fault":
        where = f"{broke.site.function} ({broke.site.file}:{broke.site.line})" if broke.site is not None else "a function"
        text = f"fxloom made a mistake while it captured {where}, which runs in eager there: {broke.details}. {hint}"
        telemetry.ran_eager("capture_fault", broke.details, text, broke.site)


def warn_of_eager(kind: str, cause: str, site: Site) -> None:
    """Warn of a function that runs in eager from now on. kind: as in `telemetry.RanEager`."""
    text = f"fxloom runs {site.function} ({site.file}:{site.line}) in eager from now on: {cause}"
    telemetry.ran_eager(kind, cause, text, site)
