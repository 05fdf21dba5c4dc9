"""What capture knows of NumPy's types without having arrays; empty where NumPy is not installed.

Its scalars are literals, and its element-wise functions of literals are constants: the tables say which types those are.
`to_number` gives the Python number that torch's operators take a NumPy scalar for.
"""

from __future__ import annotations

from typing import Any

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]  # a missing module

__all__ = ["DISPATCHERS", "DTYPES", "ELEMENTWISE", "NUMPY_REALS", "NUMPY_SCALARS", "numpy", "to_number"]

#: types of numbers; those of dates, texts and records are left out
NUMPY_SCALARS: frozenset[type] = (
    frozenset()
    if numpy is None
    else frozenset(
        {numpy.bool_, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64,
         numpy.float16, numpy.float32, numpy.float64, numpy.complex64, numpy.complex128}
    )
)  # fmt: skip
#: those of integers and real numbers
NUMPY_REALS: frozenset[type] = frozenset(
    kind for kind in NUMPY_SCALARS if issubclass(kind, (numpy.integer, numpy.floating))
)
#: types of what says what an array's elements are
DTYPES: tuple[type, ...] = () if numpy is None else (numpy.dtype,)
#: types of the functions that look at the classes of their arguments
DISPATCHERS: tuple[type, ...] = () if numpy is None else (type(numpy.concatenate),)
ELEMENTWISE: tuple[type, ...] = () if numpy is None else (numpy.ufunc,)


def to_number(value: Any) -> Any:
    """The Python number that operators of torch take a NumPy scalar for, a float for a `numpy.bool_`; anything else as it is."""
    if numpy is not None and type(value) is numpy.bool_:
        return float(value)
    return value.item() if type(value) in NUMPY_SCALARS else value
