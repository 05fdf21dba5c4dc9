"""torch's operator database through a backend on a device, in worker processes that are started again when they die.

    python benchmarks/operators.py                                   # inductor on the CPU, float32, forward and gradients
    python benchmarks/operators.py --device cuda --dtypes float32,bfloat16,float16 --workers 15
    python benchmarks/operators.py --only embedding,amax --samples 20 --workers 1
    python benchmarks/operators.py --errors                          # the database's calls that eager refuses
    python benchmarks/operators.py --interpret                       # Triton's kernels, without a GPU

Each sample is called by a function of its own, compiled with `fullgraph=True` unless `--breaks` is given, and compared with
eager: dtype, shape, strides, device, and values by the rule of `judge` (an error against float64 of at most twice eager's own,
with a floor of a few ulp; integers and booleans exactly). Results of random operators (two seeds differ) are compared without
their values. Gradients are those of a weighted sum of all differentiable results. An operator that fails on any sample fails;
its first failure is shown. The table counts operators by outcome and dtype; a worker that dies, on an illegal memory access
for instance, is an outcome too, charged to the operator that it worked on.

With `--interpret` the Triton plugin serves the CPU: its kernels run in Triton's interpreter, and afterwards each is compiled
for a GPU that need not be here, since the interpreter checks no types.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from autograd_databases import gradients, significant
from databases import UNINITIALIZED
from torch.utils import _pytree as pytree
from workers import run_all, serve

#: operators whose results are whatever lies in memory
UNWRITTEN = UNINITIALIZED | {"resize_as_"}
#: ulps of the result's dtype that an element may be off by whatever eager does
FLOOR_ULPS = 4.0
#: what a process prints after which the device is lost to it
FATAL = ("illegal memory access", "device-side assert", "misaligned address", "unspecified launch failure", "CUDA error")


class Mismatch(Exception):
    """What differs from eager: `kind` is values, strides, dtype, ..."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass
class Outcome:
    """Of one operator in one dtype. kind: equal, no samples, died, timeout, raised, or a Mismatch's kind."""

    operator: str
    dtype: str
    kind: str = "equal"
    text: str = ""
    samples: int = 0
    random: bool = False
    fallbacks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


# ---- comparison -------------------------------------------------------------------------------------------------------------


def judge(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, where: str) -> None:
    """Raise Mismatch unless `mine` is as good as `eager`.

    exact: the result in float64 (complex128), None where there is none: then eager's result itself is the measure. All elements
    may be off by twice eager's largest error and by FLOOR_ULPS of themselves. What is not finite in eager has to be the same.
    """
    if not (eager.is_floating_point() or eager.is_complex()):
        if not torch.equal(mine, eager):
            count = int((mine != eager).sum())
            raise Mismatch("values", f"{where}: {count} of {eager.numel()} elements of {eager.dtype} differ")
        return
    wide = torch.complex128 if eager.is_complex() else torch.float64
    ulp = 2.0**-3 if eager.dtype.itemsize == 1 else torch.finfo(eager.dtype).eps
    left, right = mine.detach().to(wide).cpu(), eager.detach().to(wide).cpu()
    truth = right if exact is None or exact.shape != right.shape else exact.detach().to(wide).cpu()
    if eager.is_complex():
        left, right, truth = (torch.view_as_real(t.resolve_conj()) for t in (left, right, truth))
    odd = ~right.isfinite()
    if not torch.equal(left[odd].nan_to_num(nan=1e300), right[odd].nan_to_num(nan=1e300)) or not torch.equal(left.isfinite(), right.isfinite()):
        raise Mismatch("values", f"{where}: infinities or NaNs differ")
    left, right, truth = (t[~odd] for t in (left, right, truth))
    known = truth.isfinite()
    left, right, truth = left[known], right[known], truth[known]
    if not left.numel():
        return
    own = (right - truth).abs()
    floor = FLOOR_ULPS * ulp * truth.abs() + torch.finfo(eager.dtype if eager.dtype.itemsize > 1 else torch.float16).tiny * 4
    excess = (left - truth).abs() - floor - 2 * own.max()
    if exact is None:  # only eager's rounding is known, not its size
        excess = excess - 8 * ulp * truth.abs().max()
    worst = int(excess.argmax())
    if excess[worst] > 0:
        raise Mismatch(
            "values", f"{where}: {left[worst]:.6g}, eager {right[worst]:.6g}, float64 {truth[worst]:.6g} ({eager.dtype}, {int((excess > 0).sum())} of {left.numel()})"
        )


