"""Calls that pass a tensor where an operator of torch takes a number: eager reads the number out of it, a graph can't.

In: `addcdiv_(a, b, value=t)`, `add_(a, alpha=t)` and their kind with a 0-dim tensor, `_foreach_addcdiv_(xs, as, bs, t)` with
a 1-dim one or a list of 0-dim ones. Out: operators that compute the same from the tensor, in the order in which the kernels
compute it, so that the result differs from eager's by rounding at most. torch's optimizers make such calls when captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder

_COMBINE: dict[str, Callable[..., Any]] = {"addcdiv": torch.div, "addcmul": torch.mul}
_COMBINE_MANY: dict[str, Callable[..., Any]] = {
    "_foreach_addcdiv": torch._foreach_div,
    "_foreach_addcmul": torch._foreach_mul,
}
_SUMS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "add_": torch.Tensor.add_, "sub": torch.sub, "sub_": torch.Tensor.sub_,
    "_foreach_add": torch._foreach_add, "_foreach_add_": torch._foreach_add_,
    "_foreach_sub": torch._foreach_sub, "_foreach_sub_": torch._foreach_sub_,
}  # fmt: skip
#: names of calls that `rewrite` knows
NAMES = frozenset(name + suffix for name in (*_COMBINE, *_COMBINE_MANY) for suffix in ("", "_")) | frozenset(_SUMS)


def rewrite(recorder: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the call; NotImplemented where it passes no tensor as a number."""
    base = name.removesuffix("_")
    if name in _SUMS:
        return _sum(recorder, name, args, kwargs)
    if base in _COMBINE:
        return _one(recorder, name, _COMBINE[base], args, kwargs)
    if base in _COMBINE_MANY:
        return _many(recorder, name, _COMBINE_MANY[base], args, kwargs)
    return NotImplemented  # a name of something else


def _sum(recorder: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """self + alpha * other"""
    alpha = kwargs.get("alpha")
    if not _is_number(alpha, 0) or len(args) != 2 or len(kwargs) != 1:
        return NotImplemented
    target, other = args
    if not all(value.is_floating_point() for value in (target if isinstance(target, (list, tuple)) else (target,))):
        return NotImplemented
    call = recorder.call_function
    scaled = _scale_many(recorder, other, [alpha] * len(other)) if isinstance(other, (list, tuple)) else _scale(recorder, other, alpha)
    return call(_SUMS[name], (target, scaled), {})


def _one(recorder: Recorder, name: str, combine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = kwargs.get("value")
    if not _is_number(value, 0) or len(args) != 3 or len(kwargs) != 1:
        return NotImplemented
    target, left, right = args
    if not target.is_floating_point():
        return NotImplemented
    call = recorder.call_function
    scaled = _scale(recorder, left, value)
    return call(torch.Tensor.add_ if name.endswith("_") else torch.add, (target, call(combine, (scaled, right), {})), {})


def _many(recorder: Recorder, name: str, combine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """self + scalars[i] * a[i] / b[i]"""
    given = (*args, *kwargs.values())
    if len(given) != 4 or kwargs.keys() - {"scalars"} or not _are_numbers(given[3]):
        return NotImplemented
    targets, left, right, value = given
    if not all(target.is_floating_point() for target in targets):
        return NotImplemented
    call = recorder.call_function
    values = list(value) if isinstance(value, (list, tuple)) else list(call(torch.unbind, (value,), {}))
    change = call(combine, (_scale_many(recorder, left, values), list(right)), {})
    return call(torch._foreach_add_ if name.endswith("_") else torch._foreach_add, (list(targets), change), {})


def _scale(recorder: Recorder, tensor: Any, number: Any) -> Any:
    """tensor * number, in the dtype of `tensor`, as if `number` were one."""
    result = recorder.call_function(torch.mul, (tensor, number), {})
    return result if result.dtype == tensor.dtype else recorder.call_function(torch.Tensor.to, (result, tensor.dtype), {})


def _scale_many(recorder: Recorder, tensors: Any, numbers: list[Any]) -> list[Any]:
    return [_scale(recorder, tensor, number) for tensor, number in zip(tensors, numbers, strict=True)]


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_number(item, 0) for item in value)
    return _is_number(value, 1)


def _is_number(value: Any, dim: int) -> bool:
    """A tensor that stands for a number (or a row of numbers) and is not differentiated: eager would read it with a warning."""
    return type(value) is FakeTensor and value.dim() == dim and not value.requires_grad and value.constant is None
