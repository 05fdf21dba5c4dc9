"""Find values of one functional log in another log of the same program.

In: the log that was compiled, possibly with symbolic sizes, and one of plain sizes. Out: by value of the first, the value of the
second. Calls match where their operators and arguments do, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxloom_aot.double_backward.retrace import NotDifferentiable
from fxloom_aot.functional.functional_log import Call, FunctionalLog, has_effect, key_of_values
from fxloom_aot.nests import numbers_of, values_of
from fxloom_aot.runtime_numbers import runtime_value
from fxloom_aot.trace_result import Program
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC, symbol_names


def match_logs(
    program: Program, new: FunctionalLog, results: Sequence[Any], symbols: Mapping[str, Any], kept: Sequence[FakeTensor]
) -> dict[int, FakeTensor]:
    """What values of the program's log are in another log of it, by identity; with `kept`, whatever made these.

    NotDifferentiable when that is not of the same program.
    """
    old = program.log
    places = {name: place for place, name in enumerate(symbols)}
    matched: dict[int, FakeTensor] = {id(a): b for a, b in zip(old.placeholders, new.placeholders, strict=False)}
    for value, real in old.constants:
        other = next((one for one, made in new.constants if made is real), None)
        if other is None:  # the program makes it, of numbers
            other = next((one for one, made in new.constants if _is_same_constant(made, real)), None)
        if other is not None:
            matched[id(value)] = other

    def key_of(nest: Any) -> Any:
        kind = type(nest)
        if kind is FakeTensor:
            found = matched.get(id(nest))
            return _Unmatched if found is None else id(found)
        if kind is tuple or kind is list:
            return tuple([key_of(item) for item in nest])
        if kind in SYMBOLIC:
            if not set(symbol_names([nest])) <= set(places):
                return _Unmatched
            number = runtime_value(nest, places)(list(symbols.values()))
            return key_of_values(number)
        return key_of_values(nest)

    calls: dict[Any, list[int]] = {}
    for number, call in enumerate(new.calls):
        named = tuple((name, key_of_values(value)) for name, value in sorted(call.kwargs.items()))
        calls.setdefault((call.op, key_of_values(call.args), named), []).append(number)
    needed = set(old.calls_for(list(kept)))
    for number, call in enumerate(old.calls):
        if call.backward and number not in needed:
            continue
        named = tuple((name, key_of(value)) for name, value in sorted(call.kwargs.items()))
        same = calls.get((call.op, key_of(call.args), named))
        if same:
            made = new.calls[same[0] if len(same) == 1 else same.pop(0)].out
        elif call.backward and not has_effect(call.op):  # of a derivative, and kept rather than what it is computed from
            made = _emit_matching(new, call, matched, symbols, places)
        else:
            continue
        a = call.out if isinstance(call.out, (tuple, list)) else [call.out]
        b = made if isinstance(made, (tuple, list)) else [made]
        matched.update({id(x): y for x, y in zip(a, b, strict=False) if type(x) is FakeTensor})
    if len(results) != len(program.values):
        raise NotDifferentiable("it gives something else when it is recorded again")
    for mine, theirs in zip(program.values, results, strict=True):
        if type(mine) is FakeTensor and program.rewritten:
            matched.setdefault(id(mine), theirs)
        elif type(mine) is FakeTensor and matched.get(id(mine)) is not theirs:
            raise NotDifferentiable("it does something else when it is recorded again")
    return matched


def _emit_matching(
    new: FunctionalLog, call: Call, matched: Mapping[int, FakeTensor], symbols: Mapping[str, Any], places: Mapping[str, int]
) -> Any:
    """What a call of the other log gives in this one, where it is made there, too; None where what it takes is not there."""

    def filled(nest: Any) -> Any:
        kind = type(nest)
        if kind is FakeTensor:
            return matched[id(nest)]
        if kind is tuple or kind is list:
            return kind([filled(item) for item in nest])
        if kind in SYMBOLIC:
            return runtime_value(nest, places)(list(symbols.values()))
        return nest

    given = [call.args, call.kwargs]
    if any(id(value) not in matched for value in values_of(given)) or not set(symbol_names(numbers_of(given))) <= set(places):
        return None
    try:
        with torch.no_grad():
            return new.emit(call.op, filled(call.args), {name: filled(value) for name, value in call.kwargs.items()})
    except (GraphBreak, GraphRejected):
        return None


def _is_same_constant(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


class _Unmatched:
    """Equal to nothing in the other log."""
