"""Kernels of single operators: eager, torch.compile and fxloom in turn in one process, medians.

    python benchmarks/kernels.py                                     # the CPU, one thread and all
    python benchmarks/kernels.py --device cuda --dtype bfloat16 --json out.json
    python benchmarks/kernels.py --only pool,scatter --rounds 50

The operators are those that fxloom decomposes or lowers itself where a simple compiler would call eager's kernel: scatters, pools,
resampling, padding, scans, special functions, losses, gradients of indexing. Each contender compiles the same function with
`fullgraph=True`; a round calls each once (on a GPU often enough to fill a millisecond, between CUDA events). Ratios are of
medians: above 1 is faster. What a contender raises stands in its place.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from whole_way import geometric_mean

import fxloom

Case = tuple[Any, list[torch.Tensor]]


class Inputs:
    """Makes tensors of one device and dtype."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.scale = 1 if device == "cpu" else 8

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, device=self.device).to(self.dtype)

    def positive(self, *size: int) -> torch.Tensor:
        return (torch.rand(*size, device=self.device) + 0.1).to(self.dtype)

    def integers(self, high: int, *size: int) -> torch.Tensor:
        return torch.randint(0, high, size, device=self.device)


@dataclass(frozen=True)
class trained:  # reads as what it does to a case
    """A case whose function is compiled, run and differentiated with respect to its first argument."""

    fn: Callable[..., torch.Tensor]


