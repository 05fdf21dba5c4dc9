"""Runs the demo's programs: compile with progress, check against float64, time interleaved with eager, print a table.

In: the programs to run and the device. Out: lines and a table on standard output.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import fxloom
from fxloom.demo.accuracy import Accuracy, compare, double_reference
from fxloom.demo.programs import PROGRAMS, Program
from fxloom.stats import Stats


@dataclass(frozen=True, slots=True)
class Row:
    """What the table shows of one program. Times are medians of interleaved runs, in milliseconds."""

    name: str
    eager_ms: float
    compiled_ms: float
    compile_seconds: float
    graphs: int
    breaks: int
    kernels: int
    library_calls: dict[str, int]
    fallbacks: dict[str, int]
    eager_error: float
    compiled_error: float
    correct: bool
    reason: str

    @property
    def ratio(self) -> float:
        return self.eager_ms / self.compiled_ms


def run_program(
    program: Program, *, device: torch.device, dtype: torch.dtype, mode: str | None, small: bool, repeats: int
) -> tuple[Row, Stats]:
    """Compile `program` (nothing of it compiled before in this process) and measure."""
    torch.manual_seed(0)
    function, inputs = program.make(device, dtype, small)
    fxloom.reset()
    compiled = fxloom.compile(function, mode=mode)
    with torch.no_grad():
        start = time.perf_counter()
        result = compiled(*inputs)
        _synchronize(device)
        seconds = time.perf_counter() - start
        counts = fxloom.stats()
        expected = function(*inputs)
        accuracy = compare(expected, result, double_reference(function, inputs))
        del result, expected
        eager_ms, compiled_ms = interleaved([function, compiled], inputs, device, repeats)
    return _row(program.name, accuracy, eager_ms, compiled_ms, seconds, counts), counts


def interleaved(functions: Sequence[Callable[..., Any]], inputs: tuple[Any, ...], device: torch.device, repeats: int) -> list[float]:
    """Median milliseconds of each function; rounds go through all of them in turn, so that drift hits all alike."""
    for function in functions:
        for _ in range(3):
            function(*inputs)
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for number, function in enumerate(functions):
            _synchronize(device)
            start = time.perf_counter()
            function(*inputs)
            _synchronize(device)
            times[number].append((time.perf_counter() - start) * 1e3)
    return [statistics.median(series) for series in times]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(name: str, accuracy: Accuracy, eager_ms: float, compiled_ms: float, seconds: float, counts: Stats) -> Row:
    return Row(
        name, eager_ms, compiled_ms, seconds, counts.graphs, counts.graph_breaks, counts.kernels.total(),
        dict(counts.library_calls), dict(counts.fallbacks), accuracy.eager, accuracy.compiled, accuracy.correct, accuracy.reason,
    )  # fmt: skip


def run_demo(names: Sequence[str], *, device: str, dtype: str, mode: str | None, small: bool, repeats: int, as_json: bool) -> int:
    """Run the demo; exit status 0 when every program is correct."""
    chosen = [program for program in PROGRAMS if not names or any(name.lower() in program.name.lower() for name in names)]
    if not chosen:
        raise SystemExit(f"no program matches {list(names)}; there are {[program.name for program in PROGRAMS]}")
    target = torch.device(device)
    # a table of twelve columns needs room; what is no terminal has all it wants
    console = Console(stderr=as_json) if sys.stdout.isatty() else Console(stderr=as_json, width=160)
    rows = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for program in chosen:
            task = progress.add_task(f"{program.name}: compile, check, time", total=None)
            row, counts = run_program(program, device=target, dtype=getattr(torch, dtype), mode=mode, small=small, repeats=repeats)
            rows.append(row)
            verdict = "correct" if row.correct else f"WRONG ({row.reason})"
            progress.update(task, description=f"{program.name}: {verdict}", total=1, completed=1)
            for broken in counts.break_reasons:
                console.print(f"  graph break: {broken}", markup=False)
    if as_json:
        import json

        print(json.dumps([asdict(row) for row in rows]))  # noqa: T201  # what --json asks for
    else:
        console.print(table(rows, target))
    return 0 if all(row.correct for row in rows) else 1


def table(rows: Sequence[Row], device: torch.device) -> Table:
    """The demo's table."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    out = Table(title=f"fxloom demo on {name}")
    out.add_column("program")
    for heading in (
        "eager ms",
        "compiled ms",
        "ratio",
        "compile s",
        "graphs",
        "breaks",
        "kernels",
        "library",
        "fallbacks",
        "error",
        "eager's error",
    ):
        out.add_column(heading, justify="right")
    out.add_column("correct")
    for row in rows:
        fallbacks = ", ".join(f"{op} x{count}" for op, count in sorted(row.fallbacks.items())) or "0"
        out.add_row(
            row.name, f"{row.eager_ms:.2f}", f"{row.compiled_ms:.2f}", f"{row.ratio:.2f}", f"{row.compile_seconds:.2f}",
            str(row.graphs), str(row.breaks), str(row.kernels), str(sum(row.library_calls.values())), fallbacks,
            f"{row.compiled_error:.1e}", f"{row.eager_error:.1e}", "yes" if row.correct else "NO",
        )  # fmt: skip
    return out
