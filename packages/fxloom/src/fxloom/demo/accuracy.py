"""What "correct" means (docs/architecture.md, Truth): as near to float64 as eager is, and the same kind of tensor.

In: the results of eager, of the compiled program, and of the program in float64 (`double_reference`). Out: an `Accuracy`: the
largest errors, and whether, and if not why, the compiled results are correct.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

#: Floor of the tolerance, in units of the dtype's epsilon relative to the largest value of the tensor.
FLOOR_ULPS = 8


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Largest errors against float64, relative to the largest value of each tensor; correct: see `compare`."""

    eager: float
    compiled: float
    correct: bool
    reason: str = ""


def double_reference(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """The results of `function` in float64: a copy of it, its modules and its inputs, widened."""
    wide_function = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else _copy_closure(function)
    wide_inputs = pytree.tree_map(_widen, inputs)
    return wide_function(*wide_inputs)


def compare(eager: Any, compiled: Any, reference: Any) -> Accuracy:
    """Correct when shapes, dtypes, strides agree and the error is at most twice eager's, or within the floor."""
    ours, spec = pytree.tree_flatten(compiled)
    theirs, expected_spec = pytree.tree_flatten(eager)
    wide = pytree.tree_leaves(reference)
    if spec != expected_spec:
        return Accuracy(0.0, float("inf"), False, f"structure is {spec}, eager's is {expected_spec}")
    worst_eager = worst_ours = 0.0
    for number, (mine, want, exact) in enumerate(zip(ours, theirs, wide, strict=True)):
        if not isinstance(want, Tensor):
            if mine != want:
                return Accuracy(0.0, float("inf"), False, f"result {number} is {mine!r}, eager's is {want!r}")
            continue
        for property_ in ("dtype", "shape", "device"):
            if getattr(mine, property_) != getattr(want, property_):
                got, expected = getattr(mine, property_), getattr(want, property_)
                return Accuracy(0.0, float("inf"), False, f"{property_} of result {number} is {got}, eager's is {expected}")
        if mine.stride() != want.stride():
            return Accuracy(0.0, float("inf"), False, f"strides of result {number} are {mine.stride()}, eager's are {want.stride()}")
        if not want.is_floating_point():
            if not torch.equal(mine, want):
                return Accuracy(0.0, float("inf"), False, f"integer result {number} differs")
            continue
        scale = float(exact.abs().max()) or 1.0
        error_eager = float((want.double() - exact).abs().max()) / scale
        error_ours = float((mine.double() - exact).abs().max()) / scale
        worst_eager, worst_ours = max(worst_eager, error_eager), max(worst_ours, error_ours)
        allowed = max(2 * error_eager, FLOOR_ULPS * torch.finfo(want.dtype).eps)
        if not error_ours <= allowed:  # NaN is not within
            reason = f"error of result {number} is {error_ours:.2e}, allowed is {allowed:.2e}"
            return Accuracy(worst_eager, worst_ours, False, reason)
    return Accuracy(worst_eager, worst_ours, True)


def _widen(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _copy_closure(function: Any) -> Any:
    """A copy of a closure whose cells hold widened copies of modules and tensors, nested functions included."""
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"can't widen {type(function).__name__}: pass a function or a module")
    memo: dict[int, Any] = {}

    def widen(value: Any) -> Any:
        if id(value) in memo:
            return memo[id(value)]
        if isinstance(value, torch.nn.Module):
            out: Any = copy.deepcopy(value).double()
        elif isinstance(value, Tensor):
            out = _widen(value)
        elif isinstance(value, types.FunctionType) and value.__closure__:
            cells = tuple(types.CellType(widen(cell.cell_contents)) for cell in value.__closure__)
            out = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        elif isinstance(value, list):
            out = [widen(item) for item in value]
        elif isinstance(value, dict):
            out = {key: widen(item) for key, item in value.items()}
        else:
            out = value
        memo[id(value)] = out
        return out

    return widen(function)
