"""Calls that pass a tensor where an operator of torch takes a number: eager reads the number out of it, a graph can't.

In: `addcdiv_(a, b, value=t)` and its kind with a 0-dim tensor, `_foreach_addcdiv_(xs, as, bs, t)` with a 1-dim one. Out:
operators that compute the same from the tensor, in the order in which the kernels compute it, so that the result differs
from eager's by rounding at most. torch's optimizers make such calls when they are captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.recorder import Recorder

_COMBINE: dict[str, Callable[..., Any]] = {"addcdiv": torch.div, "addcmul": torch.mul}
_COMBINE_MANY: dict[str, Callable[..., Any]] = {
    "_foreach_addcdiv": torch._foreach_div,
    "_foreach_addcmul": torch._foreach_mul,
}
#: names of calls that `rewrite` knows
NAMES = frozenset(name + suffix for name in (*_COMBINE, *_COMBINE_MANY) for suffix in ("", "_"))


def rewrite(recorder: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the call; NotImplemented where it passes no tensor as a number."""
    base = name.removesuffix("_")
    if base in _COMBINE:
        return _one(recorder, name, _COMBINE[base], args, kwargs)
    if base in _COMBINE_MANY:
        return _many(recorder, name, _COMBINE_MANY[base], args, kwargs)
    return NotImplemented  # a name of something else


def _one(recorder: Recorder, name: str, combine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = kwargs.get("value")
    if not _is_number(value, 0) or len(args) != 3 or len(kwargs) != 1:
        return NotImplemented
    target, left, right = args
    if not target.is_floating_point():
        return NotImplemented
    call = recorder.call_function
    scaled = call(torch.mul, (left, value), {})
    return call(torch.Tensor.add_ if name.endswith("_") else torch.add, (target, call(combine, (scaled, right), {})), {})


def _many(recorder: Recorder, name: str, combine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """self + scalars[i] * a[i] / b[i]"""
    given = (*args, *kwargs.values())
    if len(given) != 4 or kwargs.keys() - {"scalars"} or not _is_number(given[3], 1):
        return NotImplemented
    targets, left, right, value = given
    if not all(target.is_floating_point() for target in targets):
        return NotImplemented
    call = recorder.call_function
    scaled = call(torch._foreach_mul, (list(left), list(call(torch.unbind, (value,), {}))), {})
    change = call(combine, (scaled, list(right)), {})
    return call(torch._foreach_add_ if name.endswith("_") else torch._foreach_add, (list(targets), change), {})


def _is_number(value: Any, dim: int) -> bool:
    """A tensor that stands for a number (or a row of numbers) and is not differentiated: eager would read it with a warning."""
    return type(value) is FakeTensor and value.dim() == dim and not value.requires_grad and value.constant is None