def agree(mine: Any, eager: Any, exact: Any, where: str, *, values: bool) -> None:
    """Raise Mismatch where two nests of results differ."""
    if isinstance(eager, torch.Tensor):
        if not isinstance(mine, torch.Tensor):
            raise Mismatch("type", f"{where}: {type(mine).__name__} for a tensor")
        for name in ("dtype", "shape", "layout", "device", "requires_grad"):
            if getattr(mine, name) != getattr(eager, name):
                raise Mismatch(name, f"{where}: {getattr(mine, name)}, eager {getattr(eager, name)}")
        if eager.layout is not torch.strided or eager.is_quantized or eager.is_nested:
            return
        if significant(mine) != significant(eager):
            raise Mismatch("strides", f"{where}: {mine.stride()}, eager {eager.stride()} of {tuple(eager.shape)}")
        if values:
            judge(mine, eager, exact if isinstance(exact, torch.Tensor) else None, where)
    elif isinstance(eager, (tuple, list)):
        if not isinstance(mine, (tuple, list)) or len(mine) != len(eager):
            raise Mismatch("type", f"{where}: {mine!r:.80} for {eager!r:.80}")
        others = exact if isinstance(exact, (tuple, list)) and len(exact) == len(eager) else [None] * len(eager)
        for number, parts in enumerate(zip(mine, eager, others, strict=True)):
            agree(*parts, f"{where}[{number}]", values=values)
    elif isinstance(eager, (bool, int, float, complex, str)) or eager is None:
        same = mine == eager or (mine != mine and eager != eager)
        if type(mine) is not type(eager) or (values and not same and not (isinstance(eager, float) and abs(mine - eager) <= 1e-5 * abs(eager))):
            raise Mismatch("values", f"{where}: {mine!r:.80}, eager {eager!r:.80}")


# ---- one operator -----------------------------------------------------------------------------------------------------------


def fresh(args: Any, kwargs: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any, list[torch.Tensor]]:
    """Equal arguments with leaves of their own. dtype: of floating-point tensors, where it is to be another."""
    leaves: list[torch.Tensor] = []

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and dtype is not None and leaf.is_floating_point:
            return dtype
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach()
        if leaf.layout is torch.strided and not leaf.is_quantized and torch._debug_has_internal_overlap(leaf) == 0:
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(made)
        else:
            made = made.clone()
        if dtype is not None and (made.is_floating_point() or made.is_complex()):
            made = made.to(torch.complex128 if made.is_complex() else dtype)
        if leaf.requires_grad:
            made.requires_grad_()
            leaves.append(made)
        return made

    return (*pytree.tree_map(copied, (args, kwargs)), leaves)


def sample_outcome(fn: Callable[..., Any], sample: Any, prepared: Callable[[Any], Any], seed: int, dtype: torch.dtype | None = None) -> Any:
    """Results and gradients of one call, or what it raises."""
    args, kwargs, leaves = fresh((sample.input, *sample.args), sample.kwargs, dtype)
    torch.manual_seed(seed)
    out = prepared(fn(*args, **kwargs))
    return out, gradients(out, leaves)


def check_sample(op: Any, sample: Any, compiling: Callable[[Callable[..., Any]], Callable[..., Any]], record: Outcome) -> None:
    """Raise Mismatch, or what the compiled call raises and eager doesn't."""
    prepared = sample.output_process_fn_grad or (lambda out: out)
    # a function of its own for every sample: nothing that an earlier one compiled is found
    scope: dict[str, Any] = {"fn": op.op}
    exec("def call(*args, **kwargs):\n    return fn(*args, **kwargs)\n", scope)
    raised: Exception | None = None
    try:
        eager = sample_outcome(scope["call"], sample, prepared, 0)
    except Exception as error:
        raised = error
    record.samples += 1
    compiled = compiling(scope["call"])
    try:
        mine = sample_outcome(compiled, sample, prepared, 0)
    except Exception as error:
        if raised is None or type(error) is not type(raised):
            raise
        return
    if raised is not None:
        raise Mismatch("accepted", f"eager raises {type(raised).__name__}: {str(raised)[:120]}")
    again = sample_outcome(op.op, sample, prepared, 0)
    alike = all(same(eager, sample_outcome(op.op, sample, prepared, seed)) for seed in range(1, 9))  # few draws may agree by chance
    record.random = record.random or not alike
    values = alike and op.name not in UNWRITTEN
    exact: Any = None
    if values and op.dtype_is_low:
        try:
            exact = sample_outcome(op.op, sample, prepared, 0, torch.float64)
        except Exception:
            exact = None
    elif values and not same(eager, again):
        exact = again
    agree(mine[0], eager[0], exact and exact[0], "result", values=values)
    agree(mine[1], eager[1], exact and exact[1], "gradient", values=values)


