"""Seconds of compilation against the length of an unrolled loop: a GRU cell over n steps, forward and backward.

    python benchmarks/compile_scaling.py                     # 25, 50, 100, 200, 400 steps
    python benchmarks/compile_scaling.py --steps 100 --plan-only

The lengths run one after the other in this process, which begins with an empty cache; seconds by phase are those of
`fxloom.stats()`, where an outer phase (dynamo.capture, dynamo.backend) holds the inner ones. What grows faster than the number
of steps shows in the last column: the ratio of the two longest programs, for each phase. --plan-only leaves the compiler out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import torch
from torch import Tensor, nn

import fxloom
from fxloom_codegen_cpp.plugin import CppCodegen
from fxloom_interfaces.codegen import BuiltKernels


def unrolled(cell: nn.GRUCell, x: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[1], cell.hidden_size)
    states = []
    for t in range(x.shape[0]):
        h = cell(x[t], h)
        states.append(h)
    return torch.stack(states).square().mean()


def measure(steps: int) -> dict[str, float]:
    """Seconds by phase of one training step's compilation, and "whole" by the clock."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell, x = nn.GRUCell(16, 32), torch.randn(steps, 4, 16)
    fxloom.reset()
    before = dict(fxloom.stats().seconds)
    compiled = fxloom.compile(unrolled)
    start = time.perf_counter()
    compiled(cell, x).backward()
    whole = time.perf_counter() - start
    after = fxloom.stats()
    spent = {name: value - before.get(name, 0.0) for name, value in after.seconds.items()}
    return {**spent, "whole": whole}


def without_compiler() -> None:
    """Kernels are printed and never built: results are wrong, the seconds of everything else are right."""

    def build(self: CppCodegen, sources: list, store: object) -> BuiltKernels:
        return BuiltKernels({source.name: lambda *arguments: None for source in sources}, 0, cached=True, source="")

    CppCodegen.build = build  # type: ignore[method-assign,assignment]  # for this process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[25, 50, 100, 200, 400])
    parser.add_argument("--plan-only", action="store_true")
    options = parser.parse_args()
    if options.plan_only:
        without_compiler()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FXLOOM_CACHE_DIR"] = folder
        measure(3)  # imports, first use
        columns = [measure(steps) for steps in options.steps]
    names = sorted({name for column in columns for name in column}, key=lambda name: -columns[-1].get(name, 0.0))
    print(f"{'steps':24}" + "".join(f"{steps:>9}" for steps in options.steps) + "    ratio")
    for name in names:
        values = [column.get(name, 0.0) for column in columns]
        ratio = f"{values[-1] / values[-2]:9.1f}" if len(values) > 1 and values[-2] else ""
        print(f"{name:24}" + "".join(f"{value:9.2f}" for value in values) + ratio)


if __name__ == "__main__":
    main()
