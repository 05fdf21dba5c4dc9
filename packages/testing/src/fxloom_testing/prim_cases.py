"""Arguments for every prim: which a compiler of prims is asked to compute.

In: the name of a prim. Out: `PrimCase`s, one for each type of elements, size and kind of numbers that the prim takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fxloom_interfaces.errors import IRError
from fxloom_interfaces.prims import ANY, FLOATS, INTEGERS, PRIMS, Meta, Prim

DTYPES = sorted(ANY, key=str)
_SIZES: tuple[tuple[int, ...], ...] = ((3, 4), (), (0, 4))
#: where functions have values, for those that are not defined everywhere
_DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-0.9, 0.9)),
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "lgamma", "digamma", "trigamma", "bessel_y0", "bessel_y1"), (0.3, 4.0)),
    **dict.fromkeys(("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"), (0.3, 4.0)),
    **dict.fromkeys(("igamma", "igammac", "pow"), (0.3, 3.0)),
    "log1p": (-0.8, 3.0), "acosh": (1.1, 4.0), "ndtri": (0.1, 0.9), "zeta": (1.5, 4.0),
}  # fmt: skip
#: prims of two operands that eager refuses zeros of in the second one
_DIVISIONS = ("floor_div", "trunc_div", "fmod", "remainder")
_ODD = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.5)
#: kernels differ in where the limits of these are
_ORDINARY = (*_DOMAINS, "floor_div", "trunc_div", "fmod", "remainder", "gcd", "atan2")


@dataclass(frozen=True, slots=True)
class PrimCase:
    """A call of a prim. arguments: makes them on a device, the same ones each time. compared: False where values are drawn."""

    prim: Prim
    label: str
    arguments: Callable[[str], tuple[Any, ...]]
    compared: bool = True

    def __str__(self) -> str:
        return f"{self.prim} of {self.label}"


def numbers(dtype: torch.dtype, size: tuple[int, ...], seed: int, low: float = -3.0, high: float = 3.0) -> torch.Tensor:
    """The same numbers for the same arguments; integers and booleans where the type has no others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(size, generator=generator, dtype=torch.float64) * (high - low) + low
    if dtype is torch.bool:
        return drawn > (high + low) / 2
    if dtype is torch.uint8:
        drawn = drawn.abs()
    return drawn.to(dtype)


def cases(name: str) -> Iterator[PrimCase]:
    """The cases of a prim, at least one."""
    prim = PRIMS[name]
    if prim.family.startswith("elementwise") and name not in _SPECIAL or prim.family == "special functions":
        yield from _elementwise(prim)
        return
    for dtype in DTYPES:
        for number, make in enumerate(_SPECIAL[name](dtype)):
            yield PrimCase(prim, f"{dtype} {number}", _on_device(make), name not in ("uniform", "normal", "randint"))


def _elementwise(prim: Prim) -> Iterator[PrimCase]:
    operands = _operands(prim)
    for dtype in DTYPES:
        if not _takes(prim, dtype, operands):
            continue
        for size in _SIZES:
            yield PrimCase(prim, f"{dtype}{list(size)}", _on_device(partial(_plain, prim, dtype, size, operands)))
        if dtype in FLOATS and prim.name not in _ORDINARY and prim.family != "special functions":
            yield PrimCase(prim, f"{dtype} NaN and infinity", _on_device(partial(_odd, dtype, operands)))


def _operands(prim: Prim) -> int:
    for count, word in ((1, "one"), (2, "two"), (3, "three")):
        if word in prim.family:
            return count
    return next(count for count in (1, 2) if any(_takes(prim, dtype, count) for dtype in DTYPES))


def _takes(prim: Prim, dtype: torch.dtype, operands: int) -> bool:
    try:
        prim.infer(*[Meta((2,), dtype)] * operands)
    except IRError:
        return False
    return True


