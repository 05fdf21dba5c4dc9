"""Speed of whole models: eager, torch.compile and fxloom in every mode, in turn in one process.

    python benchmarks/models.py                                                        # all tiny models on the CPU
    python benchmarks/models.py --only bert,timm:resnet50,program:nerf --dtypes float32,bfloat16 --threads 1
    python benchmarks/models.py --device cuda --size full --dtypes bfloat16,amp-float16 --json out.json --plots plots
    python benchmarks/models.py --from out.json --plots plots                          # tables and plots of an earlier run

The models are those of check_models.py, whose docstring says what their sizes are; a run is one of them in one mode and dtype. A dtype
`amp-float16` is float32 weights under autocast. `inference` is eval mode without gradients, `train` a forward and a backward pass to new
gradients, without dropout (whose numbers no two contenders share) and without an optimizer.

How it is kept fair:

- All contenders of a run live in one process and are called in turn, in another order each round, so that drift of a shared machine and
  what a contender leaves in the caches hit all alike; a ratio is one of medians over the rounds. A short call is repeated, after one
  that doesn't count. On a GPU calls lie between CUDA events.
- `first`: seconds of the first call (forward and backward), with empty caches of its own for each contender. What a process or a
  machine pays once is paid before, by compiling something else. A contender's later modes find in memory what its first one
  compiled: only the first mode's seconds are cold.
- `cpu ms`, on a GPU: until a call returns that starts on an idle device.
- `peak`: megabytes allocated at most during a call beyond what was there before the contender was compiled; on a CPU by the profiler's
  allocation events. `reserved`, on a GPU: the same of what torch keeps from the device, so that memory of CUDA graphs counts.
- Right or wrong: the first and the fourth call are judged against float64 as check_models.py does, what is wrong a second time on
  other inputs without ReLUs (`rounding`).
- A mode or option that fxloom refuses leaves that contender out, and its message stands in the table.

Workers are processes, one by default: what shares the machine can't be timed. A model that kills its worker is a result as well.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from check_models import MODELS, as_dtype, build, judged, loss_of, other_inputs, references, smooth, without_dropout
from training import peak_bytes
from whole_way import geometric_mean
from workers import run_all, serve

PEER = "torch.compile"
#: modes that are worth their seconds, by device and run; `freezing` is an option
COMPILE_MODES = {
    ("cpu", "inference"): ("default", "freezing", "max-autotune"),
    ("cpu", "train"): ("default", "max-autotune"),
    ("cuda", "inference"): ("default", "reduce-overhead", "max-autotune"),
    ("cuda", "train"): ("default", "reduce-overhead", "max-autotune"),
}
Call = Callable[..., Any]


@dataclass
class Measured:
    """One contender in one run. kind: correct, rounding, wrong, raised, refused (its mode), skipped (no time was left).

    ms: median of a call. over_eager: eager's over its own, above 1 is faster; beside_torch: torch.compile's in the same mode over its
    own. worst: largest error over what is allowed. graphs to calls: fxloom's only, kernels and library calls of forward and backward.
    """

    contender: str
    compile_mode: str
    kind: str = "correct"
    text: str = ""
    first_seconds: float | None = None
    ms: float | None = None
    over_eager: float | None = None
    beside_torch: float | None = None
    cpu_ms: float | None = None
    peak_mb: float | None = None
    reserved_mb: float | None = None
    worst: float | None = None
    graphs: int | None = None
    breaks: int | None = None
    kernels: int | None = None
    calls: int | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.contender if self.contender == "eager" else f"{self.contender} {self.compile_mode}"


@dataclass
class Outcome:
    """One run. kind: done, raised, died, timeout. rows: of the contenders, `Measured` as dictionaries."""

    model: str
    mode: str
    dtype: str
    kind: str = "done"
    text: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def measured(self) -> list[Measured]:
        return [Measured(**row) for row in self.rows]


# ---- contenders ---------------------------------------------------------------------------------------------------------------


def compiled_by(contender: str, compile_mode: str, model: torch.nn.Module) -> Call:
    """The model compiled. Raises what the contender raises for a mode or option that it does not have."""
    options: dict[str, Any] = {"options": {"freezing": True}} if compile_mode == "freezing" else {"mode": compile_mode}
    if contender == PEER:
        return torch.compile(model, **options)  # type: ignore[no-any-return]
    import fxloom

    return fxloom.compile(model, **options)


def begin_step(contender: str, compile_mode: str) -> None:
    """Results of the last call are no longer needed, for contenders whose results live in the memory of a CUDA graph."""
    if compile_mode not in ("reduce-overhead", "max-autotune"):
        return
    if contender == PEER:
        torch.compiler.cudagraph_mark_step_begin()
    elif contender == "fxloom":
        import fxloom

        fxloom.cudagraph_mark_step_begin()


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Every compiler's cache on disk is an empty folder, which is gone afterwards."""
    names = ("FXLOOM_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="models-", ignore_cleanup_errors=True) as folder:
        os.environ.update((name, str(Path(folder) / name.lower())) for name in names)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value


def pay_once(options: argparse.Namespace) -> None:
    """What a process pays for its first compilation, whatever it compiles: imports, probes, precompiled headers."""
    x = torch.randn(64, 64, device=options.device, requires_grad=True)
    for contender in options.contenders.split(","):
        if contender != "eager":
            compiled_by(contender, "default", torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).to(options.device))(
                x
            ).sum().backward()


