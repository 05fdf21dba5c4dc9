"""The assembler is proven by a round trip of the standard library, emitted snippets by running them."""

from __future__ import annotations

import os
import pathlib
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from fxloom_dynamo.bytecode import AssemblyError, Body, Instruction, assemble, disassemble, snippets

LIBRARY = sorted(
    path
    for path in pathlib.Path(os.__file__).parent.rglob("*.py")
    if not {"site-packages", "lib2to3"} & set(path.parts) and "bad" not in path.name
)


def codes_of(path: pathlib.Path) -> Iterator[types.CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test suite's own files hold deprecated syntax on purpose
        try:
            todo = [compile(path.read_bytes(), str(path), "exec")]
        except (SyntaxError, ValueError):
            return
    while todo:
        code = todo.pop()
        yield code
        todo.extend(const for const in code.co_consts if isinstance(const, types.CodeType))


def symbolic(code: types.CodeType) -> list[Any]:
    """What `code` means, independent of layout: needless EXTENDED_ARGs and merged constants don't show."""
    body = disassemble(code)
    index = {id(inst): number for number, inst in enumerate(body.instructions)}
    return [
        (i.opname, i.arg, repr(i.argval), i.push_null, None if i.target is None else index[id(i.target)], i.position)
        for i in body.instructions
    ] + [(index[id(r.start)], index[id(r.end)], index[id(r.handler)], r.depth, r.lasti) for r in body.regions]


def check_round_trip(paths: list[pathlib.Path]) -> int:
    count = 0
    for path in paths:
        for code in codes_of(path):
            try:
                again = assemble(disassemble(code, split_pairs=False), code)
            except AssemblyError as error:
                assert "both a cell and a free variable" in str(error), (path, code.co_qualname)
                continue
            assert symbolic(again) == symbolic(code), (path, code.co_qualname)
            assert again.co_stacksize <= code.co_stacksize, (path, code.co_qualname)
            split = assemble(disassemble(code), code)  # 3.13's pairs written as single instructions
            assert symbolic(split) == symbolic(code), (path, code.co_qualname)
            count += 1
    return count


def test_round_trip_of_a_sample_of_the_standard_library() -> None:
    assert check_round_trip(LIBRARY[::40]) > 400  # code objects; some distributions leave the library's tests out


@pytest.mark.slow
def test_round_trip_of_the_whole_standard_library() -> None:
    assert check_round_trip(LIBRARY) > 50_000


def template(a: Any, b: Any) -> None:
    """Kept as constant 0."""


def run(instructions: list[Instruction], *args: Any) -> Any:
    code = assemble(Body(snippets.prologue() + instructions), template.__code__)
    assert code.co_consts[0] == "Kept as constant 0."
    return types.FunctionType(code, {})(*args)


def test_calls() -> None:
    a, b = snippets.load_fast("a"), snippets.load_fast("b")
    end = snippets.return_value()
    assert run(snippets.push_callable(snippets.load_const(max)) + a + b + snippets.call(2) + end, 3, 4) == 4
    named = snippets.push_callable(snippets.load_const(sorted)) + a + b + snippets.call(1, ("reverse",)) + end
    assert run(named, [1, 2], True) == [2, 1]
    assert run(snippets.push_callable(snippets.load_const(max)) + a + snippets.call_star() + end, (3, 5), 4) == 5
    kwargs = snippets.load_const("key") + b + snippets.build_map(1)
    assert run(snippets.load_const(max) + snippets.push_null_below() + a + kwargs + snippets.call_star(True) + end, (3, -5), abs) == -5


def test_backward_conditional_jump() -> None:
    head = snippets.load_fast("a")
    step = [*snippets.load_const(1), Instruction("BINARY_OP", argval="-="), *snippets.store_fast("a")]
    loop = head + step + snippets.load_fast("a") + snippets.to_bool() + snippets.jump_if(True, head[0])
    assert run(loop + snippets.load_fast("a") + snippets.return_value(), 5, 0) == 0


def test_far_jump_takes_extended_args() -> None:
    end = snippets.load_const("end")
    padding = [inst for _ in range(70_000) for inst in (*snippets.load_const(1), *snippets.pop())]
    assert run(snippets.jump(end[0]) + padding + end + snippets.return_value(), 1, 2) == "end"


def test_constants_of_different_type_stay_apart() -> None:
    values = (1, 1.0, True, 0.0, -0.0, (1,), (1.0,), (True,))
    load = [inst for value in values for inst in snippets.load_const(value)]
    result = run([*load, *snippets.build_tuple(len(values)), *snippets.return_value()], 1, 2)
    assert [repr(value) for value in result] == [repr(value) for value in values]


def test_closures_can_be_made() -> None:
    def outer() -> Any:
        cell = 7

        def inner() -> Any:
            return cell

        return inner

    inner_code = next(const for const in outer.__code__.co_consts if isinstance(const, types.CodeType))
    body = [
        *snippets.prologue(cells=("cell",)),
        *snippets.load_const(11), *snippets.store_deref("cell"),
        *snippets.make_function(inner_code, closure=("cell",)), *snippets.return_value(),
    ]  # fmt: skip
    function = types.FunctionType(assemble(Body(body), outer.__code__), {})()
    assert function() == 11


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (snippets.pop() + snippets.return_value(), "takes more than the stack holds"),
        (snippets.load_fast("nobody") + snippets.return_value(), "no variable 'nobody'"),
        (snippets.load_const(1), "runs off the end"),
        (snippets.jump(Instruction("NOP")), "is not in the body"),
        ([Instruction("NO_SUCH_OPCODE"), *snippets.return_value()], "has no opcode"),
    ],
)
def test_bad_bodies_are_refused(body: list[Instruction], message: str) -> None:
    with pytest.raises(AssemblyError, match=message):
        assemble(Body(snippets.prologue() + body), template.__code__)
