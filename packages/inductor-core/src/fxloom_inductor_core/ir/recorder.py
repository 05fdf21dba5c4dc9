"""From a loop body to a flat list of instructions.

In: a body, which `Recorder` runs once as its op handler. Out: instructions whose values are numbered. Invariant: equal
computations are recorded once, conversions that undo each other not at all, and operands of an operation agree in dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from fxloom_inductor_core.ir.numbers import Float
from fxloom_interfaces.dtypes import is_low_precision, torch_dtype
from fxloom_interfaces.errors import IRError
from fxloom_interfaces.expr import Expr, simplify, value_symbol
from fxloom_interfaces.ops import REDUCTION_RESULTS, ElementwiseOps, IndexErrorKind, OpInfo, ReductionKind, StoreMode
from fxloom_interfaces.program import (
    Accumulate,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    Reduce,
    Store,
)
from fxloom_interfaces.promotion import as_element


class Recorder(ElementwiseOps[int]):
    """Records instructions. dtypes: of every buffer that may be loaded. extents: of the axis symbols, for simplifying.

    floats: gives the buffer with a float that is known when the graph runs. keep_wide: a float32 that was rounded to a half type
    and is converted back is taken unrounded.
    """

    def __init__(
        self, dtypes: Callable[[str], str], extents: Mapping[sympy.Symbol, Expr], floats: Callable[[Float], str], keep_wide: bool
    ) -> None:
        self._keep_wide = keep_wide
        self.instructions: list[Instruction] = []
        self._dtype_of_buffer = dtypes
        self._buffer_of_float = floats
        self._extents = dict(extents)
        self._dtypes: list[str] = []
        self._known: dict[Any, Any] = {}
        self._mask: int | None = None
        self._definitions: dict[int, Instruction] = {}

    # numbering

    def dtype(self, value: int) -> str:
        return self._dtypes[value]

    def _new(self, dtype: str) -> int:
        self._dtypes.append(dtype)
        return len(self._dtypes) - 1

    def _record(self, key: Any, dtype: str, make: Callable[[int], Instruction]) -> int:
        if key in self._known:
            return self._known[key]  # type: ignore[no-any-return]  # values of this table are value numbers
        result = self._new(dtype)
        instruction = make(result)
        self.instructions.append(instruction)
        self._definitions[result] = instruction
        self._known[key] = result
        return result

    # structural ops

    def load(self, buffer: str, index: Expr) -> int:
        index = simplify(index, self._extents)
        dtype = self._dtype_of_buffer(buffer)
        mask = self._mask
        return self._record(("load", buffer, index, mask), dtype, lambda r: Load(r, buffer, index, dtype, mask))

    def store(self, buffer: str, index: Expr, value: int, mode: StoreMode = None) -> None:
        wanted = self._dtype_of_buffer(buffer)
        if self.dtype(value) != wanted:
            value = self.to_dtype(value, wanted)
        self.instructions.append(Store(buffer, simplify(index, self._extents), value, mode))

    def reduction(self, kind: ReductionKind, dtype: str, value: int) -> tuple[int, ...]:
        if kind in ("any", "all"):
            results_dtype = ["bool"]
        elif kind in ("argmax", "argmin"):
            results_dtype = ["int64"]
        else:
            value = self.to_dtype(value, dtype)
            results_dtype = [dtype] * REDUCTION_RESULTS[kind]
        results = tuple(self._new(d) for d in results_dtype)
        self.instructions.append(Reduce(results, kind, value, dtype if kind not in ("argmax", "argmin") else self.dtype(value)))
        return results

    def store_reduction(self, buffer: str, index: Expr, value: int) -> None:
        self.store(buffer, index, value)

    def accumulate(self, kind: str, dtype: str, value: int) -> int:
        """A running fold over the inner axes."""
        value = self.to_dtype(value, dtype)
        result = self._new(dtype)
        self.instructions.append(Accumulate(result, kind, value, dtype))
        return result

    def constant(self, value: Any, dtype: str) -> int:
        if isinstance(value, Float):
            return self.to_dtype(self.load(self._buffer_of_float(value), 0), dtype)
        if isinstance(value, sympy.Basic) and not value.is_number:
            return self.to_dtype(self.index_expr(value, "int64"), dtype)
        literal = _rounded(value, dtype) if is_low_precision(dtype) or dtype == "float32" else as_element(value, dtype)
        return self._record(("constant", repr(literal), dtype), dtype, lambda r: Constant(r, literal, dtype))

    def index_expr(self, expr: Expr, dtype: str) -> int:
        expr = simplify(expr, self._extents)
        if isinstance(expr, int):
            return self.constant(expr, dtype)
        return self._record(("index", expr, dtype), dtype, lambda r: IndexValue(r, expr, dtype))

    def indirect_indexing(
        self, value: int, size: Expr, check: bool = True, wrap: bool = True, error: IndexErrorKind = "IndexError"
    ) -> sympy.Symbol:
        key = ("indirect", value, size, check, wrap, self._mask, error)
        if key not in self._known:
            name = f"i{value}"
            count = sum(1 for known in self._known if known[0] == "indirect" and known[1] == value)
            symbol = value_symbol(f"{name}_{count}" if count else name)
            self.instructions.append(Indirect(symbol.name, value, size, check, wrap, self._mask, error))
            self._known[key] = symbol
        return self._known[key]

    def masked(self, mask: int, body: Callable[[], int], other: bool | float) -> int:
        outer = self._mask
        self._mask = mask if outer is None else self.logical_and(outer, mask)
        try:
            value = body()
        finally:
            self._mask = outer
        return self.where(mask, value, self.constant(other, self.dtype(value)))

    def where(self, condition: int, a: int, b: int) -> int:
        if self.dtype(a) != self.dtype(b):
            raise IRError(f"where of {self.dtype(a)} and {self.dtype(b)}")
        return self._compute("where", (condition, a, b), self.dtype(a))

    def to_dtype(self, value: int, dtype: str) -> int:
        if self.dtype(value) == dtype:
            return value
        made = self._definitions.get(value)
        if isinstance(made, Constant):
            return self.constant(made.value, dtype)
        if self._keep_wide and isinstance(made, Compute) and made.op == "to_dtype" and is_low_precision(self.dtype(value)):
            wide = made.args[0]
            if self.dtype(wide) == dtype == "float32":
                return wide
        return self._compute("to_dtype", (value,), dtype)

    def bitcast(self, value: int, dtype: str) -> int:
        return self._compute("bitcast", (value,), dtype)

    def load_seed(self, buffer: str, index: Expr) -> int:
        return self.load(buffer, index)

    def rand(self, seed: int, offset: int) -> int:
        return self._compute("rand", (seed, offset), "float32")

    def randn(self, seed: int, offset: int) -> int:
        return self._compute("randn", (seed, offset), "float32")

    def randint64(self, seed: int, offset: int, low: int, high: int) -> int:
        return self._compute("randint64", (seed, offset, low, high), "int64")

    # elementwise

    def elementwise(self, info: OpInfo, args: Sequence[int]) -> int:
        dtypes = [self.dtype(a) for a in args]
        if any(d != dtypes[0] for d in dtypes):
            raise IRError(f"{info.name} of {', '.join(dtypes)}: operands must agree")
        return self._compute(info.name, tuple(args), "bool" if info.result == "bool" else dtypes[0])

    def _compute(self, op: str, args: tuple[int, ...], dtype: str) -> int:
        return self._record((op, args, dtype), dtype, lambda r: Compute(r, op, args, dtype))


def _rounded(value: Any, dtype: str) -> float:
    """A number as an element of a float type narrower than Python's."""
    wide = torch.tensor(float(value), dtype=torch.float64, device="cpu")
    return float(wide.float().to(torch_dtype(dtype)))  # in two steps, as torch does it


def new_recorder(
    dtypes: Callable[[str], str], extents: Mapping[sympy.Symbol, Expr], floats: Callable[[Float], str], *, keep_wide: bool = False
) -> Recorder:
    """A fresh recorder."""
    return Recorder(dtypes, extents, floats, keep_wide)  # type: ignore[abstract]  # its elementwise methods are filled in from OPS
