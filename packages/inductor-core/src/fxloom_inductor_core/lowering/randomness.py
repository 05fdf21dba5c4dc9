"""Lowerings of random numbers: those that are functions of a seed are computed where they are needed; seeds are drawn by a call.

In: a context, a seed and a size. Out: a tensor that is not stored yet, each element a function of the seed and its position; a
call of eager's kernel where the plugin has no random numbers. What eager draws one after the other from its generator
(`eager_numbers`), and operators whose number of draws depends on the numbers drawn, call eager's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.tensors import contiguous_strides, flat_index
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_name, is_low_precision
from fxloom_ops.philox import PHILOX_INTEGERS, PHILOX_NORMAL, PHILOX_SEEDS, PHILOX_UNIFORM, UNIFORM_BITS

if TYPE_CHECKING:
    from fxloom_inductor_core.ir.tensors import Index
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

#: what a number costs, in elementwise operations: ten rounds of two multiplications and four exclusive ors
_COST = 40


@lowering(PHILOX_SEEDS)
def seeds(cx: LoweringContext, count: int, *, device: torch.device) -> Any:
    return cx.eager(cx.current, library=True)


def _draw(cx: LoweringContext, seed: Any, number: Any) -> Any:
    """The tensor of `number(ops, seed, position)`, row by row."""
    fake = cx.fake
    device = str(fake.device)
    if not cx.codegens[fake.device.type].capabilities.random:
        return cx.eager(cx.current, library=True)
    cx.realize(seed)
    size = tuple(as_expr(s) for s in fake.size())
    stride = contiguous_strides(size)

    def body(ops: Any, index: Index) -> Any:
        layout = seed.stored_layout()
        return number(ops, ops.load_seed(seed.buffer, layout.offset), ops.index_expr(flat_index(index, stride), "int64"))

    return cx.compute(size, dtype_name(fake.dtype), device, body, [seed], ops=_COST, heavy=True)


def _fraction(ops: Any, seed: Any, position: Any) -> Any:
    """53 bits as float64."""
    low, high = ops.constant(0, "int64"), ops.constant(1 << 53, "int64")
    return ops.to_dtype(ops.randint64(seed, position, low, high), "float64")


@lowering(PHILOX_UNIFORM)
def uniform(cx: LoweringContext, seed: Any, size: Sequence[Any], *, dtype: torch.dtype) -> Any:
    name, bits = dtype_name(dtype), UNIFORM_BITS[dtype]

    def number(ops: Any, key: Any, position: Any) -> Any:
        if name == "float64":
            return ops.mul(_fraction(ops, key, position), ops.constant(2.0**-bits, name))
        fine = ops.rand(key, position)
        if not is_low_precision(name):
            return fine
        steps = ops.floor(ops.mul(fine, ops.constant(2.0**bits, "float32")))
        return ops.to_dtype(ops.mul(steps, ops.constant(2.0**-bits, "float32")), name)

    return _draw(cx, seed, number)


@lowering(PHILOX_NORMAL)
def normal(cx: LoweringContext, seed: Any, size: Sequence[Any], *, dtype: torch.dtype) -> Any:
    name = dtype_name(dtype)

    def number(ops: Any, key: Any, position: Any) -> Any:
        if name != "float64":
            return ops.to_dtype(ops.randn(key, position), name)
        even = ops.mul(position, ops.constant(2, "int64"))
        first = ops.add(_fraction(ops, key, even), ops.constant(1, name))
        second = _fraction(ops, key, ops.add(even, ops.constant(1, "int64")))
        radius = ops.sqrt(ops.mul(ops.constant(-2, name), ops.log(ops.mul(first, ops.constant(2.0**-53, name)))))
        return ops.mul(radius, ops.cos(ops.mul(second, ops.constant(2.0**-53 * 2 * math.pi, name))))

    return _draw(cx, seed, number)


@lowering(PHILOX_INTEGERS)
def integers(cx: LoweringContext, seed: Any, low: int, high: int, size: Sequence[Any], *, dtype: torch.dtype) -> Any:
    name = dtype_name(dtype)

    def number(ops: Any, key: Any, position: Any) -> Any:
        drawn = ops.randint64(key, position, ops.constant(low, "int64"), ops.constant(high, "int64"))
        return ops.to_dtype(drawn, name)

    return _draw(cx, seed, number)


def _eager(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    return cx.eager(cx.current, library=True)


lowering(
    aten.rand.default, aten.randn.default, aten.randint.default, aten.randint.low, aten.native_dropout.default,
    aten.bernoulli.default, aten.bernoulli.p, aten.uniform.default, aten.normal_functional.default, aten.exponential.default,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.randint_like.low_dtype,
    aten.randperm.default, aten.multinomial.default, aten.poisson.default, aten.binomial.default,
)(_eager)  # fmt: skip
