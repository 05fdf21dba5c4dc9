"""libdevice for Triton's interpreter: the same functions on NumPy arrays, so that kernels run on machines without a GPU.

In: Triton's tensors, as the interpreter has them. Out: a tensor of the same dtype. Triton's interpreter has no externs; kernels
built under it get this object under the name `libdevice`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


class InterpretedLibdevice:
    """Functions of libdevice, computed in the dtype of their operands."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            function = _FUNCTIONS[name]
        except KeyError:
            raise AttributeError(f"libdevice.{name} has no NumPy counterpart here") from None
        return lambda *args: _elementwise(function, args)


def _elementwise(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    tensors = [arg for arg in args if isinstance(arg, core.tensor)]
    first = tensors[0]
    arrays = [arg.handle.data if isinstance(arg, core.tensor) else arg for arg in args]
    with np.errstate(all="ignore"):
        result = np.asarray(function(*arrays)).astype(first.handle.data.dtype)
    shape = list(result.shape)
    type_ = core.block_type(first.type.scalar, shape) if shape else first.type.scalar
    return core.tensor(TensorHandle(result, first.type.scalar), type_)


def _vectorized(function: Callable[[float], float]) -> Callable[..., Any]:
    def guarded(value: float) -> float:
        try:
            return function(float(value))
        except (ValueError, OverflowError):
            return math.nan if math.isnan(value) else math.inf

    return np.vectorize(guarded, otypes=[float])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh")
    },
    **{name: getattr(np, name) for name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign", "nextafter", "fmod")},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
    "cospi": lambda a: np.cos(np.pi * a.astype(np.float64)),
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "erf": _vectorized(math.erf),
    "erfc": _vectorized(math.erfc),
    "lgamma": _vectorized(math.lgamma),
}