# ---- one run ------------------------------------------------------------------------------------------------------------------


class Timer:
    """Milliseconds of calls on one device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def call(self, call: Call, repeats: int) -> float:
        """Of one of so many."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) * 1e3 / repeats
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / repeats

    def return_of(self, call: Call) -> float:
        """Until a call returns that finds the device idle."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        taken = (time.perf_counter() - start) * 1e3
        torch.cuda.synchronize()
        return taken


class Run:
    """A model with its inputs in one mode and dtype, and what is right for it."""

    def __init__(self, name: str, mode: str, dtype_name: str, options: argparse.Namespace) -> None:
        self.options, self.train, self.device = options, mode == "train", options.device
        self.name, self.mode = name, mode
        self.computed = getattr(torch, dtype_name.removeprefix("amp-"))
        self.amp = dtype_name.startswith("amp-")
        self.dtype = torch.float32 if self.amp else self.computed
        model, self.inputs = build(name, options.size)
        self.model = without_dropout(model).to(self.device, self.dtype).train(self.train)
        self.state = copy.deepcopy(self.model.state_dict())
        self.given = {key: as_dtype(value, self.dtype, self.device) for key, value in self.inputs.items()}
        self.references = references(self.model, self.around(self.model), [self.inputs], self.train, self.dtype, self.device)

    def around(self, call: Call) -> Call:
        """The call under autocast, where the dtype says so."""
        if not self.amp:
            return call

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(torch.device(self.device).type, self.computed):
                return call(*args, **kwargs)

        return run

    def judge(self, call: Call) -> tuple[float, str, float]:
        """As `judged`, from the model's first state."""
        if self.train:  # running statistics have moved
            self.model.load_state_dict(self.state)
        return judged(self.model, self.around(call), self.references, self.train, torch.finfo(self.computed).eps if self.amp else 0.0)

    def second_look(self, contender: str, compile_mode: str) -> float:
        """Errors pooled over five other inputs, with SiLU for ReLU."""
        model = smooth(copy.deepcopy(self.model))
        inputs = [other_inputs(self.inputs, seed) for seed in range(5)]
        cases = references(model, self.around(model), inputs, self.train, self.dtype, self.device)
        call = self.around(compiled_by(contender, compile_mode, model))
        return judged(model, call, cases, self.train, torch.finfo(self.computed).eps if self.amp else 0.0)[0]

    def step(self, call: Call, contender: str, compile_mode: str) -> Callable[[], None]:
        """One call as it is timed."""
        inputs = dict(self.given)
        positional = (inputs.pop("x"),) if "x" in inputs else ()
        call = self.around(call)

        def run() -> None:
            begin_step(contender, compile_mode)
            if not self.train:
                with torch.no_grad():
                    call(*positional, **inputs)
                return
            self.model.zero_grad(set_to_none=True)
            loss_of(call(*positional, **inputs)).backward()

        return run


