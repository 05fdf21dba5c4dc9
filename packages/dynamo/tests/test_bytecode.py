"""The assembler is proven by a round trip of the standard library, emitted snippets by running them."""

from __future__ import annotations

import os
import pathlib
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from fxloom_dynamo.bytecode import AssemblyError, Body, Instruction, assemble, disassemble, emit

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
    code = assemble(Body(emit.prologue() + instructions), template.__code__)
    assert code.co_consts[0] == "Kept as constant 0."
    return types.FunctionType(code, {})(*args)


def test_calls() -> None:
    a, b = emit.load_fast("a"), emit.load_fast("b")
    end = emit.return_value()
    assert run(emit.push_callable(emit.load_const(max)) + a + b + emit.call(2) + end, 3, 4) == 4
    named = emit.push_callable(emit.load_const(sorted)) + a + b + emit.call(1, ("reverse",)) + end
    assert run(named, [1, 2], True) == [2, 1]
    assert run(emit.push_callable(emit.load_const(max)) + a + emit.call_star() + end, (3, 5), 4) == 5
    kwargs = emit.load_const("key") + b + emit.build_map(1)
    assert run(emit.load_const(max) + emit.push_null_below() + a + kwargs + emit.call_star(True) + end, (3, -5), abs) == -5


def test_backward_conditional_jump() -> None:
    head = emit.load_fast("a")
    step = [*emit.load_const(1), Instruction("BINARY_OP", argval="-="), *emit.store_fast("a")]
    loop = head + step + emit.load_fast("a") + emit.to_bool() + emit.jump_if(True, head[0])
    assert run(loop + emit.load_fast("a") + emit.return_value(), 5, 0) == 0


def test_far_jump_takes_extended_args() -> None:
    end = emit.load_const("end")
    padding = [inst for _ in range(70_000) for inst in (*emit.load_const(1), *emit.pop())]
    assert run(emit.jump(end[0]) + padding + end + emit.return_value(), 1, 2) == "end"


def test_constants_of_different_type_stay_apart() -> None:
    values = (1, 1.0, True, 0.0, -0.0, (1,), (1.0,), (True,))
    load = [inst for value in values for inst in emit.load_const(value)]
    result = run([*load, *emit.build_tuple(len(values)), *emit.return_value()], 1, 2)
    assert [repr(value) for value in result] == [repr(value) for value in values]


def test_closures_can_be_made() -> None:
    def outer() -> Any:
        cell = 7

        def inner() -> Any:
            return cell

        return inner

    inner_code = next(const for const in outer.__code__.co_consts if isinstance(const, types.CodeType))
    body = [
        *emit.prologue(cells=("cell",)),
        *emit.load_const(11), *emit.store_deref("cell"),
        *emit.make_function(inner_code, closure=("cell",)), *emit.return_value(),
    ]  # fmt: skip
    function = types.FunctionType(assemble(Body(body), outer.__code__), {})()
    assert function() == 11


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (emit.pop() + emit.return_value(), "takes more than the stack holds"),
        (emit.load_fast("nobody") + emit.return_value(), "no variable 'nobody'"),
        (emit.load_const(1), "runs off the end"),
        (emit.jump(Instruction("NOP")), "is not in the body"),
        ([Instruction("NO_SUCH_OPCODE"), *emit.return_value()], "has no opcode"),
    ],
)
def test_bad_bodies_are_refused(body: list[Instruction], message: str) -> None:
    with pytest.raises(AssemblyError, match=message):
        assemble(Body(emit.prologue() + body), template.__code__)
