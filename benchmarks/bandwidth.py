"""Single kernels against what the machine can move and multiply: eager, torch.compile and fxloom in turn in one process.

    python benchmarks/bandwidth.py                                       # CPU, float32
    python benchmarks/bandwidth.py --device cuda --dtype bfloat16 --json out.json
    python benchmarks/bandwidth.py --only softmax,adam --size small

A kernel that is bound by memory is measured beside a copy that reads and writes together the bytes which the kernel has to at least
(each input read once, each output written once; what has to be read twice, since it can't stay in a cache, counts twice). 100 % is the
copy's time. A product is measured beside the library's (cuBLAS, MKL), attention written by hand beside scaled_dot_product_attention.
The copy and the library take their turn in the same rounds. Each result is judged against float64 as check_models.py does. `forward +
backward` runs through autograd, all gradients new. On a CPU the command starts itself anew with an allocator (glibc's) that keeps freed
memory: otherwise page faults of new results take longer than kernels. `--by least` is for a machine with other work. Products are compiled with `max-autotune-no-cudagraphs`, everything else by default.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from check_models import Errors
from kernels import seconds
from torch import Tensor
from whole_way import geometric_mean

PEER = "torch.compile"
TUNED = "max-autotune-no-cudagraphs"


@dataclass
class Kernel:
    """name: for reports. fn, args: what is compiled and called. trained: how many of the first arguments get gradients; the last
    argument is then the result's. nbytes: moved at least. library: what a product is measured beside. flops: of a call. mode: of
    compilers. target: share of the copy's or the library's speed that is asked for."""

    name: str
    fn: Callable[..., Tensor]
    args: list[Tensor]
    nbytes: int = 0
    trained: int = 0
    library: Callable[[], Any] | None = None
    flops: float = 0.0
    mode: str = "default"
    target: float = 0.9

    def call(self, fn: Callable[..., Tensor], args: list[Tensor]) -> list[Tensor]:
        """One call of the function, compiled or not; the result and the gradients."""
        if not self.trained:
            result = fn(*args)
            return [result] if isinstance(result, Tensor) else list(result)
        inputs = [t.detach().requires_grad_() for t in args[: self.trained]]
        result = fn(*inputs, *args[self.trained : -1])
        return [result.detach(), *torch.autograd.grad(result, inputs, args[-1].to(result.dtype))]


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(F.relu(x * 2 + 1) * y) + x


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama writes it."""
    wide = x.float() if x.dtype != torch.float64 else x
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def adam(p: Tensor, grad: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """One update in place."""
    m.mul_(0.9).add_(grad, alpha=0.1)
    v.mul_(0.999).addcmul_(grad, grad, value=0.001)
    p.sub_(0.001 * (m / (1 - 0.9**3)) / ((v / (1 - 0.999**3)).sqrt() + 1e-8))
    return p, m, v


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x @ weight + bias, approximate="tanh")


