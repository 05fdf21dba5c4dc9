"""torch's operator database through the prims: each sample traced, lowered to prims, verified and run by the prims' references.

    python benchmarks/prims.py                                  # float32, forward and gradients
    python benchmarks/prims.py --dtypes bfloat16,int64 --only add,sum --samples 20

Results are compared with eager's: dtype, shape, values by the rule of `judge`. Strides are no part of the dialect. Random
operators (two seeds differ) are compared without values. `called`: listed calls that graphs of an equal operator hold.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from autograd_databases import gradients
from databases import UNINITIALIZED
from operators import Mismatch

import fxloom_aot
from fxloom_decomp import lower_to_prims
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.prims import Prim

#: tensors that are no plain ones, operators that are made of others, and what aot does not trace without capture
#: operators whose difference is known: name -> why
KNOWN = {"tensor_split": "asks for a fake's memory when it is traced by aot alone; capture breaks the graph there"}
SKIPPED = ("sparse.", "masked.", "_refs.", "jiterator", "to_sparse")


class Untraced(Exception):
    """aot rejects the function: nothing of it comes to prims."""


def through_prims(fn: Any, args: tuple[Any, ...], seen: collections.Counter[str]) -> Any:
    """fn's results, computed by graphs of prims."""

    def compiler(gm: torch.fx.GraphModule, signature: Any) -> Any:
        lowered = lower_to_prims(gm)
        for node in lowered.graph.nodes:
            if node.op == "call_function":
                seen[f"prims.{node.target.name}" if isinstance(node.target, Prim) else str(node.target)] += 1

        def run(inputs: list[Any]) -> Any:
            with torch.no_grad():
                return lowered.forward(*inputs)

        return run

    try:
        return fxloom_aot.aot_function(fn, args, compiler=compiler)(*args)
    except GraphRejected as error:
        if "is no single graph" in str(error):
            raise Untraced from error
        raise