def _plain(prim: Prim, dtype: torch.dtype, size: tuple[int, ...], operands: int) -> tuple[Any, ...]:
    low, high = _DOMAINS.get(prim.name, (-3.0, 3.0))
    found = [numbers(dtype, size, seed, low, high) for seed in range(operands)]
    if prim.name in _DIVISIONS or (prim.name == "pow" and dtype in INTEGERS) or prim.name.startswith("shift"):
        found[1] = numbers(dtype, size, 1, 1, 4)
    if "polynomial" in prim.name:
        found = [numbers(dtype, size, 0, 0.1, 0.9), numbers(torch.int64, size, 1, 0, 5).to(dtype)]
    return tuple(found)


def _odd(dtype: torch.dtype, operands: int) -> tuple[Any, ...]:
    line = torch.tensor(_ODD, dtype=torch.float64).to(dtype)
    count = len(_ODD)
    if operands == 1:
        return (line,)
    pairs = [line.repeat_interleave(count), line.repeat(count)]
    return (*pairs, torch.ones(count * count, dtype=dtype)) if operands == 3 else tuple(pairs)


def _on_device(make: Callable[[], tuple[Any, ...]]) -> Callable[[str], tuple[Any, ...]]:
    def moved(value: Any, device: str) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        if isinstance(value, list):
            return [moved(item, device) for item in value]
        return device if value == "cpu" else value

    return lambda device: tuple(moved(value, device) for value in make())


# --- prims with options ---------------------------------------------------------------------------------------------------

Made = list[Callable[[], tuple[Any, ...]]]


def _with(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _where(dtype: torch.dtype) -> Made:
    return [partial(_chosen, dtype, size) for size in _SIZES]


def _chosen(dtype: torch.dtype, size: tuple[int, ...]) -> tuple[Any, ...]:
    return numbers(torch.bool, size, 2), numbers(dtype, size, 0), numbers(dtype, size, 1)


def _reduction(name: str, allowed: frozenset[torch.dtype], *options: Any) -> Callable[[torch.dtype], Made]:
    def made(dtype: torch.dtype) -> Made:
        if dtype not in allowed:
            return []
        sizes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((3, 4), (1,)), ((2, 3, 4), (0, 2)), ((5,), (0,))]
        if name != "var_mean":  # of nothing, eager warns
            sizes.append(((3, 0), (0,)))
        if name in ("sum", "prod", "any", "all"):  # of nothing, there is a result
            sizes.append(((3, 0), (1,)))
        found: Made = [partial(_with, numbers(dtype, size, 0), dims, *options) for size, dims in sizes]
        if dtype in FLOATS:
            found.append(lambda: (torch.tensor([[1.0, float("nan"), 2.0], [1.0, -2.0, 3.0]]).to(dtype), (1,), *options))
        return found

    return made


def _along(allowed: frozenset[torch.dtype], *options: Any) -> Callable[[torch.dtype], Made]:
    def made(dtype: torch.dtype) -> Made:
        if dtype not in allowed:
            return []
        return [
            lambda: (numbers(dtype, (3, 4), 0), 1, *options),
            lambda: (numbers(dtype, (3, 4, 2), 0), 0, *options),
            lambda: (numbers(dtype, (1,), 0), 0, *options),
        ]

    return made


def _of(*made: Callable[[torch.dtype], tuple[Any, ...]], allowed: frozenset[torch.dtype] = ANY) -> Callable[[torch.dtype], Made]:
    """Cases that differ in their elements alone."""
    return lambda dtype: [partial(make, dtype) for make in made] if dtype in allowed else []


def _x(dtype: torch.dtype, *size: int, seed: int = 0) -> torch.Tensor:
    return numbers(dtype, size, seed)