def kernels(device: str, dtype: torch.dtype, size: str) -> list[Kernel]:
    """All of them. size: `full` is beyond every cache; `small` and `tiny` are for trying out."""
    cuda = device.startswith("cuda")
    rows = {"tiny": 16, "small": 512, "full": 32768 if cuda else 5120}[size]
    columns = {"tiny": 32, "small": 1024, "full": 4096}[size]
    side = {"tiny": 32, "small": 256, "full": 8192 if cuda else 1024}[size]
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(of)

    x, y, grad = (normal(rows, columns) for _ in range(3))
    weight, bias = normal(columns), normal(columns)
    n = x.nbytes
    found = [
        Kernel("pointwise chain", pointwise, [x, y], 3 * n),
        Kernel("transposed copy", lambda x: x.t().contiguous() + 1, [x], 2 * n),
        Kernel("GELU + bias", gelu_bias, [x, bias], 2 * n),
        Kernel("row sum", lambda x: x.sum(-1), [x], n),
        Kernel("column sum", lambda x: x.sum(0), [x], n),
        Kernel("softmax", lambda x: x.softmax(-1), [x], 2 * n),
        Kernel("softmax, forward + backward", lambda x: x.softmax(-1), [x, grad], 5 * n, trained=1),
        Kernel("layer norm", layer_norm, [x, weight, bias], 2 * n),
        Kernel("layer norm, forward + backward", layer_norm, [x, weight, bias, grad], 5 * n, trained=3),
        Kernel("RMS norm", rms_norm, [x, weight], 2 * n),
        Kernel("RMS norm, forward + backward", rms_norm, [x, weight, grad], 5 * n, trained=2),
    ]
    vocabulary, tokens = {"tiny": (50, 16), "small": (4096, 128), "full": (50304, 4096 if cuda else 512)}[size]
    logits, labels = normal(tokens, vocabulary), torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    one = torch.ones((), device=device)
    found += [
        Kernel("cross-entropy", lambda x, t: F.cross_entropy(x, t), [logits, labels], logits.nbytes),
        Kernel(
            "cross-entropy, forward + backward", lambda x, t: F.cross_entropy(x, t), [logits, labels, one], 3 * logits.nbytes, trained=1
        ),
    ]
    images, channels, pixels = {"tiny": (2, 4, 8), "small": (4, 32, 32), "full": (128, 64, 112) if cuda else (8, 64, 112)}[size]
    image, image_grad, scale, shift = (
        normal(images, channels, pixels, pixels),
        normal(images, channels, pixels, pixels),
        normal(channels),
        normal(channels),
    )
    heads, length, width = {"tiny": (2, 8, 8), "small": (4, 64, 32), "full": (16, 2048, 64)}[size]
    batch = 8 if cuda else 1
    turned, angle = normal(16 * batch, heads, length, width), normal(length, width)
    parameters = [normal(rows * columns, of=torch.float32) for _ in range(4)]
    parameters[3].square_()
    q, k, v = (normal(batch, heads, length, width) for _ in range(3))
    a, b, bias_of_b = normal(side, side), normal(side, side), normal(side)
    found += [
        Kernel("batch norm", batch_norm, [image, scale, shift], 3 * image.nbytes),
        Kernel("batch norm, forward + backward", batch_norm, [image, scale, shift, image_grad], 8 * image.nbytes, trained=3),
        Kernel("rotary", rotary, [turned, angle.cos(), angle.sin()], 2 * turned.nbytes),
        Kernel("Adam", adam, parameters, 7 * parameters[0].nbytes),
        Kernel(
            "attention by hand", attention, [q, k, v], flops=4.0 * batch * heads * length**2 * width,
            library=lambda: F.scaled_dot_product_attention(q, k, v), target=1 / 1.1,
        ),
        Kernel("mm", lambda a, b: a @ b, [a, b], flops=2.0 * side**3, library=lambda: torch.mm(a, b), mode=TUNED),
        Kernel(
            "mm + bias + GELU", linear_gelu, [a, b, bias_of_b], flops=2.0 * side**3, library=lambda: linear_gelu(a, b, bias_of_b),
            mode=TUNED, target=1.0,
        ),
    ]  # fmt: skip
    return found


def worst_error(kernel: Kernel, compiled: Callable[..., Tensor]) -> float:
    """The largest error over what is allowed beside eager's."""

    def of(fn: Callable[..., Tensor], dtype: torch.dtype | None) -> list[Tensor]:
        args = [t.to(dtype) if dtype is not None and t.is_floating_point() else t.clone() for t in kernel.args]
        return [t.clone() for t in kernel.call(fn, args)]

    worst = 0.0
    for mine, eager, exact in zip(of(compiled, None), of(kernel.fn, None), of(kernel.fn, torch.float64), strict=True):
        errors = Errors()
        errors.add(mine, eager, exact)
        worst = max(worst, errors.over_allowed(0.0))
    return worst


