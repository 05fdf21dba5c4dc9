"""Warnings are the program's: shown at every call as eager shows them, in its place, and errors where it made them errors."""

import contextlib
import io
import operator
import re
import threading
import types
import warnings

import pytest
import torch
from counted import compared
from torch.nn import functional

from fxloom_dynamo.interpreter.warning_filter import WarningFilter


class Told(UserWarning):
    def __init__(self, text, extra=0):
        super().__init__(text)
        self.extra = extra


class Old:
    @property
    def scale(self):
        warnings.warn("scale is old", FutureWarning, stacklevel=2)
        return 2

    def __index__(self):
        return True


OLD = Old()


def inner(x):
    warnings.warn("inner", stacklevel=2)
    return x.sin()


def warns(x):
    warnings.warn("plain")
    y = x + 1
    warnings.warn(f"{y.shape[0]} rows", DeprecationWarning, stacklevel=2)
    for _ in range(2):
        y = inner(y)
    warnings.warn(Told("told", 5))
    warnings.warn_explicit("explicit", UserWarning, "file.py", 7)
    return y * OLD.scale


def caught(run, calls=2, action="always"):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        for _ in range(calls):
            run(torch.ones(2))
    return [(str(item.message), item.category, item.filename, item.lineno, getattr(item.message, "extra", None)) for item in found]


@pytest.mark.parametrize("action", ["always", "default", "module", "once", "ignore"])
def test_the_programs_warnings_are_shown_in_their_places_without_a_break(action):
    def program(compiled):
        warns.__globals__.pop("__warningregistry__", None)
        return caught(compiled(warns), action=action)

    count = compared(program)
    assert (count.graphs, count.breaks) == (1, [])


def test_warnings_that_are_errors_are_raised_where_they_are_issued():
    def guarded(x):
        y = x + 1
        try:
            warnings.warn("low", RuntimeWarning)
        except RuntimeWarning as error:
            return y * 2, str(error)
        return y, ""

    def program(compiled):
        run = compiled(guarded)
        answers = []
        for action in ("ignore", "error", "ignore", "error"):
            with warnings.catch_warnings():
                warnings.simplefilter(action)
                answers.append((action, [run(torch.ones(2))[1] for _ in range(2)]))
        return answers

    count = compared(program)
    assert (count.graphs, count.breaks) == (2, [])  # one for each meaning of the warning


def test_filters_that_the_program_sets_for_a_block():
    def quiet(x):
        y = x + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("unseen")
        warnings.warn("seen")
        return y * 2

    count = compared(lambda compiled: caught(compiled(quiet)))
    assert count.graphs and not count.breaks


def test_warnings_that_the_program_records_are_a_break():
    def records(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warnings.warn("recorded")
        return x + len(found)

    count = compared(lambda compiled: compiled(records)(torch.ones(2)).tolist())
    assert len(count.breaks) == 1 and count.breaks[0].startswith("warns: ")


def test_c_code_that_warns_is_a_break():
    def asks(x):
        return x + operator.index(OLD), int(x.dim() + 1)

    count = compared(lambda compiled: caught(compiled(asks)))
    assert len(count.breaks) == 1
    assert "warns: DeprecationWarning: __index__ returned non-int (type bool)" in count.breaks[0]
    assert "return x + operator.index(OLD)" in count.breaks[0]


@pytest.mark.parametrize("action", ["always", "error"])
def test_torchs_python_code_warns_in_the_programs_place(action):
    def loses(x):
        return functional.softmax(x) + functional.mse_loss(x, x[:1])

    def program(compiled):
        run = compiled(loses)
        if action == "always":
            return caught(run)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                run(torch.ones(2))
            except UserWarning as error:
                return str(error)

    count = compared(program)
    assert (count.graphs, count.breaks) == (1 if action == "always" else 0, [])


def test_what_capture_does_to_filters_is_not_seen():
    def looks(x):
        return x + len(warnings.filters), warnings.filters[0][0]

    def program(compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = list(warnings.filters)
            answer = compiled(looks)(torch.ones(2))
            return answer[0].tolist(), answer[1], warnings.filters == before

    count = compared(program)
    assert (count.graphs, count.breaks) == (1, [])


def test_other_threads_go_on_warning():
    notes = WarningFilter()
    heap = types.SimpleNamespace(namespace=lambda real: types.SimpleNamespace(behind={}))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with notes.taking(heap):
            thread = threading.Thread(target=lambda: warnings.warn("from a thread"))
            thread.start()
            thread.join()
            warnings.warn("from capture")
    assert [str(item.message) for item in found] == ["from a thread"]
    assert notes.take()[0] == [("from capture", UserWarning)]


def test_a_pattern_that_prints_is_a_break():
    def compiles(x):
        re.compile("a+b", re.DEBUG)
        return x + 1

    def program(compiled):
        run = compiled(compiles)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run(torch.ones(2))
            run(torch.ones(2))
        return out.getvalue()

    count = compared(program)
    assert len(count.breaks) == 1 and "re.DEBUG" in count.breaks[0]


def test_warnings_go_where_the_program_sends_them():
    def redirects(x):
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            warnings.warn("redirected")
        return x + 1, "redirected" in out.getvalue()

    def program(compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            return compiled(redirects)(torch.ones(2))[1]

    assert compared(program).breaks
