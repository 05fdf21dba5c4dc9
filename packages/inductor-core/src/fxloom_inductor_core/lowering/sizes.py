"""Arithmetic on symbolic sizes: Python operators of the aten dialect that act on ints and SymInts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy

from fxloom_interfaces.expr import Max, Min, floor_div, mod, normalize


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: normalize(function(*args))


SIZE_OPS: dict[Any, Callable[..., Any]] = {
    operator.add: _plain(operator.add),
    operator.sub: _plain(operator.sub),
    operator.mul: _plain(operator.mul),
    operator.neg: _plain(operator.neg),
    operator.floordiv: floor_div,
    operator.mod: mod,
    max: lambda a, b: normalize(Max(sympy.sympify(a), sympy.sympify(b))),
    min: lambda a, b: normalize(Min(sympy.sympify(a), sympy.sympify(b))),
}
