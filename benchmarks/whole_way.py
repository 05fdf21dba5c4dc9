"""The four programs of the demo: eager, torch.compile and fxloom, measured against each other in one run.

    python benchmarks/whole_way.py                       # everything, CPU, float32
    python benchmarks/whole_way.py --device cuda --dtype bfloat16 --only steady
    python benchmarks/whole_way.py --json out.json

What is measured, and how it is kept fair:

- steady: all contenders in one process, called in turn, medians of the rounds; so drift of a shared machine hits all alike.
- cold: seconds of the first call in a process of its own with empty caches. torch.compile's precompiled header and ISA probe,
  which it makes once per machine, are made beforehand.
- warm: the same in a second process with the caches that the first one left; plus the seconds to import the compiler.
- overhead: microseconds per call of a compiled function of one operator on one element.
- correctness: error against float64 beside eager's own (fxloom.demo.accuracy).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTENDERS = ("eager", "torch.compile", "fxloom")


def compiler(contender: str, mode: str | None) -> Callable[[Any], Any]:
    """The function that compiles for a contender."""
    if contender == "fxloom":
        import fxloom

        return lambda function: fxloom.compile(function, mode=mode)
    if contender == "torch.compile":
        import torch

        return lambda function: torch.compile(function, mode=mode)
    return lambda function: function


def steady(name: str, device: str, dtype: str, small: bool, rounds: int, modes: list[str | None]) -> dict[str, Any]:
    """Medians of all contenders in one process, and the correctness of fxloom's results."""
    import torch

    from fxloom.demo.accuracy import compare, double_reference
    from fxloom.demo.programs import PROGRAMS
    from fxloom.demo.run import interleaved
    from fxloom.stats import RECORDER

    (program,) = [program for program in PROGRAMS if program.name == name]
    target = torch.device(device)
    torch.manual_seed(0)
    function, inputs = program.make(target, getattr(torch, dtype), small)
    contenders: dict[str, Callable[..., Any]] = {"eager": function}
    row: dict[str, Any] = {"program": name, "device": device_name(target), "dtype": dtype}
    with torch.no_grad():
        for mode in modes:
            suffix = f" {mode}" if mode else ""
            for contender in ("torch.compile", "fxloom"):
                RECORDER.reset()
                compiled = compiler(contender, mode)(function)
                result = compiled(*inputs)
                if contender == "fxloom":
                    counts = RECORDER.stats
                    row[f"graphs{suffix}"] = counts.graphs
                    row[f"breaks{suffix}"] = counts.graph_breaks
                    row[f"kernels{suffix}"] = counts.kernels.total()
                    row[f"fallbacks{suffix}"] = dict(counts.fallbacks)
                    row[f"library{suffix}"] = counts.library_calls.total()
                    row[f"replay_skips{suffix}"] = counts.replay_skips
                    expected = function(*inputs)
                    for _ in range(2):  # recorded and replayed from the second call on
                        result = compiled(*inputs)
                    accuracy = compare(expected, result, double_reference(function, inputs))
                    row[f"correct{suffix}"] = accuracy.correct
                    row[f"reason{suffix}"] = accuracy.reason
                    row[f"error{suffix}"] = accuracy.compiled
                    row[f"error eager{suffix}"] = accuracy.eager
                contenders[f"{contender}{suffix}"] = compiled
                del result
        times = interleaved(list(contenders.values()), inputs, target, rounds)
    row["ms"] = dict(zip(contenders, times, strict=True))
    return row


def first_call(name: str, contender: str, device: str, dtype: str, small: bool) -> dict[str, Any]:
    """Seconds to import the compiler and seconds of the first call, the model's construction left out."""
    import torch

    from fxloom.demo.programs import PROGRAMS  # imports nothing of the compilers

    (program,) = [program for program in PROGRAMS if program.name == name]
    target = torch.device(device)
    torch.manual_seed(0)
    function, inputs = program.make(target, getattr(torch, dtype), small)
    start = time.perf_counter()
    compile_ = compiler(contender, None)
    if contender == "torch.compile":
        import torch._dynamo
    imported = time.perf_counter() - start
    with torch.no_grad():
        start = time.perf_counter()
        compile_(function)(*inputs)
        if target.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        steady_start = time.perf_counter()
        function(*inputs)
        eager_seconds = time.perf_counter() - steady_start
    return {"import": imported, "first call": seconds, "eager call": eager_seconds}


def overhead(device: str) -> dict[str, float]:
    """Microseconds per call of one operator on one element, contenders in turn."""
    import torch

    def add_one(x: Any) -> Any:
        return x + 1

    # A code object each: both stacks keep what they compiled on it.
    originals = [types.FunctionType(add_one.__code__.replace(), globals(), "add_one") for _ in CONTENDERS]
    functions = [compiler(contender, None)(original) for contender, original in zip(CONTENDERS, originals, strict=True)]
    x = torch.ones(1, device=device)
    times: list[list[float]] = [[] for _ in functions]
    with torch.no_grad():
        for function in functions:
            for _ in range(50):
                function(x)
        for _ in range(60):
            for number, function in enumerate(functions):
                start = time.perf_counter()
                for _ in range(500):
                    function(x)
                times[number].append((time.perf_counter() - start) / 500 * 1e6)
    return {contender: statistics.median(series) for contender, series in zip(CONTENDERS, times, strict=True)}