def same(left: Any, right: Any) -> bool:
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=False)
    return all(
        not isinstance(a, torch.Tensor) or (a.shape == b.shape and (a.layout is not torch.strided or torch.allclose(a.cpu().to(torch.complex128), b.cpu().to(torch.complex128), rtol=1e-2, atol=1e-3, equal_nan=True)))
        for a, b in pairs
    )


def check_operator(name: str, dtype_name: str, options: argparse.Namespace) -> Outcome:
    """All samples of one operator in one dtype."""
    import fxloom

    op, dtype = operators()[name], getattr(torch, dtype_name)
    record = Outcome(name, dtype_name)
    start = time.perf_counter()
    if dtype not in op.supported_dtypes(options.device.split(":")[0]):
        record.kind = "no samples"
        return record
    # float64 has no better to be compared with than eager
    op.dtype_is_low = (dtype.is_floating_point or dtype.is_complex) and dtype not in (torch.float64, torch.complex128)
    trained = options.gradients and op.supports_autograd and dtype in op.supported_backward_dtypes(options.device.split(":")[0])

    def compiling(fn: Callable[..., Any]) -> Callable[..., Any]:
        fxloom.reset()
        return fxloom.compile(fn, backend=options.backend, fullgraph=not options.breaks)

    fallbacks: collections.Counter[str] = collections.Counter()
    try:
        samples = list(op.sample_inputs(options.device, dtype, requires_grad=trained))
    except Exception as error:  # the database needs a package that is not here
        record.kind, record.text = "no samples", f"{type(error).__name__}: {str(error)[:100]}"
        return record
    step = max(1, len(samples) // options.samples)
    for sample in samples[::step][: options.samples]:
        try:
            check_sample(op, sample, compiling, record)
            if options.device.startswith("cuda"):
                torch.cuda.synchronize()
        except Mismatch as error:
            record.kind, record.text = error.kind, str(error)
        except Exception as error:
            record.kind, record.text = "raised", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        fallbacks.update(fxloom.stats().fallbacks)
        if record.kind != "equal":
            break
    record.fallbacks = dict(fallbacks)
    record.seconds = round(time.perf_counter() - start, 2)
    return record


def check_errors(name: str, options: argparse.Namespace) -> Outcome:
    """The calls of one operator that eager refuses: the compiled one raises the same type."""
    import fxloom

    op = operators()[name]
    record = Outcome(name, "errors")
    if op.error_inputs_func is None:
        record.kind = "no samples"
        return record
    for given in op.error_inputs(options.device):
        sample = given.sample_input
        prepared = lambda out: out  # noqa: E731
        scope: dict[str, Any] = {"fn": op.op}
        exec("def call(*args, **kwargs):\n    return fn(*args, **kwargs)\n", scope)
        fxloom.reset()
        found: list[str] = []
        for fn in (scope["call"], fxloom.compile(scope["call"], backend=options.backend)):
            try:
                sample_outcome(fn, sample, prepared, 0)
                found.append("returns")
            except Exception as error:
                found.append(type(error).__name__)
        record.samples += 1
        if found[0] != found[1]:
            record.kind, record.text = "error type", f"eager {found[0]}, compiled {found[1]}: {str(given.error_regex)[:120]}"
            break
    return record


_known: dict[str, Any] = {}


def _plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def operators() -> dict[str, Any]:
    """The database by name and variant."""
    if not _known:
        from torch.testing._internal.common_methods_invocations import op_db

        # the database calls random operators in code that keeps and restores the generators; this script seeds them itself
        for module in [module for name, module in sys.modules.items() if name.startswith("torch.testing.")]:
            if hasattr(module, "wrapper_set_seed"):
                module.wrapper_set_seed = _plainly  # type: ignore[attr-defined]
        _known.update({op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db})
    return _known


class Interpreted:
    """The Triton plugin for CPU tensors; keeps the sources of all kernels."""

    def __init__(self) -> None:
        from fxloom_codegen_triton import PLUGIN

        self.plugin = PLUGIN
        scatters = PLUGIN.capabilities.scatters - {"add bfloat16"}  # the interpreter has none
        self.capabilities = replace(PLUGIN.capabilities, scatters=scatters)
        self.sources: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)

    def build(self, sources: Any, store: Any) -> Any:
        self.sources.extend(sources)
        return self.plugin.build(sources, store)

    @staticmethod
    def install() -> Interpreted:
        from fxloom_interfaces import plugins

        made = Interpreted()
        plugins.codegens_by_device = lambda *names: {"cpu": made}  # type: ignore[assignment]
        return made