def memory(run: Callable[[], None], cuda: bool, before: tuple[int, int]) -> tuple[float, float | None]:
    """(megabytes allocated at most during a call, megabytes reserved) beyond what was there `before`."""
    if not cuda:
        return round(peak_bytes(run) / 1e6, 3), None
    settle()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return tuple(
        round((now - then) / 1e6, 3)
        for now, then in zip((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()), before, strict=True)
    )  # type: ignore[return-value]


def settle() -> tuple[int, int]:
    """Bytes of the GPU's memory that are allocated and reserved once garbage is gone."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def prepare(run: Run, row: Measured, deadline: float) -> Callable[[], None] | None:
    """Compile and judge one contender; what is returned is timed. None where there is nothing to time."""
    cuda = run.device.startswith("cuda")
    if time.monotonic() > deadline:
        row.kind, row.text = "skipped", "no time was left for it"
        return None
    before = settle() if cuda else (0, 0)
    if row.contender == "eager":
        step = run.step(run.model, "eager", "")
        step()
        row.peak_mb, row.reserved_mb = memory(step, cuda, before)
        return step
    try:
        call = compiled_by(row.contender, row.compile_mode, run.model)
    except Exception as error:
        row.kind, row.text = "refused", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return None
    counted = row.contender == "fxloom"
    if counted:
        from fxloom.stats import RECORDER

        RECORDER.reset()
    step = run.step(call, row.contender, row.compile_mode)
    try:
        with empty_caches():
            begin_step(row.contender, row.compile_mode)
            worst, which, seconds = run.judge(call)
        row.first_seconds = round(seconds, 3)
        if counted:
            counts = RECORDER.stats
            row.graphs, row.breaks, row.fallbacks = counts.graphs, counts.graph_breaks, dict(counts.fallbacks)
            row.kernels, row.calls = sum(counts.kernels.values()), sum(counts.library_calls.values())
        for _ in range(2):
            step()
        begin_step(row.contender, row.compile_mode)
        again, where, _ = run.judge(call)
        worst, which = max((worst, which), (again, f"fourth call: {where}"))
        row.worst = round(worst, 3)
        row.peak_mb, row.reserved_mb = memory(step, cuda, before)
        if worst > 1:
            row.kind, row.text = "wrong", f"{which}: {worst:.3g} of the allowed error"
    except Exception as error:
        if "CUDA error" in str(error):
            raise
        traceback.print_exc()
        row.kind, row.text = "raised", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return None
    return step


def interleaved(steps: dict[str, Callable[[], None]], options: argparse.Namespace) -> dict[str, tuple[float, float | None]]:
    """By contender the medians of milliseconds per call, and until a call returns."""
    timer = Timer(options.device)
    once = {label: timer.call(step, 1) for label, step in steps.items()}
    repeats = max(1, min(50, math.ceil(options.least_ms / min(once.values()))))
    rounds = max(3, min(options.rounds, int(options.seconds * 1e3 / (repeats * sum(once.values())))))
    found: dict[str, list[float]] = {label: [] for label in steps}
    returned: dict[str, list[float]] = {label: [] for label in steps}
    order, shuffled = list(steps), random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for label in order:
            if repeats > 1:
                steps[label]()
            found[label].append(timer.call(steps[label], repeats))
            if timer.cuda:
                returned[label].append(timer.return_of(steps[label]))
    return {label: (statistics.median(found[label]), statistics.median(returned[label]) if timer.cuda else None) for label in steps}


def contenders_of(mode: str, options: argparse.Namespace) -> list[Measured]:
    """All that are asked for, eager first."""
    modes = options.compile_modes.split(",") if options.compile_modes else COMPILE_MODES[torch.device(options.device).type, mode]
    if mode == "train":
        modes = [name for name in modes if name != "freezing"]  # it folds weights, which training changes
    wanted = options.contenders.split(",")
    rows = [Measured("eager", "")]
    return rows + [Measured(contender, name) for name in modes for contender in (PEER, "fxloom") if contender in wanted]


def measure(name: str, mode: str, dtype: str, options: argparse.Namespace) -> Outcome:
    """One run with all contenders."""
    import fxloom

    deadline = time.monotonic() + 0.6 * options.timeout
    fxloom.reset()
    if PEER in options.contenders.split(","):
        torch.compiler.reset()
    run = Run(name, mode, dtype, options)
    rows = contenders_of(mode, options)
    steps = {row.label: step for row in rows if (step := prepare(run, row, deadline)) is not None}
    times = interleaved(steps, options)
    for row in rows:
        if row.label in times:
            ms, returned = times[row.label]
            row.ms, row.cpu_ms = round(ms, 5), None if returned is None else round(returned, 5)
            row.over_eager = round(times["eager"][0] / ms, 4)
            peer = times.get(f"{PEER} {row.compile_mode}")
            if row.contender == "fxloom" and peer is not None:
                row.beside_torch = round(peer[0] / ms, 4)
    for row in rows:
        if row.kind == "wrong" and row.worst is not None and row.worst < float("inf") and time.monotonic() < deadline:
            if run.train:
                run.model.load_state_dict(run.state)
            pooled = run.second_look(row.contender, row.compile_mode)
            row.kind = "rounding" if pooled <= 1 else "wrong"
            row.text += f"; {pooled:.3g} pooled over five inputs, without ReLUs"
    return Outcome(name, mode, dtype, rows=[asdict(row) for row in rows])


# ---- what is told -------------------------------------------------------------------------------------------------------------


def family(model: str) -> str:
    return {"timm": "timm", "program": "programs"}.get(model.split(":")[0], "Hugging Face")


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def told(outcome: Outcome) -> str:
    """A run in some lines."""
    head = f"{outcome.model} {outcome.mode} {outcome.dtype}"
    if outcome.kind != "done":
        return f"{head}: {outcome.kind}: {outcome.text[:500]}"
    lines = [head]
    for row in outcome.measured():
        if row.ms is None:
            lines.append(f"    {row.label:32} {row.kind}: {row.text[:300]}")
            continue
        words = [f"{row.ms:9.3f} ms", f"over eager {number(row.over_eager)}", f"peak {number(row.peak_mb, '.4g')} MB"]
        words += [f"reserved {row.reserved_mb:.0f} MB"] if row.reserved_mb is not None else []
        words += [f"cpu {row.cpu_ms:.3f} ms"] if row.cpu_ms is not None else []
        if row.contender != "eager":
            words += [f"first {number(row.first_seconds)} s", row.kind]
        if row.beside_torch is not None:
            words.insert(2, f"beside torch.compile {row.beside_torch:.2f}")
        if row.contender == "fxloom":
            words.append(
                f"graphs {row.graphs} breaks {row.breaks} kernels {row.kernels} calls {row.calls} fallbacks {sum(row.fallbacks.values())}"
            )
        lines.append(f"    {row.label:32} {', '.join(words)}" + (f": {row.text[:200]}" if row.text else ""))
    return "\n".join(lines)


def mean(values: list[float | None]) -> str:
    """Geometric, of those that are there."""
    there = [value for value in values if value]
    return f"{geometric_mean(there):.3f}" if there else "-"


def ratio(left: float | None, right: float | None) -> float | None:
    return left / right if left and right else None


def summary(outcomes: list[Outcome]) -> str:
    """Geometric means by mode, dtype, set of models and compile mode, then the models that fall short."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, dict[str, Measured]]]] = defaultdict(list)
    odd: list[str] = []
    best: dict[tuple[str, str, str], list[float | None]] = defaultdict(list)
    for outcome in outcomes:
        head = f"{outcome.model} {outcome.mode} {outcome.dtype}"
        if outcome.kind != "done":
            odd.append(f"{head}: {outcome.kind}: {outcome.text[:160]}")
            continue
        rows = outcome.measured()
        odd += [f"{head}, {row.label}: {row.kind}: {row.text[:160]}" for row in rows if row.kind in ("wrong", "raised", "skipped")]
        eager = next(row for row in rows if row.contender == "eager")
        for compile_mode in dict.fromkeys(row.compile_mode for row in rows if row.compile_mode):
            found = {row.contender: row for row in rows if row.compile_mode == compile_mode} | {"eager": eager}
            for models in (family(outcome.model), "all"):
                groups[outcome.mode, outcome.dtype, models, compile_mode].append((outcome.model, found))
        best[outcome.mode, outcome.dtype, family(outcome.model)].append(
            max((row.over_eager or 0 for row in rows if row.contender == "fxloom"), default=None)
        )
    lines = []
    for (mode, dtype, models, compile_mode), members in sorted(groups.items()):
        pairs = [(found.get("fxloom"), found.get(PEER), found["eager"]) for _, found in members]
        both = [(mine, peer) for mine, peer, _ in pairs if mine and peer and mine.ms and peer.ms]
        head = f"{mode} {dtype} {models} ({len(members)}), {compile_mode}"
        refused = [mine.text for mine, _, _ in pairs if mine and mine.kind == "refused"]
        if refused:
            lines += [
                f"{head}: refused by fxloom: {refused[0]}; torch.compile over eager {mean([peer.over_eager for _, peer, _ in pairs if peer])}"
            ]
            continue
        parts = [f"over eager {mean([mine.over_eager for mine, _, _ in pairs if mine])}"]
        parts += [f"peak {mean([ratio(mine.peak_mb, eager.peak_mb) for mine, _, eager in pairs if mine])} of eager's"]
        if both:
            parts += [
                f"torch.compile's {mean([peer.over_eager for _, peer in both])}",
                f"beside it {mean([mine.beside_torch for mine, _ in both])}",
                f"first call {mean([ratio(mine.first_seconds, peer.first_seconds) for mine, peer in both])} of its seconds",
                f"peak {mean([ratio(mine.peak_mb, peer.peak_mb) for mine, peer in both])}",
                f"reserved {mean([ratio(mine.reserved_mb, peer.reserved_mb) for mine, peer in both])}",
                f"cpu time {mean([ratio(mine.cpu_ms, peer.cpu_ms) for mine, peer in both])}",
            ]
        lines.append(f"{head}: {', '.join(parts)}")
    lines += [
        f"{mode} {dtype} {models}, fxloom's best mode of each model: over eager {mean(ratios)}"
        for (mode, dtype, models), ratios in sorted(best.items())
    ]
    for (mode, dtype, models, compile_mode), members in sorted(groups.items()):
        if models != "all":
            continue
        mine = [(name, found["fxloom"], found["eager"]) for name, found in members if "fxloom" in found]
        beside = [(name, row.beside_torch) for name, row, _ in mine if row.beside_torch is not None]
        over = [(name, row.over_eager) for name, row, _ in mine if row.over_eager is not None]
        peaks = [(name, part) for name, row, eager in mine if (part := ratio(row.peak_mb, eager.peak_mb)) is not None]
        for what, values, falls_short in (
            ("below 0.9 of torch.compile", beside, lambda value: value < 0.9),
            ("below 1.0 of eager", over, lambda value: value < 1.0),
            ("peak above eager's", peaks, lambda value: value > 1.0),
        ):
            short = sorted((value, name) for name, value in values if falls_short(value))
            if values:
                lines.append(
                    f"{mode} {dtype} {compile_mode}, {what}: {len(short)} of {len(values)}: {', '.join(f'{n} {v:.2f}' for v, n in short) or 'none'}"
                )
    kinds = [row.kind for outcome in outcomes for row in outcome.measured() if row.contender == "fxloom"]
    lines.append(f"fxloom, contenders by kind: { {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} }")
    return "\n".join(lines + odd)


