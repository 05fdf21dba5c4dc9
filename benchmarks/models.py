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
  that doesn't count. On a GPU calls lie between CUDA events. Where other work takes the processor away for longer than a call lasts,
  medians say nothing: `--by least` takes ratios of the least time of all rounds, which is kept beside the median in any case.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from check_models import MODELS, as_dtype, build, judged, loss_of, other_inputs, references, smooth, without_dropout
from kernels import seconds
from model_tables import PEER, Measured, Outcome, family, summary, told, write
from training import peak_bytes
from workers import caught, run_all, serve

#: modes that are worth their seconds, by device and run; `freezing` is an option
COMPILE_MODES = {
    ("cpu", "inference"): ("default", "freezing", "max-autotune"),
    ("cpu", "train"): ("default", "max-autotune"),
    ("cuda", "inference"): ("default", "reduce-overhead", "max-autotune"),
    ("cuda", "train"): ("default", "reduce-overhead", "max-autotune"),
}
Call = Callable[..., Any]


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
        self.device = device

    def call(self, call: Call, repeats: int) -> float:
        """Of one of so many."""
        return seconds(call, self.device, repeats) * 1e3

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

    def settle(self) -> tuple[int, int] | None:
        """Bytes of the GPU's memory that are allocated and reserved once gradients and garbage are gone."""
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if not self.device.startswith("cuda"):
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

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


def memory(run: Run, step: Callable[[], None], before: tuple[int, int]) -> tuple[float, float | None]:
    """(megabytes allocated at most during a call, megabytes reserved) beyond what was there `before`, new gradients included."""
    if run.settle() is None:
        return round(peak_bytes(step) / 1e6, 3), None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return tuple(
        round((now - then) / 1e6, 3)
        for now, then in zip((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()), before, strict=True)
    )  # type: ignore[return-value]


def prepare(run: Run, row: Measured, deadline: float) -> Callable[[], None] | None:
    """Compile and judge one contender; what is returned is timed. None where there is nothing to time."""
    if time.monotonic() > deadline:
        row.kind, row.text = "skipped", "no time was left for it"
        return None
    before = run.settle() or (0, 0)
    if row.contender == "eager":
        step = run.step(run.model, "eager", "")
        step()
        row.peak_mb, row.reserved_mb = memory(run, step, before)
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
        row.peak_mb, row.reserved_mb = memory(run, step, before)
        if worst > 1:
            row.kind, row.text = "wrong", f"{which}: {worst:.3g} of the allowed error"
    except Exception as error:
        if "CUDA error" in str(error):
            raise
        traceback.print_exc()
        row.kind, row.text = "raised", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return None
    return step


def interleaved(steps: dict[str, Callable[[], None]], options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By contender the milliseconds per call in each round, and on a GPU those until a call returns."""
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
            if timer.device != "cpu":
                returned[label].append(timer.return_of(steps[label]))
    return found, returned


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
    times, returned = interleaved(steps, options)
    compared = {label: statistics.median(found) if options.by == "median" else min(found) for label, found in times.items()}
    for row in rows:
        if row.label in times:
            row.ms, row.least_ms = round(statistics.median(times[row.label]), 5), round(min(times[row.label]), 5)
            row.cpu_ms = round(statistics.median(returned[row.label]), 5) if returned[row.label] else None
            row.over_eager = round(compared["eager"] / compared[row.label], 4)
            peer = compared.get(f"{PEER} {row.compile_mode}")
            if row.contender == "fxloom" and peer is not None:
                row.beside_torch = round(peer / compared[row.label], 4)
    for row in rows:
        if row.kind == "wrong" and row.worst is not None and row.worst < float("inf") and time.monotonic() < deadline:
            if run.train:
                run.model.load_state_dict(run.state)
            pooled = run.second_look(row.contender, row.compile_mode)
            row.kind = "rounding" if pooled <= 1 else "wrong"
            row.text += f"; {pooled:.3g} pooled over five inputs, without ReLUs"
    return Outcome(name, mode, dtype, rows=[asdict(row) for row in rows])


# ---- the command ------------------------------------------------------------------------------------------------------------


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The machine and the kind of run."""
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    return {"device": device, "torch": torch.__version__, "size": options.size, "threads": options.threads or torch.get_num_threads()}


def work(options: argparse.Namespace) -> None:
    """A worker; a case is a model, a mode and a dtype."""
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    pay_once(options)
    serve(caught(lambda name, mode, dtype: measure(name, mode, dtype, options), Outcome))


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
    made.add_argument("--by", choices=("median", "least"), default="median", help="of the rounds, for ratios")
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
        kept = json.loads(Path(options.source).read_text())
        machine, outcomes = kept["about"], [Outcome(**item) for item in kept["outcomes"]]
    else:
        machine, names = about(options), chosen(options.only)
        cases = [(name, mode, dtype) for name in names for mode in options.modes.split(",") for dtype in options.dtypes.split(",")]

        def tell(outcome: Outcome) -> None:
            print(told(outcome), flush=True)
            outcomes.append(outcome)
            write(outcomes, machine, options.json, options.csv)

        print(f"{len(cases)} runs, {machine}", flush=True)
        _, left = run_all(cases, Outcome, sys.argv[1:], options, tell)
        print(f"{left} runs were not begun" if left else "all runs were begun")
    write(outcomes, machine, options.json, options.csv)
    print(summary(outcomes))
    if options.plots:
        draw(outcomes, Path(options.plots))
    wrong = any(row.kind in ("wrong", "raised") for outcome in outcomes for row in outcome.measured() if row.contender == "fxloom")
    return int(wrong or any(outcome.kind != "done" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
