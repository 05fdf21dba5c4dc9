"""Random programs through a backend on a device, against eager: the faults of what is fused.

    python benchmarks/fuzz.py --count 1000                           # inductor on the CPU
    python benchmarks/fuzz.py --seed 512 --count 1 --show            # one program again, printed
    python benchmarks/fuzz.py --device cuda --workers 15 --count 100000 --budget 60
    python benchmarks/fuzz.py --interpret --count 300                # Triton's kernels, without a GPU

A seed is a program (`fuzz_programs.py`); less than half are differentiated too, a fifth are compiled with `dynamic=True` and called
with three sets of sizes. Compared are values, dtypes, shapes, strides, gradients, inputs that were written to, which results share
memory with what, and exceptions. A program that fails is made smaller while it fails in the same way, and printed.

Values: integers and booleans exactly, floats by the rule of `operators.judge`, but for elements on which even eager can't be held:
those that change when each intermediate result that may legally be rounded otherwise (products that may be fused, approximated
functions, sums in another order) changes in its last places. A comparison or a cast of such a value may fall on either side.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from autograd_databases import significant
from fuzz_programs import FLOATS, Program, compiled_source, draw, smaller
from operators import FATAL, FLOOR_ULPS, Interpreted, Mismatch, judge
from workers import run_all, serve

#: eager runs with results perturbed
PERTURBED_RUNS = 8
#: seconds for making one program smaller
SMALLER_SECONDS = 40.0


@dataclass
class Outcome:
    """Of one program. kind: equal, left out (eager's backward refuses it), raised, died, timeout, or what differs."""

    seed: str
    kind: str = "equal"
    text: str = ""
    source: str = ""
    kernels: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """What one call leaves: values by what they are (output, input, gradient), aliases of outputs, or an exception."""

    values: dict[str, torch.Tensor | None] = field(default_factory=dict)
    aliases: list[tuple[int, int]] = field(default_factory=list)
    raised: Exception | None = None
    backward: bool = False


def run_program(
    fn: Callable[..., Any], program: Program, device: str, *, dtype: torch.dtype | None = None, change: Callable[[Any], Any] = lambda value: value
) -> Run:
    """Call it on inputs of its own. dtype: of floats, in the place of their own. change: is done to the gradients of results."""
    run = Run()
    inputs = [one.make(device, dtype) for one in program.inputs.values()]
    try:
        outputs = fn(*inputs)
        run.values = {f"output {number}": out for number, out in enumerate(outputs)}
        run.aliases = aliases(list(outputs), inputs)
        leaves = [leaf for leaf in inputs if leaf.requires_grad and leaf.is_leaf]
        roots = [out for out in outputs if out.requires_grad]
        run.backward = True
        if roots and leaves:
            gen = torch.Generator().manual_seed(7)
            weights = [change(torch.randn(root.shape, generator=gen, dtype=torch.float64).to(root.dtype).to(device)) for root in roots]
            # with other strides than the results, gradients that come in are copied in some cases, and strides of what is made of them follow
            weights = [torch.empty_like(root).copy_(weight) for root, weight in zip(roots, weights, strict=True)]
            for number, grad in enumerate(torch.autograd.grad(roots, leaves, weights, allow_unused=True)):
                run.values[f"gradient {number}"] = grad
    except Exception as error:
        run.raised = error
    run.values |= {f"input {number}": one for number, one in enumerate(inputs)}
    return run


def aliases(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[tuple[int, int]]:
    """For each output the first tensor in whose memory it lies, and how far from its beginning; -1 where it has none."""
    everything = inputs + outputs
    storages = [one.untyped_storage().data_ptr() for one in everything]
    found: list[tuple[int, int]] = []
    for number, one in enumerate(outputs, len(inputs)):
        first = storages.index(storages[number])
        found.append((first, one.storage_offset() - everything[first].storage_offset()) if one.numel() else (-1, 0))
    return found


def perturb(value: Any, gen: torch.Generator) -> Any:
    """A float tensor with each element one or two places off."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    places = torch.randint(1, 3, value.shape, generator=gen) * (1 - 2 * torch.randint(0, 2, value.shape, generator=gen))
    noise = places.to(value.device, torch.float64) * torch.finfo(value.dtype).eps
    factor = (1 + noise).to(torch.float64 if value.dtype == torch.float64 else torch.float32)
    return (value.to(factor.dtype) * factor).to(value.dtype)


class Judge:
    """Compares runs of one call of a program; eager's other runs are made when they are needed."""

    def __init__(self, program: Program, device: str) -> None:
        self.program, self.device = program, device
        self.others: list[Run] = []
        self.exact = Run()

    def prepare(self) -> None:
        if self.others:
            return
        text = self.program.perturbed()
        for seed in range(PERTURBED_RUNS):
            gen = torch.Generator().manual_seed(seed)
            change = partial(perturb, gen=gen)
            self.others.append(run_program(compiled_source(text, {"_p": change}), self.program, self.device, change=change))
        wide = self.program.function()
        for name in ("torch.float32", "torch.float16", "torch.bfloat16"):
            wide = wide.replace(name, "torch.float64")
        self.exact = run_program(compiled_source(wide.replace(".float()", ".double()")), self.program, self.device, dtype=torch.float64)

    def compare(self, mine: Run, eager: Run) -> None:
        """Raise Mismatch where they differ."""
        for name, right in eager.values.items():
            left = mine.values.get(name)
            if (left is None) != (right is None):
                raise Mismatch("none", f"{name}: {'none' if left is None else 'a tensor'}, eager {'none' if right is None else 'a tensor'}")
            if left is None or right is None:
                continue
            for what in ("dtype", "shape", "device", "requires_grad"):
                if getattr(left, what) != getattr(right, what):
                    raise Mismatch(what, f"{name}: {getattr(left, what)}, eager {getattr(right, what)}")
            if significant(left) != significant(right):
                raise Mismatch("strides", f"{name}: {left.stride()}, eager {right.stride()} of {tuple(right.shape)}")
            self.values(name, left.detach(), right.detach())
        if mine.aliases != eager.aliases:
            raise Mismatch("aliases", f"{mine.aliases}, eager {eager.aliases}")

    def values(self, name: str, mine: torch.Tensor, eager: torch.Tensor) -> None:
        if torch.equal(mine, eager) or (eager.is_floating_point() and bool(((mine == eager) | (mine.isnan() & eager.isnan())).all())):
            return
        self.prepare()
        others = [run.values[name].detach() for run in self.others if isinstance(run.values.get(name), torch.Tensor)]  # type: ignore[union-attr]
        others = [other for other in others if other.shape == eager.shape and other.dtype == eager.dtype]
        if not eager.is_floating_point():
            held = torch.ones_like(eager, dtype=torch.bool)
            for other in others:
                held &= other == eager
            judge(torch.where(held, mine, eager), eager, None, name)
            return
        left, right = mine.double(), eager.double()
        spread = torch.zeros_like(right)
        for other in others:
            apart = (other.double() - right).abs()
            same = (other.double() == right) | (other.isnan() & eager.isnan())
            spread = torch.maximum(spread, torch.where(same, 0.0, apart).nan_to_num(float("inf")))
        info = torch.finfo(eager.dtype)
        near = (left - right).abs() <= 8 * spread + FLOOR_ULPS * info.eps * right.abs() + 4 * info.tiny
        unstable = spread > 0.02 * right.abs() + 1e-300
        exact = self.exact.values.get(name)
        truth = right if exact is None or exact.shape != eager.shape else exact.detach().double()
        # eager came to another infinity or NaN, or missed it, by its rounding
        unstable |= (truth.isfinite() == left.isfinite()) & (truth.isnan() == left.isnan()) & (truth.isfinite() != right.isfinite())
        unstable |= (truth.isnan() & left.isnan()) | (truth.isinf() & (left == truth))
        excused = near | unstable | (left == right) | (left.isnan() & right.isnan())
        if not bool(excused.all()):
            known = None if eager.dtype == torch.float64 else torch.where(unstable, right, truth)  # nothing here is more exact than float64
            judge(torch.where(excused, eager, mine), eager, known, name)


def check(program: Program, options: argparse.Namespace) -> tuple[str, str]:
    """Kind and text of an outcome."""
    import fxloom

    fxloom.reset()
    fn = compiled_source(program.function())
    compiling = partial(fxloom.compile, fn, backend=options.backend, dynamic=True if program.dynamic else None)
    compiled = compiling(fullgraph=True)
    for number, call in enumerate(program.calls()):
        eager = run_program(fn, call, options.device)
        if eager.raised is not None and (eager.backward or (number == 0 and not program.statements)):
            return "left out", ""
        mine = run_program(compiled, call, options.device)
        if isinstance(mine.raised, fxloom.exc.Unsupported):  # a graph break is an answer too
            compiled = compiling()
            mine = run_program(compiled, call, options.device)
        if eager.raised is not None or mine.raised is not None:
            if type(eager.raised) is type(mine.raised):
                continue
            kind = "accepted" if mine.raised is None else "raised"
            return kind, f"call {number}: {describe(mine.raised)}, eager {describe(eager.raised)}"
        try:
            Judge(call, options.device).compare(mine, eager)
        except Mismatch as error:
            return error.kind, f"call {number}: {error}"
    return "equal", ""


def describe(error: Exception | None) -> str:
    return "returns" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def minimise(program: Program, kind: str, options: argparse.Namespace) -> Program:
    """A smaller program of which `check` says the same kind."""
    deadline = time.time() + SMALLER_SECONDS
    again = True
    while again:
        again = False
        for candidate in smaller(program):
            if time.time() > deadline:
                return program
            try:
                found, text = check(candidate, options)
            except Exception:  # a candidate need not make sense
                continue
            if found == kind and not any(words in text for words in FATAL):
                program, again = candidate, True
                break
    return program


def program_of(seed: str, options: argparse.Namespace) -> Program:
    """Triton's interpreter truncates where it makes bfloat16, so there is none with it."""
    return draw(int(seed), device=options.device, floats=FLOATS if not options.interpret else FLOATS[:3])


def check_seed(seed: str, options: argparse.Namespace) -> Outcome:
    import fxloom

    record = Outcome(seed)
    program = program_of(seed, options)
    record.source = program.source()
    if options.show:
        print(program.source(), flush=True)
    record.kind, record.text = check(program, options)
    statistics = fxloom.stats()
    record.kernels, record.fallbacks = sum(statistics.kernels.values()), {**statistics.fallbacks, "(graph break)": statistics.graph_breaks}
    if any(words in record.text for words in FATAL) and options.device.startswith("cuda"):
        record.kind = "died"
    elif record.kind not in ("equal", "left out") and options.minimise:
        least = minimise(program, record.kind, options)
        record.source = least.source()
        record.text = check(least, options)[1] or record.text
    return record


def work(options: argparse.Namespace) -> None:
    """A worker; a case is a seed."""
    torch.set_num_threads(1)
    if options.interpret:
        Interpreted.install()
    serve(lambda seed: check_seed(seed, options))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=200, help="programs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one program")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no program is begun")
    parser.add_argument("--interpret", action="store_true", help="Triton's kernels in its interpreter, on the CPU")
    parser.add_argument("--whole", dest="minimise", action="store_false", help="don't make failing programs smaller")
    parser.add_argument("--show", action="store_true", help="print each program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("FXLOOM_CACHE_DIR", tempfile.mkdtemp(prefix="fuzz-"))  # these kernels are of no use to anything else

    def tell(record: Outcome) -> None:
        if record.kind not in ("equal", "left out"):
            print(f"---- seed {record.seed}: {record.text or record.kind}\n{record.source or program_of(record.seed, options).source()}", flush=True)

    seeds = [(str(seed),) for seed in range(options.seed, options.seed + options.count)]
    results, _ = run_all(seeds, Outcome, sys.argv[1:], options, tell)
    kinds = collections.Counter(record.kind for record in results)
    fallbacks: collections.Counter[str] = collections.Counter()
    for record in results:
        fallbacks.update(record.fallbacks)
    raised, died = kinds["raised"] + kinds["accepted"], kinds["died"] + kinds["timeout"]
    wrong = len(results) - kinds["equal"] - kinds["left out"] - raised - died
    print(f"fallbacks: {', '.join(f'{name} {count}' for name, count in fallbacks.most_common())}")
    print(f"{len(results)} programs, {sum(record.kernels for record in results)} kernels, {wrong} wrong, {raised} raised, {died} died")
    return int(bool(wrong or raised or died))


if __name__ == "__main__":
    sys.exit(main())
