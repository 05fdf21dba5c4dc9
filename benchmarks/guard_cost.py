"""Guards and dispatch on a hit, microseconds per call beyond an empty Python call: torch.compile and fxloom in one run.

    python benchmarks/guard_cost.py

The backend returns the outputs of the first call, so nothing but guards, dispatch and the hand-over of inputs is left.
Contenders are called in turn; the least and the median of the rounds are shown. The last rows are one model with more and
more identical layers: what a layer adds is the slope.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fxloom_dynamo import optimize


def constant(gm: Any, example_inputs: Any) -> Callable[..., Any]:
    """A backend whose graphs give what they gave at first."""
    outputs = tuple(gm(*example_inputs))
    return lambda *inputs: outputs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        return x + self.linear(self.norm(x))


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(count)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def ten(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any) -> Any:
    return a + b + c + d + e + f + g + h + i + j


def empty(*args: Any) -> None:
    """What both are measured against."""


def microseconds(runs: dict[str, Callable[[], Any]], calls: int, rounds: int = 15) -> dict[str, tuple[float, float]]:
    """(least, median) per contender."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            taken[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: (min(times), statistics.median(times)) for name, times in taken.items()}


def main() -> None:
    torch.set_num_threads(1)
    x, tensors = torch.randn(4), [torch.randn(4) for _ in range(10)]
    cases: list[tuple[str, Any, list[Any], int]] = [
        ("1 tensor", lambda x: x + 1, [x], 2000),
        ("10 tensors", ten, tensors, 2000),
        ("module tree with 50 parameters", nn.Sequential(*[nn.Linear(4, 4) for _ in range(25)]), [x], 500),
    ]
    cases += [(f"{count} layers, {4 * count} parameters", Layers(count), [x], 200) for count in (3, 6, 12, 24, 48)]
    print(f"{'':34}{'torch.compile':>24}{'fxloom':>24}   (least, median)")
    with torch.no_grad():
        for name, fn, args, calls in cases:
            torch.compiler.reset()
            theirs, ours = torch.compile(fn, backend=constant), optimize(constant)(fn)
            runs = {
                "empty": functools.partial(empty, *args),
                "torch.compile": functools.partial(theirs, *args),
                "fxloom": functools.partial(ours, *args),
            }
            for run in runs.values():
                run()
                run()
            found = microseconds(runs, calls)
            columns = "".join(
                f"{found[who][0] - found['empty'][0]:>13.2f},{found[who][1] - found['empty'][1]:>10.2f}"
                for who in ("torch.compile", "fxloom")
            )
            print(f"{name:34}{columns}", flush=True)


if __name__ == "__main__":
    main()
