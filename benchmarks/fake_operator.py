"""One operator on fake tensors through a warm cache: fxloom's against torch's own cached fake tensors, in one run.

python benchmarks/fake_operator.py

Prints microseconds per operator and the ratio (wanted: at least 10), for static sizes and for symbolic ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # the peer

from fxloom_interfaces.sources import LocalSource
from fxloom_shapes import FakeMode, SymbolEnv
from fxloom_shapes.fake.symbolize import DimPolicy, symbolize


def microseconds(call: Callable[[], Any], repeats: int = 400) -> float:
    """Median over 7 rounds of the mean time of a call."""
    for _ in range(20):
        call()
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        rounds.append((time.perf_counter() - start) / repeats * 1e6)
    return statistics.median(rounds)


OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, w: x + x,
    "mm": lambda x, w: torch.mm(x, w),
    "view": lambda x, w: x.view(-1),
    "softmax": lambda x, w: torch.softmax(x, -1),
    "sum": lambda x, w: x.sum(1),
    "transpose": lambda x, w: x.transpose(0, 1),
}


def main() -> None:
    x, w = torch.randn(32, 64), torch.randn(64, 16)
    theirs, ours, env = FakeTensorMode(), FakeMode(), SymbolEnv()
    symbolic = FakeMode(env)
    real = torch.randn(32, 64)
    symbolize(env, real, LocalSource("x"), {0: DimPolicy()})
    pairs = {
        "torch": (theirs.from_tensor(x), theirs.from_tensor(w)),
        "static": (ours.from_tensor(x), ours.from_tensor(w)),
        "symbolic": (symbolic.from_tensor(real), symbolic.from_tensor(w)),
    }
    modes = {"torch": theirs, "static": ours, "symbolic": symbolic}
    ratios = []
    for name, operator in OPERATORS.items():
        times = {}
        for who, (a, b) in pairs.items():
            with modes[who], torch.no_grad():
                times[who] = microseconds(lambda a=a, b=b, operator=operator: operator(a, b))  # type: ignore[misc]  # bound now
        ratios.append(times["torch"] / times["static"])
        print(f"{name:10s} torch {times['torch']:7.1f}  fxloom {times['static']:6.1f}  symbolic {times['symbolic']:6.1f}  {ratios[-1]:5.1f} x")
    print(f"geometric mean {statistics.geometric_mean(ratios):.1f} x")


if __name__ == "__main__":
    main()
