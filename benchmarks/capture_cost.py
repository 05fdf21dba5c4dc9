"""What capture costs: seconds to capture, overhead of a call over eager, memory over many calls, Python beside tensors.

    python benchmarks/capture_cost.py seconds            # BERT-base and ResNet-50, torch.compile's capture and fxloom's in turn
    python benchmarks/capture_cost.py overhead [names]   # the architectures of capture_models.py, eager and captured in turn
    python benchmarks/capture_cost.py memory             # a million calls; a thousand compile-and-drop cycles
    python benchmarks/capture_cost.py python             # Python without tensors, outside and inside a compiled region

How it is kept fair: contenders share one process and are called in turn, in changing order; ratios are of medians, or of
the quickest rounds where it is said so. The
backend runs the captured graph as it stands, so what differs from eager is capture's own cost. For `overhead` the batch is
grown until an eager call takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fxloom_dynamo

sys.path.insert(0, str(Path(__file__).parent))
from capture_models import ARCHITECTURES, Architecture, make, run_mode

LEAST_SECONDS = 0.1


def seconds_of(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_turn(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round; who begins changes from round to round."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for number in range(rounds):
        for name, call in order if number % 2 == 0 else reversed(order):
            taken[name].append(seconds_of(call))
    return taken


# ---------------------------------------------------------------------- seconds to capture


def bert() -> tuple[nn.Module, Callable[[Any], Any]]:
    import transformers

    model = transformers.BertModel(transformers.BertConfig()).eval()
    ids = torch.randint(0, 1000, (1, 8))
    return model, lambda m: m(ids)


def resnet() -> tuple[nn.Module, Callable[[Any], Any]]:
    from fxloom.demo.resnet import ResNet50

    image = torch.randn(1, 3, 64, 64)
    return ResNet50().eval(), lambda m: m(image)


def seconds(rounds: int) -> None:
    """First call minus a later call, both with a backend that runs the graph; a first round warms both up."""
    for name, program in {"BERT-base": bert, "ResNet-50": resnet}.items():
        model, run = program()

        def first_call(compiled: Any, run: Any = run) -> float:
            with torch.no_grad():
                first = seconds_of(lambda: run(compiled))
                return first - min(seconds_of(lambda: run(compiled)) for _ in range(3))

        taken: dict[str, list[float]] = {"torch.compile": [], "fxloom": []}
        for _ in range(rounds + 1):
            torch.compiler.reset()
            taken["torch.compile"].append(first_call(torch.compile(model, backend="eager")))
            fxloom_dynamo.reset()
            taken["fxloom"].append(first_call(fxloom_dynamo.optimize("eager")(model)))
        theirs, ours = (statistics.median(values[1:]) for values in taken.values())
        print(f"{name}: torch.compile {theirs:.2f} s, fxloom {ours:.2f} s: {theirs / ours:.1f} times shorter ({rounds} rounds)", flush=True)


# ---------------------------------------------------------------------- overhead of a call


def grown(inputs: dict[str, Any], factor: int) -> dict[str, Any]:
    """Each tensor `factor` times along its first dimension."""
    return {
        name: torch.cat([value] * factor) if isinstance(value, torch.Tensor) and value.dim() else value for name, value in inputs.items()
    }


def overhead_of(architecture: Architecture, rounds: int) -> dict[str, float]:
    """Seconds of a captured call over seconds of an eager one, by mode."""
    model, inputs = make(architecture)
    factor, taken = 1, 0.0
    while taken < LEAST_SECONDS and factor < 4096:
        factor *= 2
        fed = grown(inputs, factor)
        run_mode(model, model, fed, False)
        taken = seconds_of(functools.partial(run_mode, model, model, fed, False))
    ratios = {}
    compiled = fxloom_dynamo.optimize("eager")(model)
    for train in (False, True):
        contenders: dict[str, Callable[[], Any]] = {
            "eager": functools.partial(run_mode, model, model, fed, train),
            "fxloom": functools.partial(run_mode, model, compiled, fed, train),
        }
        in_turn(contenders, 2)
        rows = in_turn(contenders, rounds)
        # the median of the rounds' ratios: neighbours in time share the machine's mood
        ratios["train" if train else "eval"] = statistics.median(b / a for a, b in zip(rows["eager"], rows["fxloom"], strict=True))
    fxloom_dynamo.reset()
    return {"seconds": taken, **ratios}


def overhead(names: list[str], rounds: int) -> None:
    found: dict[str, list[float]] = {"eval": [], "train": []}
    for architecture in ARCHITECTURES:
        if names and architecture.name not in names:
            continue
        try:
            row = overhead_of(architecture, rounds)
        except Exception as error:
            print(f"{architecture.name:30} {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        for mode, ratios in found.items():
            ratios.append(row[mode])
        print(f"{architecture.name:30} eager {row['seconds']:.2f} s  eval {row['eval']:.3f}  train {row['train']:.3f}", flush=True)
    for mode, ratios in found.items():
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{mode}: geometric mean over {len(ratios)} models {mean:.4f} of eager's seconds, median {statistics.median(ratios):.4f}")


# ---------------------------------------------------------------------- memory


def resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def memory(calls: int, cycles: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(2, 4)
    compiled = fxloom_dynamo.optimize("eager")(model)
    with torch.no_grad():
        for number in range(calls + 1):
            compiled(x)
            if number % (calls // 5) == 0:
                gc.collect()
                print(f"{number:>9} calls: {resident():.1f} MiB, {sys.getrefcount(x)} references to the input", flush=True)
        for number in range(cycles + 1):
            fresh = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            fxloom_dynamo.optimize("eager")(fresh)(x)
            del fresh
            if number % (cycles // 5) == 0:
                gc.collect()
                print(f"{number:>9} compile-and-drop cycles: {resident():.1f} MiB", flush=True)


# ---------------------------------------------------------------------- Python without tensors


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def squares(n: int) -> int:
    total = 0
    for number in range(n):
        total += number * number % 7
    return total


def python(rounds: int) -> None:
    """Of the quickest rounds. `skip` keeps the functions from being captured, so that they run as Python inside the region."""
    times: dict[str, float] = {}

    @fxloom_dynamo.skip
    def work() -> None:
        times["calls"] = seconds_of(functools.partial(fibonacci, 20))
        times["loop"] = seconds_of(functools.partial(squares, 100_000))

    def region(x: Any) -> Any:
        y = x + 1
        work()
        return y * 2

    for fn in (fibonacci, squares, seconds_of):
        fxloom_dynamo.skip(fn)
    compiled = fxloom_dynamo.optimize("eager")(region)
    compiled(torch.ones(2))
    outside: dict[str, list[float]] = {"calls": [], "loop": []}
    inside: dict[str, list[float]] = {"calls": [], "loop": []}
    for _ in range(rounds):
        for where, run in ((outside, work), (inside, lambda: compiled(torch.ones(2)))):
            run()
            for kind, value in times.items():
                where[kind].append(value)
    for kind in times:
        ratio = min(inside[kind]) / min(outside[kind])  # what else runs on the machine only adds to Python's seconds
        print(f"{kind}: inside a region {ratio:.2f} of the seconds outside")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["seconds", "overhead", "memory", "python"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--cycles", type=int, default=1_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    match options.what:
        case "seconds":
            seconds(max(3, options.rounds // 3))
        case "overhead":
            overhead(options.names, options.rounds)
        case "memory":
            memory(options.calls, options.cycles)
        case "python":
            python(options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