def write(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """The files that were asked for, with all that is known so far."""
    if options.json:
        about = {
            "torch": torch.__version__,
            "device": device_name(options.device),
            "size": options.size,
            "threads": options.threads or torch.get_num_threads(),
        }
        Path(options.json).write_text(json.dumps({"about": about, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1))
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            table = csv.writer(file)
            names = [item.name for item in fields(Measured)]
            table.writerow(["model", "set", "mode", "dtype", *names])
            for outcome in outcomes:
                start = [outcome.model, family(outcome.model), outcome.mode, outcome.dtype]
                for row in outcome.rows or [{"kind": outcome.kind, "text": outcome.text}]:
                    table.writerow(
                        [*start, *[json.dumps(row[name]) if name == "fallbacks" and name in row else row.get(name) for name in names]]
                    )


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"


def work(options: argparse.Namespace) -> None:
    """A worker; a case is a model, a mode and a dtype."""
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    pay_once(options)

    def run(name: str, mode: str, dtype: str) -> Outcome:
        try:
            return measure(name, mode, dtype, options)
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            return Outcome(name, mode, dtype, "died" if "CUDA error" in text else "raised", text)

    serve(run)


def chosen(only: str) -> list[str]:
    """The models that `--only` names. SystemExit for one that there is not."""
    sets = {"hugging-face": "Hugging Face", "timm": "timm", "programs": "programs"}
    names: list[str] = []
    for word in only.split(",") if only else sets:
        found = [name for name in MODELS if name == word or family(name) == sets.get(word)]
        if not found and not word.startswith("timm:"):  # timm has more of them
            sys.exit(f"there is no model {word!r}; there are {', '.join(MODELS)}")
        names += found or [word]
    return names


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtypes", default="float32", help="joined by commas; amp-float16 is autocast")
    made.add_argument("--modes", default="inference,train")
    made.add_argument("--size", choices=("tiny", "small", "full"), default="tiny")
    made.add_argument(
        "--only", default="", help="models, joined by commas: bert, timm:resnet50, program:nerf; or hugging-face, timm, programs"
    )
    made.add_argument("--contenders", default=f"eager,{PEER},fxloom")
    made.add_argument("--compile-modes", default="", help="default, reduce-overhead, max-autotune, freezing; those that fit when left out")
    made.add_argument("--rounds", type=int, default=15, help="at most")
    made.add_argument("--seconds", type=float, default=20, help="of timing for one run; three rounds are made in any case")
    made.add_argument("--least-ms", type=float, default=2.0, help="a call is repeated to fill this")
    made.add_argument("--threads", type=int, default=0, help="torch's own number when left out")
    made.add_argument("--workers", type=int, default=1)
    made.add_argument("--timeout", type=float, default=900, help="seconds for one run; after 0.6 of them no contender is begun")
    made.add_argument("--budget", type=float, default=1e9, help="seconds after which no run is begun")
    made.add_argument("--json", default="")
    made.add_argument("--csv", default="")
    made.add_argument("--plots", default="", help="a folder for plots; needs matplotlib")
    made.add_argument("--from", dest="source", default="", help="a file of --json: tables and plots of it, without a run")
    made.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.worker:
        work(options)
        return 0
    if options.plots:
        from plots import draw  # matplotlib is missed before anything is measured
    outcomes: list[Outcome] = []
    if options.source:
        outcomes = [Outcome(**item) for item in json.loads(Path(options.source).read_text())["outcomes"]]
    else:
        names = chosen(options.only)
        cases = [(name, mode, dtype) for name in names for mode in options.modes.split(",") for dtype in options.dtypes.split(",")]

        def tell(outcome: Outcome) -> None:
            print(told(outcome), flush=True)
            outcomes.append(outcome)
            write(outcomes, options)

        print(f"{device_name(options.device)}, torch {torch.__version__}, size {options.size}, {len(cases)} runs", flush=True)
        _, left = run_all(cases, Outcome, sys.argv[1:], options, tell)
        print(f"{left} runs were not begun" if left else "all runs were begun")
    write(outcomes, options)
    print(summary(outcomes))
    if options.plots:
        draw(outcomes, Path(options.plots))
    wrong = any(row.kind in ("wrong", "raised") for outcome in outcomes for row in outcome.measured() if row.contender == "fxloom")
    return int(wrong or any(outcome.kind != "done" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
