"""Special functions (`torch.special`): one loop each, by the formulas of `special_formulas`.

In: the context and the operator's arguments as lowered values. Out: a tensor with a body that computes one element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.lowering import special_formulas as formulas
from fxloom_inductor_core.lowering.promote import elementwise, to_float
from fxloom_inductor_core.lowering.registry import library_call, lowering
from fxloom_inductor_core.lowering.special_formulas import Number
from fxloom_interfaces.dtypes import dtype_name, is_low_precision, opmath

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten
Formula = Callable[[Number], Number]


def _computed(cx: LoweringContext, x: Any, formula: Formula) -> Any:
    compute = to_float(x.dtype)
    wide = opmath(compute)
    if wide not in ("float32", "float64"):
        return NotImplemented
    return elementwise(
        cx,
        [x],
        lambda ops, value: formula(Number(ops, wide, value)).value,
        dtype=dtype_name(cx.fake.dtype),
        compute=compute,
        ops=20,
        heavy=True,
    )


def _function(formula: Formula, *, halves: bool) -> Callable[..., Any]:
    """A rule for `formula`. halves: whether eager has kernels for float16 and bfloat16."""

    def rule(cx: LoweringContext, x: Any) -> Any:
        return _computed(cx, x, formula) if halves or not is_low_precision(x.dtype) else NotImplemented

    return rule


def _single(formula: Formula, *, halves: bool) -> Callable[..., Any]:
    """A rule for `formula` in float32. float64 is a call: there eager's kernels, within half an ulp, are more exact than our fits, which
    shows where gradients cancel, and `erfinv` and `ndtri` take 0.3 to 0.5 of the time on the CPU."""
    rule = _function(formula, halves=halves)

    def calling(cx: LoweringContext, x: Any) -> Any:
        return library_call(cx) if to_float(x.dtype) == "float64" else rule(cx, x)

    return calling


for _order in (0, 1):
    _i = partial(formulas.bessel_i, order=_order)
    _k = partial(formulas.bessel_k, order=_order)
    lowering(getattr(aten, ("i0", "special_i1")[_order]).default)(_function(partial(_i, scaled=False), halves=True))
    lowering(getattr(aten, f"special_i{_order}e").default)(_function(partial(_i, scaled=True), halves=True))
    lowering(getattr(aten, f"special_modified_bessel_i{_order}").default)(_function(partial(_i, scaled=False), halves=False))
    lowering(getattr(aten, f"special_modified_bessel_k{_order}").default)(_function(partial(_k, scaled=False), halves=False))
    lowering(getattr(aten, f"special_scaled_modified_bessel_k{_order}").default)(_function(partial(_k, scaled=True), halves=False))

lowering(aten.special_spherical_bessel_j0.default)(_function(formulas.spherical_bessel_j0, halves=False))
lowering(aten.erfinv.default)(_single(formulas.erfinv, halves=True))
lowering(aten.special_ndtri.default)(_single(formulas.ndtri, halves=False))
lowering(aten.special_erfcx.default)(_single(formulas.erfcx, halves=False))
lowering(aten.special_log_ndtr.default)(_single(formulas.log_ndtr, halves=False))
_digamma = _single(formulas.digamma, halves=True)
lowering(aten.digamma.default)(_digamma)


@lowering(aten.polygamma.default)
def polygamma(cx: LoweringContext, n: Any, x: Any) -> Any:
    if n == 0:
        return _digamma(cx, x)
    if n < 0 or (x.dtype == "float16" and x.device == "cpu"):
        return NotImplemented  # eager raises
    if n > 1:
        return library_call(cx)  # Hurwitz's zeta function: how many terms it takes depends on the elements
    return _computed(cx, x, formulas.trigamma)
