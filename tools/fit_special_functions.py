"""Coefficients of special functions: polynomial and rational fits, made from the functions themselves with mpmath, in 50 digits.

    python tools/fit_special_functions.py > packages/inductor-core/src/fxloom_inductor_core/lowering/special_coefficients.py

A fit is p(t - center) / q(t - center) with the lowest degrees whose error is well below one ulp of the type: least squares of the
linearized problem at Chebyshev nodes, with the weights corrected by the last denominator. A center keeps terms from cancelling
each other. Takes about a minute. What is fitted where is documented beside the formulas, in `lowering/special_formulas.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp

mp.mp.dps = 50
ONE = mp.mpf(1)
Function = Callable[[Any], Any]

#: type -> largest error of a fit, relative unless the fit says otherwise
TOLERANCE = {"float32": mp.mpf(2) ** -27, "float64": mp.mpf(2) ** -56}


def solved(f: Sequence[Any], t: Sequence[Any], weight: Sequence[Any], degree: int, below: int) -> tuple[list[Any], list[Any]]:
    """Coefficients of p and q, lowest first, that make weight * (p(t) - f q(t)) / q(t) small."""
    denominator = [ONE] * len(t)
    for _ in range(4 if below else 1):
        rows, right = mp.matrix(len(t), degree + 1 + below), mp.matrix(len(t), 1)
        for i, (value, at) in enumerate(zip(f, t, strict=True)):
            scale = weight[i] / abs(denominator[i])
            for j in range(degree + 1):
                rows[i, j] = at**j * scale
            for j in range(1, below + 1):
                rows[i, degree + j] = -(at**j) * value * scale
            right[i] = value * scale
        solution = list(mp.qr_solve(rows, right)[0])
        p, q = solution[: degree + 1], [ONE, *solution[degree + 1 :]]
        denominator = [mp.polyval(q[::-1], at) for at in t]
    return p, q


def fitted(f: Function, a: Any, b: Any, center: Any, tolerance: Any, *, rational: bool, absolute: bool) -> tuple[list[Any], list[Any]]:
    """The fit of lowest degree on [a, b], in t - center, whose error is below `tolerance`."""
    a, b = a - center, b - center

    def shifted(t: Any) -> Any:
        return f(t + center)

    for degree in range(2, 14 if rational else 40):
        below = degree if rational else 0
        count = 3 * (degree + below + 2)
        nodes = [(a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
        values = [mp.mpf(shifted(t)) for t in nodes]
        weight = [ONE if absolute else 1 / abs(v) for v in values]
        p, q = solved(values, nodes, weight, degree, below)
        between = [(s + t) / 2 for s, t in itertools.pairwise(nodes)] + [a + (b - a) * mp.mpf("1e-6"), b]
        if all(
            abs(mp.polyval(p[::-1], t) / mp.polyval(q[::-1], t) / shifted(t) - 1) * (abs(shifted(t)) if absolute else 1) < tolerance
            and mp.polyval(q[::-1], t) * mp.polyval(q[::-1], a) > 0
            for t in between
        ):
            return p, q
    raise ValueError("no fit of a sensible degree")


def inverse_erfc(y: Any) -> Any:
    """x with erfc(x) = y <= 1, by Newton's method on the logarithm."""
    x = mp.sqrt(-mp.log(y)) if y < 0.3 else mp.mpf(0.5)
    for _ in range(60):
        slope = -2 / mp.sqrt(mp.pi) * mp.exp(-x * x) / mp.erfc(x)
        step = (mp.log(mp.erfc(x)) - mp.log(y)) / slope
        x -= step
        if abs(step) < mp.mpf(10) ** -35:
            break
    return x


def erfinv_over_x(w: Any) -> Any:
    """erfinv(x) / x, where 1 - x^2 = e^-w."""
    if w < mp.mpf("1e-12"):
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    return inverse_erfc(mp.exp(-w) / (1 + x)) / x


