"""Configuration, telemetry and versions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest

from fxloom_interfaces import telemetry
from fxloom_interfaces.config import from_options, read_environment
from fxloom_interfaces.errors import ConfigError, FallbackWarning, Site
from fxloom_interfaces.versions import Version


@dataclass(frozen=True)
class Options:
    debug: bool = False
    threads: int = 1
    cache_dir: str | None = None


def test_unknown_option_names_the_nearest() -> None:
    assert from_options(Options, {"threads": 3}).threads == 3
    with pytest.raises(ConfigError, match="'thread' for Options; did you mean 'threads'"):
        from_options(Options, {"thread": 3})


def test_environment_is_parsed_by_type() -> None:
    environment = {"FXLOOM_DEBUG": "on", "FXLOOM_THREADS": "4", "FXLOOM_CACHE_DIR": "/x", "FXLOOM_OTHER": "1"}
    assert read_environment(Options, environment) == {"debug": True, "threads": 4, "cache_dir": "/x"}
    assert read_environment(Options, {"FXLOOM_DEBUG": ""}) == {"debug": False}


@pytest.mark.parametrize(("variable", "value"), [("FXLOOM_DEBUG", "perhaps"), ("FXLOOM_THREADS", "many")])
def test_bad_environment_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}='{value}'"):
        read_environment(Options, {variable: value})


def test_listeners_get_events_in_order_and_only_within_the_block() -> None:
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append):
        telemetry.emit(telemetry.FellBack("aten.sort", "no lowering"))
        with pytest.raises(KeyError), telemetry.phase("failing"):
            raise KeyError
    telemetry.emit(telemetry.FellBack("aten.sort", "no lowering"))
    assert [type(event).__name__ for event in events] == ["FellBack", "PhaseEnded"]
    assert isinstance(events[1], telemetry.PhaseEnded)
    assert events[1].seconds >= 0


def test_what_runs_in_eager_is_told_each_time_and_shown_once_a_line() -> None:
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append), warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for line in (3, 3, 7):
            telemetry.ran_eager("backend_failed", "KeyError", "f runs in eager: KeyError", Site("f.py", line, "f"))
    assert [(warning.category, warning.filename, warning.lineno) for warning in shown] == [
        (FallbackWarning, "f.py", 3),
        (FallbackWarning, "f.py", 7),
    ]
    assert events == [telemetry.RanEager("backend_failed", "KeyError", Site("f.py", line, "f")) for line in (3, 3, 7)]


def test_versions() -> None:
    assert Version(1, 2).accepts(Version(1, 0))
    assert not Version(1, 2).accepts(Version(1, 3))
    assert not Version(1, 2).accepts(Version(2, 0))
    assert str(Version(1, 2)) == "1.2"
