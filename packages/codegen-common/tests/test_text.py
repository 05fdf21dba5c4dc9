"""Writer, namer and precedence."""

from __future__ import annotations

import pytest

from fxloom_codegen_common.namer import Namer
from fxloom_codegen_common.text import ADDITIVE, BIT_AND, MULTIPLICATIVE, RELATION, Text, call, infix, prefix
from fxloom_codegen_common.writer import SourceWriter


def test_parentheses_only_where_needed() -> None:
    a, b, c = Text("a"), Text("b"), Text("c")
    total = infix("+", ADDITIVE, a, b)
    assert str(infix("*", MULTIPLICATIVE, total, c)) == "(a + b) * c"
    assert str(infix("+", ADDITIVE, infix("*", MULTIPLICATIVE, a, b), c)) == "a * b + c"
    assert str(infix("-", ADDITIVE, a, infix("-", ADDITIVE, b, c))) == "a - (b - c)"
    assert str(infix("&", BIT_AND, infix("<", RELATION, a, b), c)) == "(a < b) & c"
    assert str(prefix("-", prefix("-", a))) == "- -a"
    assert str(call("f", total, c)) == "f(a + b, c)"


def test_namer_gives_unique_identifiers() -> None:
    namer = Namer(frozenset({"for"}))
    assert [namer.name(n) for n in ("x", "x", "for", "1 + y", "")] == ["x", "x_0", "for_0", "n1_y", "v"]
    assert [namer.numbered("buf") for _ in range(2)] == ["buf0", "buf1"]


def test_indent_is_restored_after_an_error() -> None:
    writer = SourceWriter()
    with pytest.raises(RuntimeError), writer.block("if x {"):
        raise RuntimeError
    writer.line("after")
    assert writer.text().splitlines()[-1] == "after"
