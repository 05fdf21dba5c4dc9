"""Operator, module and optimizer databases of torch, trained through backend `aot_eager`: values and gradients against eager.

    python benchmarks/autograd_databases.py ops                 # every operator that supports autograd, float32
    python benchmarks/autograd_databases.py modules optimizers --backend inductor
    python benchmarks/autograd_databases.py ops --only nn.functional --samples 3 --verbose

Counts are by operator: one that fails on any sample fails, and its first reason is shown. A sample counts as equal when
outputs and gradients agree with eager's in value (torch.testing's tolerance), dtype, shape, strides and requires_grad, or
when both raise. Random operators are run under the same seed.
"""

from __future__ import annotations

import argparse
import collections
import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import fxloom

#: set by --backend
BACKEND = "aot_eager"


class Mismatch(Exception):
    """What differs."""


def outcome(fn: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    try:
        return "returned", fn()
    except Exception as error:
        return "raised", error


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def gradients(out: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    differentiable = [t for t in tensors(out) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not differentiable or not leaves:
        return []
    weights = [torch.linspace(0.5, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape).to(t.device, t.dtype) for t in differentiable]
    return list(torch.autograd.grad(differentiable, leaves, weights, allow_unused=True))


def agree(mine: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, torch.Tensor):
        if not isinstance(mine, torch.Tensor):
            raise Mismatch(f"{where}: a {type(mine).__name__}, eager gives a tensor")
        for name in ("dtype", "shape", "layout", "requires_grad"):
            if getattr(mine, name) != getattr(theirs, name):
                raise Mismatch(f"{where}: {name} {getattr(mine, name)}, eager's {getattr(theirs, name)}")
        if theirs.layout is torch.strided and significant(mine) != significant(theirs):
            raise Mismatch(f"{where}: strides {mine.stride()}, eager's {theirs.stride()}")
        try:
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        except AssertionError as error:
            raise Mismatch(f"{where}: {' '.join(str(error).split())[:160]}") from error
    elif isinstance(theirs, (list, tuple)):
        if len(mine) != len(theirs):
            raise Mismatch(f"{where}: {len(mine)} values, eager's {len(theirs)}")
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            agree(a, b, f"{where}[{number}]")
    elif theirs is None or isinstance(theirs, (int, float, str, bool)):
        if not (mine == theirs or (mine != mine and theirs != theirs)):
            raise Mismatch(f"{where}: {mine!r}, eager's {theirs!r}")


def significant(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides that decide where elements lie."""
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1) if tensor.numel() else ()


def compare(run: Callable[[Callable[..., Any]], Any], fn: Callable[..., Any]) -> None:
    """Run eager and compiled on equal inputs; raise Mismatch. `run(fn)` gives outputs and gradients."""
    kind, theirs = outcome(lambda: run(fn))
    fxloom.reset()
    compiled = fxloom.compile(fn, backend=BACKEND)
    mine_kind, mine = outcome(lambda: run(compiled))
    if kind == "raised":
        if mine_kind != "raised":
            raise Mismatch(f"eager raises {type(theirs).__name__}, compiled returns")
        return
    if mine_kind == "raised":
        raise Mismatch(f"raises {type(mine).__name__}: {' '.join(str(mine).split())[:200]}")
    agree(mine, theirs, "result")


def operator_cases(only: str, samples: int) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if only not in op.name or not op.supports_autograd or torch.float32 not in op.dtypes or not op.supports_dtype(torch.float32, "cpu"):
            continue
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")

        def cases(op: Any = op) -> list[Callable[[], None]]:
            try:
                found = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
            except Exception:  # the database needs a package that is not here
                return []
            step = max(1, len(found) // samples)
            return [lambda s=s, op=op: one_sample(op, s) for s in found[::step][:samples]]  # type: ignore[misc]

        yield name, cases()


def one_sample(op: Any, sample: Any) -> None:
    def run(fn: Callable[..., Any]) -> Any:
        args, kwargs, leaves = fresh((sample.input, *sample.args), sample.kwargs)
        out = fn(*args, **kwargs)
        return [tensors(out), gradients(out, leaves)]

    compare(run, lambda *args, **kwargs: op.op(*args, **kwargs))


def fresh(args: Any, kwargs: Any) -> tuple[Any, Any, list[torch.Tensor]]:
    """Equal arguments with leaves of their own."""
    leaves: list[torch.Tensor] = []

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach().clone() if leaf.layout is not torch.strided else leaf.detach().clone(memory_format=torch.preserve_format)
        if leaf.requires_grad:
            made.requires_grad_()
            leaves.append(made)
        return made

    return (*pytree.tree_map(copied, (args, kwargs)), leaves)


def module_cases(only: str, samples: int) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if only not in info.name:
            continue
        cases: list[Callable[[], None]] = []
        for training in (True, False):
            found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
            cases.extend(lambda s=s, i=info, t=training: one_module(i, s, t) for s in found[:samples] if s.forward_input is not None)  # type: ignore[misc]
        yield info.name, cases


def one_module(info: Any, sample: Any, training: bool) -> None:
    torch.manual_seed(0)
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)

    def run(made: Any) -> Any:
        own = copy.deepcopy(module)
        args, kwargs, leaves = fresh(sample.forward_input.args, sample.forward_input.kwargs)
        torch.manual_seed(1)
        out = made(own)(*args, **kwargs)
        leaves = [*leaves, *[p for p in own.parameters() if p.requires_grad]]
        return [tensors(out), gradients(out, leaves), list(own.buffers()), [torch.get_rng_state().sum().item()]]

    kind, theirs = outcome(lambda: run(lambda own: own))
    fxloom.reset()
    mine_kind, mine = outcome(lambda: run(lambda own: fxloom.compile(own, backend=BACKEND)))
    if kind == mine_kind == "raised":
        return
    if mine_kind == "raised" or kind == "raised":
        raise Mismatch(f"eager {kind} {theirs if kind == 'raised' else ''}; compiled {mine_kind}: {str(mine)[:200]}")
    agree(mine, theirs, "result")


def optimizer_cases(only: str, samples: int) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        name = info.optim_cls.__name__
        if only not in name:
            continue
        found = info.optim_inputs_func(device="cpu")
        yield name, [lambda i=info, s=s: one_optimizer(i, s) for s in found[:samples]]  # type: ignore[misc]


#: optimizers whose update is more than one graph, and why; their values are compared all the same
IN_PARTS = {
    "SparseAdam": "works on sparse gradients, which capture does not model",
}


def one_optimizer(info: Any, sample: Any) -> None:
    def train(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        second = (3, 5) if info.optim_cls.__name__ == "Muon" else (3,)  # takes matrices only
        params = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(second))]
        optimizer = info.optim_cls(params, **copy.deepcopy(sample.kwargs))

        def step(closure: Callable[[], Any] | None) -> None:
            optimizer.step(closure)

        def closure() -> Any:
            return sum((p.detach() ** 2).sum() for p in params)

        run = fxloom.compile(step, backend=BACKEND) if compiled else step
        for number in range(4):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
                if info.only_supports_sparse_grads:
                    p.grad = p.grad.to_sparse()
            run(closure if info.step_requires_closure else None)
        state = [value for p in params for value in optimizer.state[p].values()]
        return [[p.detach() for p in params], state]

    theirs = train(False)
    fxloom.reset()
    mine = train(True)
    agree(mine, theirs, "result")
    counts = fxloom.stats()
    if not info.step_requires_closure and info.optim_cls.__name__ not in IN_PARTS and (counts.graph_breaks or counts.graphs > 4):
        raise Mismatch(f"{counts.graphs} graphs, {counts.graph_breaks} breaks: {counts.break_reasons[:1]}")


FAMILIES = {"ops": operator_cases, "modules": module_cases, "optimizers": optimizer_cases}


def main() -> int:
    global BACKEND
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=(*FAMILIES, []), default=list(FAMILIES))
    parser.add_argument("--only", default="", help="entries with this in their name")
    parser.add_argument("--samples", type=int, default=4, help="samples of each entry (default: 4)")
    parser.add_argument("--backend", default=BACKEND)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    BACKEND = options.backend
    warnings.simplefilter("ignore")
    failed_any = False
    for family in options.families or FAMILIES:
        failed: dict[str, str] = {}
        total = ran = 0
        for name, cases in FAMILIES[family](options.only, options.samples):
            total += bool(cases)
            if options.verbose:
                print(name, len(cases), flush=True)
            for case in cases:
                ran += 1
                try:
                    case()
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"
                    break
        print(f"{family}: {total - len(failed)} of {total} equal eager ({ran} samples)")
        for name, reason in failed.items():
            print(f"  {name}: {reason}")
        reasons = collections.Counter(reason.partition(":")[0] for reason in failed.values())
        print(f"  reasons: {dict(reasons)}")
        failed_any = failed_any or bool(failed)
    return int(failed_any)


if __name__ == "__main__":
    sys.exit(main())