def runner(fn: Any, compiler: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function compiled, with a backward pass where it is `trained`."""
    if not isinstance(fn, trained):
        return compiler(fn)  # type: ignore[no-any-return]
    forward = compiler(fn.fn)

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        out = forward(x, *rest)
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        return gradient

    return run


def cases(make: Inputs) -> dict[str, Case]:
    """About 60 operators with arguments; images grow with the device."""
    n = make.scale
    image = make.normal(4 * n, 32, 56, 56)
    volume = make.normal(n, 16, 16, 28, 28)
    rows = make.normal(512 * n, 1000)
    flat = make.normal(250_000 * n)
    positive = make.positive(250_000 * n)
    wide = make.normal(1000, 256 * n)
    where = make.integers(1000, 2000 * n)
    picked = make.normal(2000 * n, 256)
    table = make.normal(1000, 256)
    labels = make.integers(1000, 512 * n)
    grid = torch.rand(4 * n, 40, 40, 2, device=make.device).to(make.dtype) * 2 - 1
    signs = (make.integers(2, 512 * n, 1000) * 2 - 1).to(make.dtype)
    special = torch.special
    found: dict[str, Case] = {
        "index_add": (lambda x, i, s: x.index_add(0, i, s), [table, where, picked]),
        "index_put(accumulate)": (lambda x, i, s: x.index_put((i,), s, accumulate=True), [table, where, picked]),
        "index_copy": (lambda x, i, s: x.index_copy(0, i, s), [table, make.integers(1000, 1000), make.normal(1000, 256)]),
        "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), [table, make.integers(1000, 2000 * n, 256), picked]),
        "scatter_reduce(amax)": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), [table, make.integers(1000, 2000 * n, 256), picked]),
        "scatter": (lambda x, i, s: x.scatter(1, i, s), [rows, make.integers(1000, 512 * n, 300), make.normal(512 * n, 300)]),
        "gather, gradient": (trained(lambda x, i: x.gather(1, i)), [rows, make.integers(1000, 512 * n, 300)]),
        "embedding, gradient": (trained(lambda w, i: F.embedding(i, w)), [table, where]),
        "index_select, gradient": (trained(lambda x, i: x.index_select(0, i)), [table, where]),
        "masked_fill": (lambda x, m: x.masked_fill(m > 0, -1.0), [rows, signs]),
        "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), [rows, make.integers(1000, 512 * n, 1000)]),
        "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [image]),
        "max_pool2d, gradient": (trained(lambda x: F.max_pool2d(x, 3, 2, 1)), [image]),
        "max_pool3d": (lambda x: F.max_pool3d(x, 2), [volume]),
        "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), [image]),
        "avg_pool2d, gradient": (trained(lambda x: F.avg_pool2d(x, 3, 2, 1)), [image]),
        "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), [volume]),
        "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), [image]),
        "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7), [image]),
        "lp_pool2d": (lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 3), [image]),
        "interpolate(nearest)": (lambda x: F.interpolate(x, scale_factor=2.0), [image]),
        "interpolate(bilinear)": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [image]),
        "interpolate(bilinear), gradient": (trained(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")), [image]),
        "interpolate(bicubic)": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), [image]),
        "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), [image, grid]),
        "pad(reflect)": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), [image]),
        "pad(reflect), gradient": (trained(lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect")), [image]),
        "pad(replicate)": (lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"), [image]),
        "pad(circular)": (lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"), [image]),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, [image]),
        "unfold": (lambda x: F.unfold(x, 3), [image]),
        "fold": (lambda x: F.fold(x, (30, 30), 3), [make.normal(4 * n, 32 * 9, 28 * 28)]),
        "roll": (lambda x: x.roll((3, 5), (2, 3)) + 1, [image]),
        "flip": (lambda x: x.flip(2, 3) + 1, [image]),
        "cumsum": (lambda x: x.cumsum(-1), [rows]),
        "cumprod": (lambda x: (x * 0.01 + 1).cumprod(-1), [rows]),
        "logcumsumexp": (lambda x: x.logcumsumexp(-1), [rows]),
        "cummax": (lambda x: x.cummax(-1).values, [rows]),
        "bucketize": (lambda x, b: torch.bucketize(x, b), [flat, torch.linspace(-3, 3, 100, device=make.device).to(make.dtype)]),
        "searchsorted": (lambda x, b: torch.searchsorted(b, x), [flat, torch.linspace(-3, 3, 100, device=make.device).to(make.dtype)]),
        "triu": (lambda x: x.triu() * 2, [wide[:, :1000].contiguous() if wide.shape[1] >= 1000 else wide]),
        "diag_embed": (lambda x: torch.diag_embed(x), [make.normal(64 * n, 100)]),
        "repeat_interleave": (lambda x: x.repeat_interleave(3, 1) + 1, [rows]),
        "logaddexp": (lambda x, y: torch.logaddexp(x, y), [flat, positive]),
        "logit": (lambda x: torch.logit(x * 0.5), [positive]),
        "xlogy": (lambda x, y: torch.xlogy(x, y), [flat, positive]),
        "erfinv": (lambda x: torch.erfinv(x * 0.5), [positive]),
        "digamma": (lambda x: torch.digamma(x), [positive]),
        "lgamma": (lambda x: torch.lgamma(x), [positive]),
        "i0": (lambda x: torch.i0(x), [flat]),
        "special.i1e": (lambda x: special.i1e(x), [flat]),
        "special.ndtri": (lambda x: special.ndtri(x * 0.5), [positive]),
        "special.log_ndtr": (lambda x: special.log_ndtr(x), [flat]),
        "cross_entropy, gradient": (trained(lambda x, t: F.cross_entropy(x, t)), [rows, labels]),
        "soft_margin_loss": (lambda x, y: F.soft_margin_loss(x, y), [rows, signs]),
        "multi_margin_loss": (lambda x, t: F.multi_margin_loss(x, t), [rows, labels]),
        "huber_loss, gradient": (trained(lambda x, y: F.huber_loss(x, y)), [rows, signs]),
        "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y), [rows, signs]),
        "layer_norm, gradient": (trained(lambda x: F.layer_norm(x, (1000,))), [rows]),
        "group_norm": (lambda x: F.group_norm(x, 8), [image]),
        "std": (lambda x: x.std(-1), [rows]),
        "vector_norm(3)": (lambda x: torch.linalg.vector_norm(x, 3, dim=-1), [rows]),
        "renorm": (lambda x: x.renorm(2, 0, 1.0), [rows]),
        "softmax, gradient": (trained(lambda x: x.softmax(-1)), [rows]),
    }
    return found


def seconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Of one call."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def measured(name: str, fn: Any, args: list[torch.Tensor], options: argparse.Namespace) -> dict[str, Any]:
    """Medians by contender, in seconds, or what it raised."""
    compilers: dict[str, Callable[[Any], Any]] = {
        "eager": lambda fn: fn,
        "torch.compile": lambda fn: torch.compile(fn, fullgraph=True),
        "fxloom": lambda fn: fxloom.compile(fn, fullgraph=True),
    }
    calls: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"operator": name}
    for contender, compiler in compilers.items():
        if contender in options.without:
            continue
        fxloom.reset()
        if contender == "torch.compile":
            torch._dynamo.reset()
        try:
            run = runner(fn, compiler)
            for _ in range(3):
                run(*args)
            calls[contender] = lambda run=run: run(*args)  # type: ignore[misc]
        except Exception as error:
            row[contender] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        if contender == "fxloom":
            stats = fxloom.stats()
            row["kernels"], row["calls"] = sum(stats.kernels.values()), sum(stats.library_calls.values()) + sum(stats.fallbacks.values())
    once = seconds(calls["eager"], options.device, 1)
    repeats = max(1, math.ceil(1e-3 / max(once, 1e-6))) if options.device != "cpu" else max(1, math.ceil(2e-4 / max(once, 1e-6)))
    times: dict[str, list[float]] = {contender: [] for contender in calls}
    for _ in range(options.rounds):
        for contender, call in calls.items():
            times[contender].append(seconds(call, options.device, repeats))
    row.update((contender, statistics.median(found)) for contender, found in times.items())
    return row


def ratio(row: dict[str, Any], slow: str, fast: str) -> float | None:
    return row[slow] / row[fast] if isinstance(row.get(slow), float) and isinstance(row.get(fast), float) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--without", default="", help="a contender to leave out")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no operator is begun")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    begun, rows = time.perf_counter(), []
    for name, (fn, args) in cases(Inputs(options.device, getattr(torch, options.dtype))).items():
        if any(part in name for part in options.only.split(",")) and time.perf_counter() - begun < options.budget:
            row = measured(name, fn, args, options)
            rows.append(row)
            shown = [f"{n} {row.get(n) * 1e6:.0f} us" if isinstance(row.get(n), float) else f"{n}: {row.get(n)}" for n in ("eager", "torch.compile", "fxloom")]
            beside = ratio(row, "torch.compile", "fxloom")
            print(f"{name:34} {', '.join(shown)}; kernels {row.get('kernels')} calls {row.get('calls')}; beside torch.compile {beside or float('nan'):.2f}", flush=True)
    for slow in ("eager", "torch.compile"):
        ratios = {row["operator"]: found for row in rows if (found := ratio(row, slow, "fxloom")) is not None}
        if ratios:
            low = {name: round(found, 2) for name, found in ratios.items() if found < 0.8}
            print(f"fxloom beside {slow}: geometric mean {geometric_mean(list(ratios.values())):.2f} of {len(ratios)}; below 0.8: {low}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
