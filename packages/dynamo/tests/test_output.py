"""Printing and logging inside compiled code: same texts in the same order, without a break where they show no tensor."""

import contextlib
import functools
import io
import logging

import pytest
import torch

from fxloom_dynamo import capture, optimize
from fxloom_interfaces.errors import Unsupported

logger = logging.getLogger(__name__)


def test_prints_of_texts_and_numbers_are_delayed_in_order(capsys):
    def f(x):
        print("first", x.shape, end="!\n")
        y = x + 1
        for number in range(2):
            print(f"number {number}")
        return y * 2

    found = capture(f, torch.ones(2))
    assert not found.breaks
    assert len(found.graphs) == 1
    captured = capsys.readouterr().out
    f(torch.ones(2))
    assert captured == capsys.readouterr().out


def test_each_call_prints_again(capsys):
    compiled = optimize(fullgraph=True)(lambda x: (print("hello"), x + 1)[1])
    compiled(torch.ones(1))
    compiled(torch.ones(1))
    assert capsys.readouterr().out == "hello\nhello\n"


@pytest.mark.cpu_only("the text names the device")
def test_a_printed_tensor_is_a_break_and_prints_its_values(capsys):
    found = capture(lambda x: (print(x + 1), x * 2)[1], torch.zeros(1))
    assert found.breaks[0].key == "native_call"
    assert capsys.readouterr().out == "tensor([1.])\n"


def test_redirected_output_goes_where_it_should(capsys):
    def f(x):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print("inside")
        print("outside")
        return x + 1, text.getvalue()

    assert optimize()(f)(torch.ones(1))[1] == "inside\n"
    assert capsys.readouterr().out == "outside\n"


@functools.lru_cache(None)
def warn_once(log, text):
    log.warning(text)


def test_logging_is_delayed(caplog):
    def f(x):
        logger.warning("seen %d of %s", 3, "four")
        logger.debug("not shown")
        warn_once(logger, "only once")
        return x + 1

    compiled = optimize(fullgraph=True)(f)
    with caplog.at_level(logging.INFO):
        compiled(torch.ones(1))
        compiled(torch.ones(1))
    assert [record.getMessage() for record in caplog.records] == ["seen 3 of four", "only once", "seen 3 of four"]


class Collecting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Counting(io.StringIO):
    def write(self, text):
        self.writes = getattr(self, "writes", 0) + 1
        return super().write(text)


def test_what_a_handler_or_stream_of_the_program_is_shown_is_a_break():
    handler, logger = Collecting(), logging.getLogger("fxloom.tests.own")
    logger.addHandler(handler)

    def program(x):
        handler.texts.append("mine")
        logger.warning("seen")
        handler.texts.append("after")
        return x + 1

    def prints(x):
        print("one")
        x = x + 1
        print("two")
        return x

    for fn in (program, prints):
        compiled = optimize()(fn)
        with contextlib.redirect_stdout(Counting()) as stream:
            compiled(torch.ones(1))
            compiled(torch.ones(1))
        if fn is prints:
            assert stream.getvalue() == "one\ntwo\n" * 2 and stream.writes == 8
        with pytest.raises(Unsupported, match="is the program's"), contextlib.redirect_stdout(Counting()):
            optimize(fullgraph=True)(fn)(torch.ones(1))
    assert handler.texts[:6] == ["mine", "seen", "after"] * 2
    logger.removeHandler(handler)
