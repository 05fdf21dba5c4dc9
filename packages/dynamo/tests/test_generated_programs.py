"""Programs drawn from a grammar do captured what they do in plain Python: result, exception, arguments afterwards."""

from __future__ import annotations

import contextlib
import os
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from generated import programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import check

from fxloom_dynamo import graph_break
from fxloom_interfaces.errors import FallbackWarning


class Noting:
    """A context that notes its ends and may swallow an exception."""

    def __init__(self, log: list[Any], swallows: type[BaseException] | None = None) -> None:
        self.log = log
        self.swallows = swallows

    def __enter__(self) -> int:
        self.log.append("in")
        return 1

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallows is not None and kind is not None and issubclass(kind, self.swallows)


@contextlib.contextmanager
def noted(log: list[Any]) -> Iterator[int]:
    log.append("begin")
    try:
        yield 1
    finally:
        log.append("done")


def run(text: str, n: int, xs: list[int]) -> None:
    namespace: dict[str, Any] = {"torch": torch, "graph_break": graph_break, "Noting": Noting, "noted": noted, "contextlib": contextlib}
    exec(compile(text, "<generated program>", "exec"), namespace)
    program = namespace["program"]
    assert isinstance(program, types.FunctionType)
    x, y = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.25, -0.5])
    check(program, x, y, n, xs, {"p": 3, "k1": 4}, set(xs[:2]), [])


_QUIET = dict(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@settings(max_examples=2000, **_QUIET)
@given(programs(), st.integers(0, 3), st.lists(st.integers(-2, 5), max_size=4))
def test_generated_program_does_what_python_does(text: str, n: int, xs: list[int]) -> None:
    run(text, n, xs)


#: programs of the slow test, which draws others each time; `nox -s nightly` asks for 100,000
_MANY = int(os.environ.get("FXLOOM_DRAWN_PROGRAMS", "10000"))


@pytest.mark.slow
@settings(max_examples=_MANY, **{**_QUIET, "derandomize": False})
@given(programs(), st.integers(0, 3), st.lists(st.integers(-2, 5), max_size=4))
def test_many_generated_programs_do_what_python_does(text: str, n: int, xs: list[int]) -> None:
    with warnings.catch_warnings():  # a loop with breaks whose numbers change in each round runs eager from its ninth round on
        warnings.filterwarnings("ignore", r"(?s).*\(recompile_limit\)", FallbackWarning)
        run(text, n, xs)
