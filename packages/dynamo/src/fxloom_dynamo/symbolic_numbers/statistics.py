"""Statistics, products of matrices and losses of tensors with symbolic sizes: rules of `registry`.

In: arguments whose sizes torch's C++ code would ask for, so that each would be compiled for apart, or whose sizes only running the
program tells. Out: the result, computed by operators that leave them symbolic; NotImplemented where a combination is not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_interfaces import symbolic_math
from fxloom_shapes.fake.sizes import is_unbacked, wrapped
from fxloom_shapes.symbols.numbers import SYMBOLIC


@rule(torch.cov, Tensor.cov, any_size=True)
def cov(input: Tensor, *, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> Any:
    if input.dim() != 2 or fweights is not None or aweights is not None or not input.is_floating_point():
        return NotImplemented
    observations = input.shape[1]
    if is_unbacked(*input.shape) or not observations > correction:
        return NotImplemented  # which warns
    apart = input - input.mean(1, keepdim=True)
    together: Tensor = apart @ apart.t() / (observations - correction)
    return together.squeeze()


@rule(torch.corrcoef, Tensor.corrcoef, any_size=True)
def corrcoef(input: Tensor) -> Any:
    together = cov(input)
    if together is NotImplemented or together.dim() != 2:
        return NotImplemented
    deviation = together.diagonal().sqrt()
    return (together / deviation.unsqueeze(1) / deviation.unsqueeze(0)).clip(-1, 1)


@rule(torch.linalg.multi_dot, any_size=True)
def multi_dot(tensors: Sequence[Tensor], *, out: Any = None) -> Any:
    if out is not None or not isinstance(tensors, (list, tuple)) or len(tensors) != 3 or any(tensor.dim() != 2 for tensor in tensors):
        return NotImplemented
    a, b, c = tensors
    rows, inner = a.shape
    outer, columns = c.shape
    if is_unbacked(rows, inner, outer, columns):
        return NotImplemented
    left_first, right_first = rows * outer * (inner + columns), inner * columns * (rows + outer)
    return a @ (b @ c) if left_first > right_first else a @ b @ c


@rule(torch.narrow, Tensor.narrow)
def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Any:
    if type(start) not in SYMBOLIC or not is_unbacked(start) or not input.dim() or not -input.dim() <= dim < input.dim():
        return NotImplemented
    axis = dim % input.dim()
    extent = input.shape[axis]
    first = wrapped(start, extent)
    outside = "start out of range (expected to be in range of [-{}, {}], but got {})"
    for inside in (start >= -extent, start <= extent):
        symbolic_math.check(inside, outside, "IndexError", extent, extent, start)
    torch._check(first >= 0)  # which follows, though not to the prover
    text = "start ({}) + length ({}) exceeds dimension size ({})."
    symbolic_math.check(first + length <= extent, text, "RuntimeError", first, length, extent)
    return input[(*[slice(None)] * axis, slice(first, first + length))]


@rule(
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.kl_div,
    F.poisson_nll_loss, F.soft_margin_loss, any_size=True,
)  # fmt: skip
def losses(input: Any, target: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The operator's own, after sizes that only running tells were taken to be equal, as a sum of the two would: it is checked."""
    if isinstance(input, Tensor) and isinstance(target, Tensor) and input.dim() == target.dim():
        for a, b in zip(input.shape, target.shape, strict=True):
            if is_unbacked(a, b):
                torch._check(a == b)
    return NotImplemented
