"""Seconds of compilation against the size of the program, by phase.

    python benchmarks/compile_scaling.py                            # a GRU cell over 25, 50, 100, 200 steps, forward and backward
    python benchmarks/compile_scaling.py --program pointwise transformer
    python benchmarks/compile_scaling.py --program gru --sizes 150 --plan-only --profile inductor

Programs: `gru`, steps of an unrolled cell, trained; `pointwise`, operators in a chain of elementwise ones with a matrix product
after every ten; `wide`, as many that all read one tensor; `optimizer`, parameters of an Adam step; `transformer`, layers of an encoder, trained.

The sizes run one after the other in this process, which begins with an empty cache; seconds by phase are those of
`fxloom.stats()`, where an outer phase (dynamo.capture, dynamo.backend) holds the inner ones. What grows faster than the program
shows in the last column: the ratio of the two longest programs, for each phase. --plan-only leaves the compiler out. --profile
prints the functions with most time of their own in files whose path has that word, for the largest size.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable

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


def gru(steps: int) -> Callable[[], object]:
    cell, x = nn.GRUCell(16, 32), torch.randn(steps, 4, 16)
    compiled = fxloom.compile(unrolled)
    return lambda: compiled(cell, x).backward()


def pointwise(nodes: int) -> Callable[[], object]:
    x, w = torch.randn(32, 32), torch.randn(32, 32) / 6

    def chain(x: Tensor, w: Tensor) -> Tensor:
        other = x
        for n in range(nodes // 11):
            x = torch.tanh(((x * 0.5 + other).relu() - 0.25 * other).sigmoid() * 2.0 - x + 0.125)
            if n % 3 == 0:
                other = x
            x = x @ w
        return x

    compiled = fxloom.compile(chain)
    return lambda: compiled(x, w)


def wide(nodes: int) -> Callable[[], object]:
    x = torch.randn(64, 64)

    def fan(x: Tensor) -> list[Tensor]:
        return [(x * float(n)).sum(n % 2) for n in range(nodes // 2)]

    compiled = fxloom.compile(fan)
    return lambda: compiled(x)


def optimizer(parameters: int) -> Callable[[], object]:
    held = [nn.Parameter(torch.randn(8, 4 + n % 7)) for n in range(parameters)]
    for parameter in held:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW(held, lr=1e-3, foreach=False)
    return fxloom.compile(adam.step)


def transformer(layers: int) -> Callable[[], object]:
    made = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1, norm_first=True) for _ in range(layers)]
    model, x = nn.Sequential(*made), torch.randn(2, 8, 32)
    compiled = fxloom.compile(model)
    return lambda: compiled(x).sum().backward()


#: name -> (what makes the first call of a program of a size, sizes)
PROGRAMS: dict[str, tuple[Callable[[int], Callable[[], object]], tuple[int, ...]]] = {
    "gru": (gru, (25, 50, 100, 200)),
    "pointwise": (pointwise, (1250, 2500, 5000, 10000)),
    "wide": (wide, (1250, 2500, 5000, 10000)),
    "optimizer": (optimizer, (250, 500, 1000, 2000)),
    "transformer": (transformer, (6, 12, 24, 48)),
}


def measure(program: str, size: int, profile: str | None = None) -> dict[str, float]:
    """Seconds by phase of a program's first call, and "whole" by the clock."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fxloom.reset()
    call = PROGRAMS[program][0](size)
    before = dict(fxloom.stats().seconds)
    profiler = cProfile.Profile()
    start = time.perf_counter()
    if profile is not None:
        profiler.enable()
    call()
    profiler.disable()
    whole = time.perf_counter() - start
    if profile is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(profile, 40)
    after = fxloom.stats()
    spent = {name: value - before.get(name, 0.0) for name, value in after.seconds.items()}
    return {**spent, "kernels": float(after.kernels.total()), "whole": whole}


def without_compiler() -> None:
    """Kernels are printed and never built: results are wrong, the seconds of everything else are right."""

    def build(self: CppCodegen, sources: list, store: object) -> BuiltKernels:
        return BuiltKernels({source.name: lambda *arguments: None for source in sources}, 0, cached=True, source="")

    CppCodegen.build = build  # type: ignore[method-assign,assignment]  # for this process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", nargs="*", default=["gru"], choices=sorted(PROGRAMS))
    parser.add_argument("--sizes", type=int, nargs="*", help="instead of the program's own")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--profile", metavar="WORD", help="print the slowest functions of files whose path has this word")
    options = parser.parse_args()
    if options.plan_only:
        without_compiler()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FXLOOM_CACHE_DIR"] = folder
        measure("gru", 3)  # imports, first use
        for program in options.program:
            sizes = options.sizes or PROGRAMS[program][1]
            measure(program, 3 if program in ("gru", "transformer") else 30)
            print_table(program, sizes, [measure(program, size, options.profile if size == max(sizes) else None) for size in sizes])


def print_table(program: str, sizes: list[int] | tuple[int, ...], columns: list[dict[str, float]]) -> None:
    names = sorted({name for column in columns for name in column}, key=lambda name: -columns[-1].get(name, 0.0))
    print(f"{program:24}" + "".join(f"{size:>9}" for size in sizes) + "    ratio")
    for name in names:
        values = [column.get(name, 0.0) for column in columns]
        ratio = f"{values[-1] / values[-2]:9.1f}" if len(values) > 1 and values[-2] else ""
        print(f"{name:24}" + "".join(f"{value:9.2f}" for value in values) + ratio)
    print(flush=True)


if __name__ == "__main__":
    main()