def _plainly(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from flat(part)
    else:
        yield value


def fresh(value: Any) -> Any:
    """Copies, with gradients on where the sample has them."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)([fresh(item) for item in value]) if type(value) in (list, tuple) else value
    return value


def wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)([wide(item) for item in value]) if type(value) in (list, tuple) else value
    return torch.float64 if value in (torch.float32, torch.bfloat16, torch.float16) and isinstance(value, torch.dtype) else value


def results(op: Any, sample: Any, change: Any, prims: collections.Counter[str] | None, backward: bool) -> list[Any]:
    """Flat results, and gradients; by prims where these are to be counted."""
    values = change([sample.input, *sample.args])
    kwargs = {name: change(value) for name, value in sample.kwargs.items()}
    tensors = [value for value in flat([values, list(kwargs.values())]) if isinstance(value, torch.Tensor)]

    def call(*given: torch.Tensor) -> list[torch.Tensor]:
        replaced = iter(given)

        def put(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return next(replaced)
            return type(value)([put(item) for item in value]) if type(value) in (list, tuple) else value

        positional = put(values)
        out = op(*positional, **{name: put(value) for name, value in kwargs.items()})
        return [value for value in flat(out) if isinstance(value, torch.Tensor)]

    out = through_prims(call, tuple(tensors), prims) if prims is not None else call(*tensors)
    out = list(out)
    if backward:
        leaves = [value for value in tensors if value.requires_grad]
        out += gradients([value for value in out if value.requires_grad], leaves)
    return out


def check(op: Any, dtype: torch.dtype, count: int, backward: bool, seen: collections.Counter[str]) -> str | None:
    """What differs for an operator, or None."""
    backward = backward and dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), count):
        where = f"{op.name} {describe(sample)}"
        try:
            torch.manual_seed(0)
            eager = results(op, sample, fresh, None, backward)
        except Exception:
            continue  # eager refuses the sample
        torch.manual_seed(1)
        again = results(op, sample, fresh, None, backward)
        random = op.name in UNINITIALIZED or "fractional" in op.name or not all(same(a, b) for a, b in zip(eager, again, strict=True))
        try:
            exact: list[Any] = results(op, sample, wide, None, backward)
        except Exception:
            exact = [None] * len(eager)
        try:
            mine = results(op, sample, fresh, seen, backward)
        except Untraced:
            seen["untraced"] += 1
            continue
        except Exception as error:
            cause = error.__cause__ if isinstance(error, GraphRejected) and error.__cause__ else error
            last = traceback.extract_tb(cause.__traceback__)[-1]
            return f"raised {where}: {type(cause).__name__}: {str(cause)[:300]} ({Path(last.filename).name}:{last.lineno})"
        scale = max((float(x.detach().abs().max()) for x in flat([sample.input, sample.args]) if is_float(x) and x.numel()), default=0.0)
        try:
            for number, (a, b, c) in enumerate(zip(mine, eager, exact, strict=True)):
                if a is None and b is None:
                    continue
                if a is None or b is None:
                    raise Mismatch("type", f"{number}: {type(a).__name__}, eager {type(b).__name__}")
                if a.dtype != b.dtype or a.shape != b.shape:
                    raise Mismatch("shape", f"{number}: {a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}")
                if not random:
                    judge(a, b, c, scale)
        except Mismatch as error:
            return f"{where}: {error}"
    return None


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def judge(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, scale: float) -> None:
    """Raise Mismatch unless `mine` is off by at most twice eager's largest error, and a few ulp of the largest number around.

    exact: the result in float64, None where there is none. scale: the largest operand. Integers and what is not finite are equal.
    """
    if not (eager.is_floating_point() or eager.is_complex()):
        if not torch.equal(mine, eager):
            raise Mismatch("values", f"{int((mine != eager).sum())} of {eager.numel()} elements of {eager.dtype} differ")
        return
    type_of = torch.complex128 if eager.is_complex() else torch.float64
    left, right = mine.detach().to(type_of), eager.detach().to(type_of)
    truth = right if exact is None or exact.shape != right.shape else exact.detach().to(type_of)
    if eager.is_complex():
        left, right, truth = (torch.view_as_real(t.resolve_conj()) for t in (left, right, truth))
    odd = ~right.isfinite()
    if not torch.equal(left.isfinite(), ~odd) or not torch.equal(left[odd].nan_to_num(nan=1e300), right[odd].nan_to_num(nan=1e300)):
        raise Mismatch("values", "infinities or NaNs differ")
    known = ~odd & truth.isfinite()
    left, right, truth = left[known], right[known], truth[known]
    if not left.numel():
        return
    ulps = {2: 3, 4: 16}.get(eager.dtype.itemsize, 64)
    limit = 2 * (right - truth).abs().max() + ulps * torch.finfo(eager.dtype).eps * max(scale, float(truth.abs().max()))
    error = torch.minimum((left - truth).abs(), (left - right).abs())
    worst = int(error.argmax())
    if error[worst] > limit:
        raise Mismatch("values", f"{left[worst]:.6g}, eager {right[worst]:.6g}, float64 {truth[worst]:.6g} ({eager.dtype})")


def same(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and torch.allclose(a, b, equal_nan=True) if a.dtype != torch.bool else torch.equal(a, b))


def describe(sample: Any) -> str:
    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype)[6:]}{list(value.shape)}"
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, (list, tuple)) else repr(value)[:40]

    return text([sample.input, *sample.args]) + " " + str({name: text(value) for name, value in sample.kwargs.items()})


def unseeded() -> None:
    """The database calls random operators in code that keeps and restores the generators; this script seeds them itself."""
    for module in list(sys.modules.values()):
        if hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = _plainly  # type: ignore[attr-defined]


def main() -> int:
    from torch.testing._internal.common_methods_invocations import op_db

    unseeded()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--part", default="0/1", help="NUMBER/COUNT: every COUNT-th operator")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    number, parts = map(int, options.part.split("/"))
    report: dict[str, Any] = {}
    for name in options.dtypes.split(","):
        dtype = getattr(torch, name)
        wrong, seen, equal = {}, collections.Counter[str](), 0
        for position, op in enumerate(op_db):
            if options.only and op.name not in options.only.split(","):
                continue
            if op.name.startswith(SKIPPED) or dtype not in op.supported_dtypes("cpu") or position % parts != number:
                continue
            try:
                text = check(op, dtype, options.samples, not options.no_backward, seen)
            except Exception as error:
                text = f"harness: {type(error).__name__}: {error}"
            key = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"
            if text is None:
                equal += 1
            else:
                wrong[key] = text
                print(key, text, flush=True)
        calls = sorted(target for target in seen if not target.startswith("prims.") and target.partition(".")[0] in ("aten", "fxloom"))
        print(f"{name}: {equal} operators equal, {len(wrong)} not; {len([s for s in seen if s.startswith('prims.')])} prims used")
        print("called:", " ".join(calls))
        report[name] = {"equal": equal, "wrong": wrong, "called": calls}
    if options.json:
        Path(options.json).write_text(json.dumps(report))
    return int(any(name.partition(".")[0] not in KNOWN for of in report.values() for name in of["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
