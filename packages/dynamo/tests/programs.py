"""Compare a captured program with plain Python: results, exceptions, arguments afterwards; count graphs and breaks."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.evaluation.frame_reports import ENDINGS
from fxloom_interfaces.dialects.torch_dialect import verify


@dataclass
class Counts:
    """What capture did over all calls of one `check`."""

    frames: int = 0
    graphs: int = 0
    breaks: tuple[str, ...] = ()


def check(fn: Callable[..., Any], *args: Any, calls: int = 2, fullgraph: bool = False) -> Counts:
    """Assert that captured and plain calls agree, `calls` times, each on fresh copies of `args`."""
    frames: list[Any] = []
    compiled = compile_callable(fn, CaptureConfig(backend=_run, fullgraph=fullgraph, on_capture=frames.append))
    for _ in range(calls):
        plain_args, captured_args = copy.deepcopy(args), copy.deepcopy(args)
        expected = _outcome(fn, plain_args)
        got = _outcome(compiled, captured_args)
        assert same(expected, got), f"{fn.__name__}: expected {expected}, got {got}"
        assert same(plain_args, captured_args), f"{fn.__name__}: arguments afterwards {plain_args}, got {captured_args}"
    broke = [frame.info.broke.key for frame in frames if frame.info.broke is not None]
    return Counts(
        len(frames), sum(frame.info.graph is not None for frame in frames), tuple(key for key in broke if key not in ENDINGS)
    )


def _run(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
    verify(gm)
    return gm.forward


def _outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return ("returned", fn(*args))
    except Exception as error:
        return ("raised", type(error), str(error))


def same(left: Any, right: Any) -> bool:
    """Equal in value and kind, tensors in every element; NaN is NaN."""
    if isinstance(left, torch.Tensor):
        if not isinstance(right, torch.Tensor) or left.dtype != right.dtype or left.shape != right.shape:
            return False
        return torch.equal(left, right) or torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if hasattr(left, "__dict__") and not isinstance(left, type) and not callable(left):
        return same(left.__dict__, right.__dict__)
    return bool(left == right) or callable(left) or isinstance(left, types.GeneratorType)
