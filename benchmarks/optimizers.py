"""Time of one optimizer step over many tensors: eager (a loop, foreach, fused), torch.compile and fxloom, interleaved in one process.

    python benchmarks/optimizers.py                                    # on the CPU, 100 tensors
    python benchmarks/optimizers.py --device cuda --tensors 1000 --numel 1048576 --optimizers AdamW
    python benchmarks/optimizers.py --device cuda --tensors 1000 --numel 1000,4096,65536    # sizes in turn
    python benchmarks/optimizers.py --ways fused,fxloom --mode reduce-overhead --json out.json

Every way has parameters, gradients and states of its own, which start out equal; after the timing they are compared with those of the
first way. A round times `--steps` steps of each way, one way after the other; what is shown are medians over the rounds and their
ratios to the first way's. Bandwidth is bytes by time, where the bytes are those that a step can't do without: each parameter,
gradient and state read once, each parameter and state written once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

#: optimizer -> (options, tensors of a parameter's size that a step reads, and writes)
OPTIMIZERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "SGD": ({"lr": 1e-3}, 2, 1),
    "SGD-momentum": ({"lr": 1e-3, "momentum": 0.9}, 3, 2),
    "Adam": ({}, 4, 3),
    "AdamW": ({}, 4, 3),
    "AdamW-amsgrad": ({"amsgrad": True}, 5, 4),
    "Adagrad": ({}, 3, 2),
    "RMSprop": ({}, 3, 2),
    "NAdam": ({}, 4, 3),
    "RAdam": ({}, 4, 3),
    "Adadelta": ({}, 4, 3),
    "Adamax": ({}, 4, 3),
}
WAYS = ("loop", "foreach", "fused", "torch.compile", "fxloom", "fxloom-fused")


@dataclass
class Way:
    """One way to do the step. seconds: per step, one number a round."""

    name: str
    params: list[torch.Tensor]
    step: Callable[[], Any]
    first_call: float = 0.0
    seconds: list[float] = field(default_factory=list)


def make(name: str, way: str, options: argparse.Namespace) -> Way | None:
    """None where the optimizer has no such way."""
    cls = getattr(torch.optim, name.split("-")[0])
    generator = torch.Generator(device=options.device).manual_seed(0)
    dtype = getattr(torch, options.dtype)

    def random(numel: int) -> torch.Tensor:
        return torch.randn(numel, generator=generator, device=options.device).to(dtype)

    sizes = [options.numel[number % len(options.numel)] for number in range(options.tensors)]
    params = [random(numel).requires_grad_() for numel in sizes]
    for param in params:
        param.grad = random(param.numel()) * 0.1
    flags: dict[str, Any] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}.get(way, {})
    if way == "fxloom-fused":
        flags = {"fused": True}
    if options.capturable and way not in ("loop", "foreach", "fused", "fxloom-fused"):
        flags["capturable"] = True
    try:
        optimizer = cls(params, **OPTIMIZERS[name][0], **flags)
    except (TypeError, RuntimeError):
        return None
    if way == "torch.compile":
        return Way(way, params, torch.compile(optimizer.step, mode=options.mode))
    if way.startswith("fxloom"):
        import fxloom

        return Way(way, params, fxloom.compile(lambda: optimizer.step(), mode=options.mode or "default"))
    return Way(way, params, optimizer.step)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(way: Way, steps: int, device: str) -> float:
    """Seconds of `steps` steps."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        way.step()
    synchronize(device)
    return time.perf_counter() - start


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    ways = [made for way in options.ways if (made := make(name, way, options)) is not None]
    for way in ways:
        way.first_call = timed(way, 1, options.device)
        timed(way, 3, options.device)  # with a state there is another graph, and a recording
    for _ in range(options.rounds):
        for way in ways:
            way.seconds.append(timed(way, options.steps, options.device) / options.steps)
    _, reads, writes = OPTIMIZERS[name]
    nbytes = (reads + writes) * sum(param.numel() * param.element_size() for param in ways[0].params)
    base = statistics.median(ways[0].seconds)
    rows = []
    for way in ways:
        differs = max(float((mine - first).abs().max()) for mine, first in zip(way.params, ways[0].params, strict=True))
        median = statistics.median(way.seconds)
        rows.append(
            {
                "optimizer": name, "way": way.name, "tensors": options.tensors, "ms": median * 1e3, "times_first": base / median,
                "GB/s": nbytes / median / 1e9, "first_call_s": way.first_call, "differs": differs,
            }
        )  # fmt: skip
    return rows


def copy_bandwidth(device: str) -> float:
    """GB/s of copying a tensor of 1 GiB (on the CPU 256 MiB), read and write counted."""
    source = torch.empty((1 << 30 if device.startswith("cuda") else 1 << 28) // 4, device=device)
    target = torch.empty_like(source)
    way = Way("copy", [], lambda: target.copy_(source))
    timed(way, 3, device)
    return 2 * source.numel() * 4 / statistics.median(timed(way, 5, device) / 5 for _ in range(5)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--numel", type=lambda text: [int(part) for part in text.split(",")], default=[65536], help="in turn")
    parser.add_argument("--optimizers", type=lambda text: text.split(","), default=["SGD", "Adam", "AdamW"], help="of " + ", ".join(OPTIMIZERS))
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["loop", "foreach", "fused", "fxloom", "fxloom-fused"], help="of " + ", ".join(WAYS))
    parser.add_argument("--mode", default=None, help="of torch.compile and fxloom.compile: reduce-overhead, ...")
    parser.add_argument("--capturable", action="store_true", help="compiled optimizers keep their step counts on the GPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    bandwidth = copy_bandwidth(options.device)
    print(f"copy: {bandwidth:.0f} GB/s")
    rows = []
    for name in options.optimizers:
        for row in measure(name, options):
            row["of_copy"] = row["GB/s"] / bandwidth
            rows.append(row)
            print(
                f"{row['optimizer']:14} {row['way']:14} {row['ms']:9.3f} ms  {row['times_first']:6.2f} x  {row['GB/s']:7.1f} GB/s"
                f"  {row['of_copy']:5.1%} of a copy's  first call {row['first_call_s']:6.2f} s  differs by {row['differs']:.1e}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"copy_GB/s": bandwidth, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