def measured(kernel: Kernel, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds by contender (or what it raised), its share of the copy's or library's speed, and whether it is right."""
    import fxloom

    row: dict[str, Any] = {"kernel": kernel.name, "nbytes": kernel.nbytes, "flops": kernel.flops, "target": kernel.target}
    calls: dict[str, Callable[[], Any]] = {}
    if kernel.library is not None:
        calls["library"] = kernel.library
    else:
        source = torch.empty(kernel.nbytes // 2, dtype=torch.uint8, device=options.device)
        target = torch.empty_like(source)
        calls["copy"] = lambda: target.copy_(source)
    compilers: dict[str, Callable[[Any], Any]] = {
        "eager": lambda fn: fn,
        PEER: lambda fn: torch.compile(fn, fullgraph=True, mode=kernel.mode),
        "fxloom": lambda fn: fxloom.compile(fn, fullgraph=True, mode=kernel.mode),
    }
    row["right"] = {}
    for contender in options.contenders.split(","):
        if contender == PEER:
            torch.compiler.reset()
        fxloom.reset()
        try:
            compiled = compilers[contender](kernel.fn)
            if contender != "eager":
                row["right"][contender] = round(worst_error(kernel, compiled), 3)
            kernel.call(compiled, kernel.args)
            if contender == "fxloom":
                stats = fxloom.stats()
                row["kernels"], row["calls"] = sum(stats.kernels.values()), dict(stats.library_calls + stats.fallbacks)
            calls[contender] = lambda compiled=compiled: kernel.call(compiled, kernel.args)  # type: ignore[misc]
        except Exception as error:
            row[contender] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    once = min(seconds(call, options.device, 1) for call in calls.values())
    repeats = max(1, min(100, math.ceil(options.least_ms / 1e3 / once)))
    times: dict[str, list[float]] = {contender: [] for contender in calls}
    order, shuffled = list(calls), random.Random(0)
    for _ in range(options.rounds):
        shuffled.shuffle(order)
        for contender in order:
            times[contender].append(seconds(calls[contender], options.device, repeats))
    row |= {contender: statistics.median(found) if options.by == "median" else min(found) for contender, found in times.items()}
    beside = row["library" if kernel.library is not None else "copy"]
    row["share"] = {contender: round(beside / row[contender], 3) for contender in times if contender not in ("copy", "library")}
    return row


def told(row: dict[str, Any]) -> str:
    """One line: microseconds and share of the copy's or library's speed, by contender."""
    beside = "library" if "library" in row else "copy"
    done = row["flops"] or row["nbytes"]
    unit = "TFLOP/s" if row["flops"] else "GB/s"
    speed = done / row[beside] / (1e12 if row["flops"] else 1e9)
    parts = [
        f"{beside} {row[beside] * 1e6:.0f} us ({speed:.0f} {unit})"
        if speed >= 10
        else f"{beside} {row[beside] * 1e6:.0f} us ({speed:.2f} {unit})"
    ]
    for contender in ("eager", PEER, "fxloom"):
        if isinstance(row.get(contender), float):
            right = row["right"].get(contender, 0.0)
            parts.append(
                f"{contender} {row[contender] * 1e6:.0f} us {row['share'][contender]:.0%}"
                + (f" WRONG ({right} of the allowed error)" if right > 1 else "")
            )
        elif contender in row:
            parts.append(f"{contender}: {row[contender]}")
    short = row["share"].get("fxloom", 1.0) < row["target"]
    tail = f"; kernels {row.get('kernels')} calls {sum(row.get('calls', {}).values())}" + (f"; below {row['target']:.0%}" if short else "")
    return f"{row['kernel']:34} {', '.join(parts)}{tail}"


def machine(device: str, dtype: torch.dtype) -> str:
    """What is known of the device, with its copy bandwidth and its speed at large products, measured."""
    cuda = device.startswith("cuda")
    source = torch.empty(2**30 if cuda else 2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = 8192 if cuda else 1024
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    copy, product = (min(seconds(call, device, 5) for _ in range(5)) for call in (lambda: target.copy_(source), lambda: torch.mm(a, b)))
    name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    moved, done = 2 * source.nbytes / copy / 1e9, 2 * side**3 / product / 1e12
    return f"{name}, torch {torch.__version__}, {dtype}: copies {moved:.1f} GB/s, multiplies {done:.3g} TFLOP/s"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--size", choices=("tiny", "small", "full"), default="full")
    made.add_argument("--only", default="", help="parts of names, joined by commas")
    made.add_argument("--contenders", default=f"eager,{PEER},fxloom")
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--by", choices=("median", "least"), default="median", help="of the rounds")
    made.add_argument("--least-ms", type=float, default=2.0, help="a call is repeated to fill this")
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--budget", type=float, default=1e9, help="seconds after which no kernel is begun")
    made.add_argument("--json", default="")
    return made


def keep_freed_memory() -> None:
    """Start this command anew with the variables of glibc's allocator by which it gives no memory back to the system."""
    wanted = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = getattr(torch, options.dtype)
    about = machine(options.device, dtype)
    print(about, flush=True)
    rows: list[dict[str, Any]] = []
    begun = time.monotonic()
    for kernel in kernels(options.device, dtype, options.size):
        if any(part.lower() in kernel.name.lower() for part in options.only.split(",")) and time.monotonic() - begun < options.budget:
            rows.append(measured(kernel, options))
            print(told(rows[-1]), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1))
    for peer in ("eager", PEER):
        ratios = {
            row["kernel"]: row[peer] / row["fxloom"]
            for row in rows
            if isinstance(row.get(peer), float) and isinstance(row.get("fxloom"), float)
        }
        if ratios:
            low = {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 0.95}
            print(f"fxloom beside {peer}: geometric mean {geometric_mean(list(ratios.values())):.2f} of {len(ratios)}; below 0.95: {low}")
    wrong = [row["kernel"] for row in rows if row["right"].get("fxloom", 0) > 1 or isinstance(row.get("fxloom"), str)]
    if wrong:
        print(f"wrong or raised: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    if parser().parse_args().device == "cpu":
        keep_freed_memory()
    sys.exit(main())
