"""Scatters: stores whose points may meet at one element of a buffer.

In: a kernel. Out: its scatter stores, and the axes along which no two points meet, so that they may run at once. Invariant: an axis
is independent only where that shows in the index for every size and every index that is in range.
"""

from __future__ import annotations

from fxloom_interfaces.expr import Expr, free_symbols, normalize, stride_of
from fxloom_interfaces.program import Axis, Indirect, Kernel, Store


def scatters(kernel: Kernel) -> list[Store]:
    """The stores of a kernel that are scatters."""
    indirect = {i.symbol for i in kernel.instructions() if isinstance(i, Indirect)}
    stores = [i for i in kernel.instructions() if isinstance(i, Store)]
    return [i for i in stores if i.mode is not None or any(s.name in indirect for s in free_symbols(i.index))]


def independent_axes(kernel: Kernel) -> list[Axis]:
    """Outer axes such that points that differ along one of them meet at no element of any scatter."""
    indirect = {i.symbol: i for i in kernel.instructions() if isinstance(i, Indirect)}
    extents: dict[str, Expr] = {axis.name: axis.size for axis in kernel.outer}
    extents.update({name: made.size for name, made in indirect.items() if made.check})
    unchecked = indirect.keys() - extents.keys()
    found = {axis.name for axis in kernel.outer}
    for store in scatters(kernel):
        names = {s.name for s in free_symbols(store.index)}
        found &= frozenset() if names & unchecked else _digits(store.index, {n: e for n, e in extents.items() if n in names})
    return [axis for axis in kernel.outer if axis.name in found]


def _digits(index: Expr, extents: dict[str, Expr]) -> frozenset[str]:
    """The names in `extents`, if the index tells the value of each, as a number tells its digits; else none."""
    waiting: dict[str, Expr] = {}
    for part in free_symbols(index):
        stride = stride_of(index, part)
        if stride is None:
            return frozenset()
        if part.name in extents:
            waiting[part.name] = stride
    span: Expr = 1
    while waiting:
        name = _next_digit(waiting, span)
        if name is None:
            return frozenset()
        span = normalize(waiting.pop(name) * extents[name])
    return frozenset(extents)


def _next_digit(strides: dict[str, Expr], span: Expr) -> str | None:
    """A name whose stride is no smaller than what all digits below it span."""
    exact = next((name for name, stride in strides.items() if stride == span), None)
    if exact is not None:
        return exact
    numbers = {name: stride for name, stride in strides.items() if isinstance(stride, int)}
    if not numbers or not isinstance(span, int):
        return None
    name = min(numbers, key=lambda n: numbers[n])
    return name if numbers[name] >= span else None
