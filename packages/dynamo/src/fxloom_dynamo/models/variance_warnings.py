"""Variances and deviations of too few elements: torch's kernels warn of them, and graphs of operators would not.

In: a call of `var`, `std`, `var_mean` or `std_mean`. Out: its result; where the degrees of freedom are known to be none left,
also the kernel's warning, delayed until the graph has run, at every call. What the kernel gives (NaN, or infinity) is then
computed by operators that do not warn a second time, unless a gradient is wanted.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import TensorBase
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS, METHODS, Args, Kwargs, Model
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def _freedom(x: FakeTensor, args: Args, kwargs: Kwargs) -> tuple[Any, Any, bool] | None:
    """(dims, degrees of freedom, keepdim) of a call's further arguments; None where these are no plain numbers, or torch has to judge."""
    given = dict(kwargs)
    names = ("unbiased",) if args and type(args[0]) is bool else ("dim", "unbiased", "keepdim")
    if len(args) > len(names) or given.keys() - {"dim", "unbiased", "correction", "keepdim"}:
        return None
    given |= dict(zip(names, args, strict=False))
    dim, keepdim = given.get("dim"), given.get("keepdim", False)
    correction = given.get("correction")
    if correction is None:
        correction = 1 if given.get("unbiased", True) else 0
    if dim is not None and type(dim) not in (int, list, tuple):
        return None
    dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    plain = all(type(d) is int and -x.dim() <= d < x.dim() for d in dims) and type(correction) in (int, float)
    if not plain or type(keepdim) is not bool or (x.dim() == 0 and dims):
        return None
    extents = [x.shape[d] for d in dims] or list(x.shape)
    if not all(type(extent) is int for extent in extents):
        return None
    return dims or list(range(x.dim())), math.prod(extents) - correction, keepdim


def _model(name: str, callee: Any) -> Model:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        x = args[0] if args else None
        if type(x) is not FakeTensor or not (x.is_floating_point() or x.is_complex()):
            return ev.torch_native(callee, *args, **kwargs)
        found = _freedom(x, args[1:], kwargs)
        if found is None or found[1] > 0:
            return ev.torch_native(callee, *args, **kwargs)
        dims, _, keepdim = found
        text = (
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor "
            "(input numel divided by output numel)."
        )
        ev.call_after_graph(warnings.warn, text, UserWarning)
        if x.requires_grad and torch.is_grad_enabled() or 0 in x.shape:
            return ev.torch_native(callee, *args, **kwargs)
        return ev.torch_native(_of_too_few, x, dims, keepdim, name)

    return model


def _of_too_few(x: torch.Tensor, dims: list[int], keepdim: bool, name: str) -> Any:
    """What the kernels give where they divide by zero."""
    if not dims:  # of a number: its distance from itself
        mean, spread = x.clone(), (x - x).abs()
    else:
        mean = x.mean(dims, keepdim=True)
        spread = (x - mean).abs().square().sum(dims, keepdim=True)
        if not keepdim:
            gone = {d % x.dim() for d in dims}
            left = [extent for d, extent in enumerate(x.shape) if d not in gone]
            mean, spread = mean.reshape(left), spread.reshape(left)
    result = spread / 0
    if name.startswith("std"):
        result = result.sqrt()
    return (result, mean) if name.endswith("_mean") else result


for _name in ("std", "var", "std_mean", "var_mean"):
    FUNCTIONS[getattr(torch, _name)] = _model(_name, getattr(torch, _name))
for _name in ("std", "var"):
    METHODS[TensorBase, _name] = _model(_name, getattr(torch.Tensor, _name))