def device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def in_process(task: str, arguments: list[str], environment: dict[str, str]) -> Any:
    """Run a task of this file in a process of its own; returns what it printed as JSON on its last line."""
    command = [sys.executable, __file__, "--task", task, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def caches(root: Path) -> dict[str, str]:
    """Environment that puts all contenders' caches below `root`."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(root / "torch"),
        "FXLOOM_CACHE_DIR": str(root / "fxloom"),
        "TRITON_CACHE_DIR": str(root / "triton"),
    }


def first_calls(names: list[str], common: list[str], console: Any) -> dict[str, dict[str, Any]]:
    """Cold and warm first calls of torch.compile and fxloom for each program."""
    table: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine"
        console.print("making torch.compile's per-machine files (precompiled header, ISA probe)")
        in_process("prepare", common, caches(machine))
        for name in names:
            table[name] = {}
            for contender in ("torch.compile", "fxloom"):
                root = Path(folder) / f"{name}-{contender}".replace(" ", "_")
                shutil.copytree(machine, root)
                for temperature in ("cold", "warm"):
                    console.print(f"{name}: {contender}, {temperature}")
                    table[name][f"{contender} {temperature}"] = in_process(
                        "first_call", [*common, "--program", name, "--contender", contender], caches(root)
                    )
    return table


def prepare(device: str) -> None:
    """Make what torch.compile makes once per machine; the function compiled is in no program."""
    import torch

    compiled = torch.compile(lambda x: (x * 3.25 + 0.125).cos().sum())
    with torch.no_grad():
        compiled(torch.ones(37, device=device))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def report(results: dict[str, Any], console: Any) -> None:
    """Tables of what was measured."""
    from rich.table import Table

    if results.get("steady"):
        rows = results["steady"]
        labels = list(rows[0]["ms"])
        table = Table(title=f"steady state, {rows[0]['device']}, {rows[0]['dtype']}: milliseconds (speed over eager)")
        for heading in ("program", *labels, "graphs", "breaks", "kernels", "library", "fallbacks", "error", "eager's", "correct"):
            table.add_column(heading)
        for row in rows:
            eager = row["ms"]["eager"]
            cells = [f"{row['ms'][label]:.2f} ({eager / row['ms'][label]:.2f})" for label in labels]
            counts = [str(row[key]) for key in ("graphs", "breaks", "kernels", "library")]
            fallbacks = ", ".join(f"{op} x{n}" for op, n in row["fallbacks"].items()) or "0"
            errors = [f"{row['error']:.1e}", f"{row['error eager']:.1e}", "yes" if row["correct"] else f"NO: {row['reason']}"]
            table.add_row(row["program"], *cells, *counts, fallbacks, *errors)
        console.print(table)
        for label in labels:
            mean = geometric_mean([row["ms"]["eager"] / row["ms"][label] for row in rows])
            console.print(f"  {label}: geometric mean {mean:.2f} over eager")
        for label in labels:
            if label.startswith("fxloom"):
                peer = label.replace("fxloom", "torch.compile")
                mean = geometric_mean([row["ms"][peer] / row["ms"][label] for row in rows])
                console.print(f"  {label}: geometric mean {mean:.2f} of {peer}'s speed")
    if results.get("first calls"):
        table = Table(title="first call: seconds (import of the compiler + call)")
        for heading in ("program", "torch cold", "fxloom cold", "ratio", "torch warm", "fxloom warm", "ratio"):
            table.add_column(heading)
        ratios: dict[str, list[float]] = {"cold": [], "warm": []}
        for name, entry in results["first calls"].items():
            cells = []
            for temperature in ("cold", "warm"):
                peer, ours = entry[f"torch.compile {temperature}"], entry[f"fxloom {temperature}"]
                add = temperature == "warm"  # the import counts where the question is how soon the first result comes
                a = peer["first call"] + (peer["import"] if add else 0)
                b = ours["first call"] + (ours["import"] if add else 0)
                ratios[temperature].append(b / a)
                cells += [f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}"]
            table.add_row(name, *cells)
        console.print(table)
        for temperature, values in ratios.items():
            console.print(f"  {temperature}: fxloom takes {geometric_mean(values):.2f} of torch.compile's seconds (geometric mean)")
    if results.get("overhead"):
        console.print("overhead, one operator on one element, microseconds per call: " + str({k: round(v, 2) for k, v in results["overhead"].items()}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=("steady", "first", "overhead"), action="append")
    parser.add_argument("--programs", nargs="*", help="by part of the name")
    parser.add_argument("--modes", nargs="*", default=["default"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    modes = [None if mode == "default" else mode for mode in options.modes]
    if options.task:
        run = {
            "steady": lambda: steady(options.program, options.device, options.dtype, options.small, options.rounds, modes),
            "first_call": lambda: first_call(options.program, options.contender, options.device, options.dtype, options.small),
            "prepare": lambda: prepare(options.device),
            "overhead": lambda: overhead(options.device),
        }[options.task]
        print(json.dumps(run()))
        return 0

    from rich.console import Console

    from fxloom.demo.programs import PROGRAMS

    console = Console(width=200)
    names = [p.name for p in PROGRAMS if not options.programs or any(part.lower() in p.name.lower() for part in options.programs)]
    common = ["--device", options.device, "--dtype", options.dtype, "--rounds", str(options.rounds), "--modes", *options.modes]
    common += ["--small"] if options.small else []
    wanted = options.only or ["steady", "first", "overhead"]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = caches(Path(folder))
        if "steady" in wanted:
            results["steady"] = []
            for name in names:
                console.print(f"{name}: steady state")
                results["steady"].append(in_process("steady", [*common, "--program", name], environment))
        if "overhead" in wanted:
            results["overhead"] = in_process("overhead", common, environment)
    if "first" in wanted:
        results["first calls"] = first_calls(names, common, console)
    report(results, console)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
