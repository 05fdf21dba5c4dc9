"""Training: what is kept between forward and backward, seconds of a step, seconds of tracing; eager, torch.compile, fxloom.

    python benchmarks/training.py                        # everything
    python benchmarks/training.py --only bytes steps --models bert

How it is kept fair: contenders share one process and are called in turn, medians of the rounds. Bytes are counted by hooks on
saved tensors, each memory once, parameters and buffers left out; peak by the profiler's allocation events of one step.
Tracing: both get the graph that their own capture made of the same model and time forward, backward, decomposition and
partition, without compiling anything.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxloom.demo.memory import kept_bytes

Step = Callable[[nn.Module], Tensor]


def bert(small: bool) -> tuple[nn.Module, Step]:
    import transformers

    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2 if small else 12), add_pooling_layer=False)
    ids = torch.randint(0, 1000, (2, 128))
    return model, lambda m: m(ids).last_hidden_state.square().mean()


def gpt2(small: bool) -> tuple[nn.Module, Step]:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2 if small else 12))
    ids = torch.randint(0, 1000, (1, 128))
    return model, lambda m: nn.functional.cross_entropy(m(ids, use_cache=False).logits.flatten(0, 1), ids.flatten())


def resnet(small: bool) -> tuple[nn.Module, Step]:
    from fxloom.demo.resnet import ResNet50

    images, labels = torch.randn(4, 3, 96 if small else 160, 96 if small else 160), torch.arange(4)
    return ResNet50(), lambda m: nn.functional.cross_entropy(m(images), labels)


MODELS = {"bert": bert, "gpt2": gpt2, "resnet": resnet}


def contenders(model: nn.Module) -> dict[str, Any]:
    import fxloom

    return {"eager": model, "torch.compile": torch.compile(model), "fxloom": fxloom.compile(model)}


def peak_bytes(run: Callable[[], Any]) -> int:
    """The largest sum of allocations less frees during a call, as the profiler reports them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    now = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def measure_bytes(name: str, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, step = MODELS[name](small)
    model.train()
    row: dict[str, Any] = {}
    for contender, run in contenders(model).items():
        step(run).backward()  # compile
        row[contender] = kept_bytes(model, lambda run=run: step(run)) / 1e6  # type: ignore[misc]
        model.zero_grad(set_to_none=False)
        row[f"{contender} peak"] = peak_bytes(lambda run=run: step(run).backward()) / 1e6  # type: ignore[misc]
    return row


def measure_steps(name: str, small: bool, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, step = MODELS[name](small)
    model.train()
    runs = contenders(model)
    times: dict[str, list[float]] = {contender: [] for contender in runs}
    for number in range(rounds + 2):
        for contender, run in runs.items():
            model.zero_grad(set_to_none=False)
            start = time.perf_counter()
            step(run).backward()
            if number >= 2:
                times[contender].append(time.perf_counter() - start)
    return {contender: statistics.median(taken) for contender, taken in times.items()}


def measure_tracing(name: str, small: bool, rounds: int) -> dict[str, float]:
    """Seconds from a captured graph to partitioned forward and backward graphs."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    from fxloom_aot import MinCut, export_graph
    from fxloom_decomp import table
    from fxloom_dynamo import optimize

    taken: dict[str, list[float]] = {"torch": [], "fxloom": []}

    def theirs(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        start = time.perf_counter()
        result = aot_module_simplified(
            gm, inputs, fw_compiler=lambda g, _: g, bw_compiler=lambda g, _: g,
            partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table(),
        )  # fmt: skip
        taken["torch"].append(time.perf_counter() - start)
        return result

    def ours(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        start = time.perf_counter()
        export_graph(gm, inputs, decompositions=table("inductor"), partitioner=MinCut())
        taken["fxloom"].append(time.perf_counter() - start)
        return gm.forward

    model, step = MODELS[name](small)
    model.train()
    for _ in range(rounds + 1):
        torch.compiler.reset()
        with torch._functorch.config.patch(enable_autograd_cache=False):
            step(torch.compile(model, backend=theirs))
        step(optimize(ours)(model))
    return {contender: statistics.median(times[1:]) for contender, times in taken.items()}


def mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("bytes", "steps", "tracing"), default=["bytes", "steps", "tracing"])
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if "bytes" in options.only:
        rows = {name: measure_bytes(name, options.small) for name in options.models}
        for name, row in rows.items():
            print(f"bytes {name}: " + ", ".join(f"{key} {value:.1f} MB" for key, value in row.items()))
        for peer in ("eager", "torch.compile"):
            print(f"  kept: {mean([row['fxloom'] / row[peer] for row in rows.values()]):.2f} of {peer}'s (geometric mean)")
    if "steps" in options.only:
        times = {name: measure_steps(name, options.small, options.rounds) for name in options.models}
        for name, taken in times.items():
            print(f"step {name}: " + ", ".join(f"{key} {value * 1e3:.0f} ms" for key, value in taken.items()))
        for peer in ("eager", "torch.compile"):
            print(f"  speed: {mean([row[peer] / row['fxloom'] for row in times.values()]):.2f} times {peer}'s (geometric mean)")
    if "tracing" in options.only:
        for name in options.models:
            taken = measure_tracing(name, options.small, min(options.rounds, 3))
            print(
                f"tracing {name}: torch {taken['torch']:.2f} s, fxloom {taken['fxloom']:.2f} s, {taken['torch'] / taken['fxloom']:.1f} times"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