def erfcx_over_t(t: Any) -> Any:
    """erfcx(x) / t with t = 2 / (2 + x), by its asymptotic series where erfc vanishes."""
    x = 2 / t - 2
    if x < 30:
        return mp.exp(x * x) * mp.erfc(x) / t
    term = total = ONE
    for k in range(1, 40):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
        if abs(term) < mp.mpf(10) ** -38:
            break
    return total / (x * mp.sqrt(mp.pi) * t)


TINY = mp.mpf("1e-9")
#: name -> function, interval, what to make (single: for float32 alone)
FITS: dict[str, tuple[Function, tuple[Any, Any], dict[str, bool]]] = {
    "I0_FAR": (lambda t: mp.sqrt(8 / t) * mp.exp(-8 / t) * mp.besseli(0, 8 / t), (TINY, ONE), {"centered": True}),
    "I1_FAR": (lambda t: mp.sqrt(8 / t) * mp.exp(-8 / t) * mp.besseli(1, 8 / t), (TINY, ONE), {"centered": True}),
    "K0_NEAR": (
        lambda y: mp.besselk(0, 2 * mp.sqrt(y)) + mp.log(mp.sqrt(y)) * mp.besseli(0, 2 * mp.sqrt(y)),
        (TINY, ONE / 4),
        {"absolute": True},
    ),
    "K1_NEAR": (
        lambda y: (mp.besselk(1, 2 * mp.sqrt(y)) - mp.log(mp.sqrt(y)) * mp.besseli(1, 2 * mp.sqrt(y))) * mp.sqrt(y) * 2,
        (TINY, ONE / 4),
        {},
    ),
    "K0_FAR": (lambda t: mp.sqrt(1 / t) * mp.exp(1 / t) * mp.besselk(0, 1 / t), (TINY, ONE), {"rational": True}),
    "K1_FAR": (lambda t: mp.sqrt(1 / t) * mp.exp(1 / t) * mp.besselk(1, 1 / t), (TINY, ONE), {"rational": True}),
    "ERFINV_NEAR": (erfinv_over_x, (mp.mpf(0), mp.mpf(5)), {"centered": True, "single": True}),
    "ERFINV_FAR": (lambda s: erfinv_over_x(s * s), (mp.sqrt(5), mp.mpf(4)), {"centered": True, "single": True}),
    "ERFINV_FARTHER": (lambda t: erfinv_over_x(16 / t / t) * t, (mp.mpf("0.384"), ONE), {"centered": True, "single": True}),
    "ERFCX": (erfcx_over_t, (mp.mpf("1e-6"), ONE), {"rational": True, "centered": True, "single": True}),
}  # fmt: skip


def printed(numbers: Sequence[Any], dtype: str) -> str:
    digits = 17 if dtype == "float64" else 10
    texts = [repr(float(mp.nstr(n, digits))) for n in numbers]
    lines, line = [], ""
    for text in texts:
        if len(line) + len(text) > 110:
            lines.append(line.rstrip())
            line = ""
        line += f"{text}, "
    return "\n".join(f"            {text}" for text in [*lines, line.rstrip()])


def main() -> None:
    print('"""Made by tools/fit_special_functions.py; `special_formulas` says what is fitted.\n')
    print('name -> dtype -> (center, p, q) of p(t - center) / q(t - center), lowest power first.\n"""\n')
    print("from __future__ import annotations\n")
    print("FITS: dict[str, dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]]] = {")
    for name, (function, interval, how) in FITS.items():
        print(f'    "{name}": {{')
        for dtype, tolerance in TOLERANCE.items():
            if how.get("single", False) and dtype != "float32":
                continue
            a, b = interval
            center = mp.mpf(round(float(a + b) * 32) / 64) if how.get("centered", False) else mp.mpf(0)
            p, q = fitted(function, a, b, center, tolerance, rational=how.get("rational", False), absolute=how.get("absolute", False))
            print(f'        "{dtype}": ({float(center)}, (\n{printed(p, dtype)}\n        ), (\n{printed(q, dtype)}\n        )),')
        print("    },", flush=True)
    print("}")


if __name__ == "__main__":
    main()