# ---- processes --------------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """A worker; a case is an operator and a dtype."""
    torch.set_num_threads(1)
    operators()
    interpreted = Interpreted.install() if options.interpret else None

    def run(name: str, dtype: str) -> Outcome:
        record = check_errors(name, options) if dtype == "errors" else check_operator(name, dtype, options)
        if interpreted is not None and interpreted.sources:
            (Path(options.kernels) / f"{name}-{dtype}.pickle").write_bytes(pickle.dumps(interpreted.sources))
            interpreted.sources.clear()
        if any(words in record.text for words in FATAL) and options.device.startswith("cuda"):
            record.kind = "died"
        return record

    serve(run)


def table(results: list[Outcome]) -> Iterator[str]:
    """The results in words."""
    by_dtype: dict[str, list[Outcome]] = collections.defaultdict(list)
    for record in results:
        by_dtype[record.dtype].append(record)
    for dtype, records in by_dtype.items():
        ran = [record for record in records if record.kind != "no samples"]
        equal = [record for record in ran if record.kind == "equal"]
        kinds = collections.Counter(record.kind for record in ran if record.kind != "equal")
        falling = [record for record in equal if record.fallbacks]
        yield (
            f"{dtype}: {len(equal)} of {len(ran)} operators equal eager ({100 * len(equal) / max(1, len(ran)):.1f} %), {sum(r.samples for r in ran)} samples, "
            f"{len(falling)} with fallbacks, {sum(r.random for r in equal)} random; {dict(kinds)}"
        )
        for record in sorted(ran, key=lambda r: (r.kind, r.operator)):
            if record.kind != "equal":
                yield f"  {record.operator}: {record.kind}: {record.text.removeprefix(record.kind + ': ')}"
    fallbacks: collections.Counter[str] = collections.Counter()
    for record in results:
        fallbacks.update(record.fallbacks.keys())
    yield f"fallbacks, by operators that have them: {', '.join(f'{name} {count}' for name, count in fallbacks.most_common(400))}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", default="float32", help="names, joined by commas")
    parser.add_argument("--only", default="", help="operators, joined by commas (with their variant)")
    parser.add_argument("--samples", type=int, default=2, help="samples of each operator (default: 2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one operator in one dtype")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no operator is begun")
    parser.add_argument("--no-gradients", dest="gradients", action="store_false")
    parser.add_argument("--breaks", action="store_true", help="allow graph breaks")
    parser.add_argument("--errors", action="store_true", help="the calls that eager refuses, in place of the samples")
    parser.add_argument("--interpret", action="store_true", help="Triton's kernels in its interpreter, on the CPU")
    parser.add_argument("--kernels", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where to write all outcomes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    names = options.only.split(",") if options.only else list(operators())
    unknown = [name for name in names if name not in operators()]
    if unknown:
        parser.error(f"not in the operator database: {', '.join(unknown)}")
    arguments = sys.argv[1:]
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        options.kernels = tempfile.mkdtemp()
        arguments += ["--kernels", options.kernels]
    cases = [(name, dtype) for dtype in (["errors"] if options.errors else options.dtypes.split(",")) for name in names]
    start = time.time()
    results, left = run_all(cases, Outcome, arguments, options)
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{options.backend} on {device}, torch {torch.__version__}, {time.time() - start:.0f} s, {options.workers} workers, {left} not run")
    for line in table(results):
        print(line)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "0"
        files = sorted(Path(options.kernels).glob("*.pickle"))
        subprocess.run([sys.executable, "-m", "fxloom_codegen_triton.check", *map(str, files)], check=False)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(record) for record in results], indent=1))
    return int(any(record.kind not in ("equal", "no samples") for record in results))


if __name__ == "__main__":
    sys.exit(main())