def _index(*size: int, below: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(below, size, generator=torch.Generator().manual_seed(seed))


def _order(*size: int) -> torch.Tensor:
    """Places along the first axis of which none comes twice."""
    return torch.stack([torch.randperm(size[0], generator=torch.Generator().manual_seed(9))] * (size[1] if len(size) > 1 else 1), 1)


NUMBERS = FLOATS | INTEGERS
_SCATTERS = (
    lambda d: (_x(d, 3, 4), 0, _index(5, 4, below=3), _x(d, 5, 4, seed=1)),
    lambda d: (_x(d, 3, 4), 1, _index(2, 3, below=4), _x(d, 2, 3, seed=1)),
    lambda d: (_x(d, 3), 0, _index(0, below=3), _x(d, 0)),
)
_SPECIAL: dict[str, Callable[[torch.dtype], Made]] = {
    "where": _where,
    "copy": _of(lambda d: (_x(d, 3, 4),), lambda d: (_x(d),), lambda d: (_x(d, 0),), lambda d: (_x(d, 3, 4).t(),)),
    "to_device": _of(lambda d: (_x(d, 3, 4), "cpu"), lambda d: (_x(d), "cpu")),
    "convert": lambda d: [partial(_with, numbers(d, (3, 4), 0, 0.0, 3.0), to) for to in DTYPES],
    "bitcast": lambda d: [partial(_with, _x(d, 3, 8), to) for to in sorted(NUMBERS, key=str)] if d in NUMBERS else [],
    "fma": _of(
        lambda d: (_x(d, 3, 4), _x(d, 3, 4, seed=1), _x(d, 3, 4, seed=2)), lambda d: (_x(d), _x(d, seed=1), _x(d, seed=2)), allowed=FLOATS
    ),
    "frexp": _of(lambda d: (_x(d, 3, 4),), lambda d: (torch.tensor([0.0, 1.0, -2.0, 1e-6]).to(d),), allowed=FLOATS),
    "sum": _reduction("sum", NUMBERS), "prod": _reduction("prod", NUMBERS), "any": _reduction("any", frozenset({torch.bool})),
    "all": _reduction("all", frozenset({torch.bool})), "amax": _reduction("amax", NUMBERS), "amin": _reduction("amin", NUMBERS),
    "var_mean": _reduction("var_mean", FLOATS, 1),
    "argmax": _along(NUMBERS), "argmin": _along(NUMBERS), "cumsum": _along(NUMBERS), "cumprod": _along(NUMBERS),
    "logcumsumexp": _along(FLOATS), "cummax": _along(NUMBERS), "cummin": _along(NUMBERS),
    "sort": lambda d: [*_along(NUMBERS, False, True)(d), *_along(NUMBERS, True, True)(d)],
    "broadcast_in_dim": _of(
        lambda d: (_x(d, 3, 4), (2, 3, 5, 4), (1, 3)), lambda d: (_x(d), (2, 3), ()), lambda d: (_x(d, 1, 3), (0, 3), (0, 1)),
        lambda d: (_x(d, 3), (3,), (0,)),
    ),
    "reshape": _of(
        lambda d: (_x(d, 3, 4), (2, 6)), lambda d: (_x(d, 1), ()), lambda d: (_x(d, 0, 3), (5, 0)), lambda d: (_x(d, 4, 3).t(), (12,)),
    ),
    "permute": _of(lambda d: (_x(d, 2, 3, 4), (2, 0, 1)), lambda d: (_x(d), ()), lambda d: (_x(d, 2, 3), (0, 1))),
    "slice": _of(
        lambda d: (_x(d, 5, 6), (1, 0), (5, 6), (2, 3)), lambda d: (_x(d, 4), (2,), (2,), (1,)), lambda d: (_x(d), (), (), ()),
        lambda d: (_x(d, 3), (0,), (3,), (1,)),
    ),
    "cat": _of(lambda d: ([_x(d, 2, 3), _x(d, 2, 0), _x(d, 2, 4)], 1), lambda d: ([_x(d, 2)], 0)),
    "pad": _of(
        lambda d: (_x(d, 3, 4), 1, (1, 0), (0, 2)), lambda d: (_x(d, 3, 4), 0, (-1, 0), (2, -2)), lambda d: (_x(d, 0), 1, (2,), (1,)),
        lambda d: (_x(d, 3), 0, (0,), (0,)),
    ),
    "flip": _of(lambda d: (_x(d, 3, 4), (0, 1)), lambda d: (_x(d, 3, 4), (1,))),
    "full": _of(lambda d: ((2, 3), 1, d, "cpu"), lambda d: ((), 1, d, "cpu"), lambda d: ((0,), 0, d, "cpu")),
    "iota": _of(lambda d: (5, 2, 3, d, "cpu"), lambda d: (0, 0, 1, d, "cpu"), lambda d: (4, 8, -2, d, "cpu"), allowed=NUMBERS),
    "uniform": _of(lambda d: ((2, 3), d, "cpu"), lambda d: ((), d, "cpu"), allowed=FLOATS),
    "normal": _of(lambda d: ((2, 3), d, "cpu"), lambda d: ((0,), d, "cpu"), allowed=FLOATS),
    "randint": _of(lambda d: ((2, 3), 1, 5, d, "cpu"), allowed=INTEGERS),
    "gather": _of(lambda d: (_x(d, 3, 4), 1, _index(3, 2, below=4)), lambda d: (_x(d, 3, 4), 0, _index(0, 4, below=3))),
    "index_select": _of(lambda d: (_x(d, 3, 4), _index(5, below=4), 1), lambda d: (_x(d, 3), _index(0, below=3), 0)),
    "gather_nd": _of(
        lambda d: (_x(d, 3, 4, 2), [_index(2, 5, below=3), -1 - _index(2, 5, below=4)]), lambda d: (_x(d, 3), [_index(below=3)]),
        lambda d: (_x(d, 3, 4), [_index(0, below=3)]),
    ),
    "scatter": _of(lambda d: (_x(d, 3, 4), 0, _order(3, 4), _x(d, 3, 4, seed=1)), lambda d: (_x(d, 3), 0, _index(0, below=3), _x(d, 0))),
    "scatter_add": _of(*_SCATTERS, allowed=NUMBERS), "scatter_prod": _of(*_SCATTERS, allowed=NUMBERS),
    "scatter_amax": _of(*_SCATTERS, allowed=NUMBERS), "scatter_amin": _of(*_SCATTERS, allowed=NUMBERS),
    "scatter_nd": _of(
        lambda d: (_x(d, 4, 3), [_order(4)[:, 0]], _x(d, 4, 3, seed=1)),
        lambda d: (_x(d, 4, 3), [torch.tensor(-1), torch.tensor(1)], _x(d)),
    ),
    "scatter_nd_add": _of(
        lambda d: (_x(d, 4, 3), [_index(6, below=4)], _x(d, 6, 3, seed=1)),
        lambda d: (_x(d, 4, 3), [_index(6, below=4), -1 - _index(6, below=3)], _x(d, 6, seed=1)), allowed=NUMBERS,
    ),
    "searchsorted": _of(
        lambda d: (_x(d, 6).sort()[0], _x(d, 2, 3, seed=1), True), lambda d: (_x(d, 2, 6).sort()[0], _x(d, 2, 3, seed=1), False),
        allowed=NUMBERS,
    ),
    "mm": _of(lambda d: (_x(d, 3, 4), _x(d, 4, 2, seed=1)), lambda d: (_x(d, 3, 0), _x(d, 0, 2)), allowed=NUMBERS),
    "bmm": _of(lambda d: (_x(d, 2, 3, 4), _x(d, 2, 4, 2, seed=1)), lambda d: (_x(d, 0, 3, 4), _x(d, 0, 4, 2)), allowed=NUMBERS),
    "convolution": _of(
        lambda d: (_x(d, 2, 4, 9), _x(d, 6, 2, 3, seed=1), (2,), (1,), (2,), 2),
        lambda d: (_x(d, 1, 3, 5, 6), _x(d, 2, 3, 3, 2, seed=1), (1, 2), (0, 1), (1, 1), 1), allowed=FLOATS,
    ),
    "transposed_convolution": _of(
        lambda d: (_x(d, 2, 4, 5), _x(d, 4, 3, 3, seed=1), (2,), (1,), (1,), (1,), 2),
        lambda d: (_x(d, 1, 2, 3, 4), _x(d, 2, 3, 2, 2, seed=1), (1, 2), (0, 1), (0, 0), (1, 1), 1), allowed=FLOATS,
    ),
}  # fmt: skip
