"""torch's operator and module databases through capture alone: each sample's result equal to eager's.

Every sample is called by a small function of its own, captured with the backend `eager`, and compared with plain eager:
values bit for bit, dtype, shape, strides, gradient flags, and the type of what is raised. A sample is `captured` when the
operator was recorded in a graph, `broke` when a graph break left it to eager (with the key of the break).

    python benchmarks/databases.py                        # both databases
    python benchmarks/databases.py --ops add,sum --samples 100
    python benchmarks/databases.py --modules Linear
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

#: operators of the database whose results are whatever lies in memory
UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "linalg.lstsq.grad_oriented", "resize_"}
)


@dataclass
class Tally:
    """Counts over samples. wrong: what differed, by operator. breaks: key and details -> operators."""

    samples: int = 0
    captured: int = 0
    broke: int = 0
    raised_alike: int = 0
    skipped: int = 0
    wrong: list[str] = field(default_factory=list)
    breaks: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    clean: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def text(self, what: str) -> str:
        lines = [
            f"{what}: {len(self.seen)} entries, {self.samples} samples: {self.captured} captured, {self.broke} broke, "
            f"{self.raised_alike} raised as in eager, {self.skipped} skipped (eager itself differs run to run), {len(self.wrong)} wrong"
        ]
        for key, names in sorted(self.breaks.items(), key=lambda item: -len(item[1])):
            unique = sorted(set(names))
            lines.append(f"  break {key}: {len(unique)} entries: {', '.join(unique[:12])}{' ...' if len(unique) > 12 else ''}")
        kinds = collections.Counter(text.split(" ", 1)[0] for text in self.wrong)
        first = {text.split(" ", 1)[0]: text for text in reversed(self.wrong)}
        lines += [f"  WRONG {count} of {name}, the first: {first[name]}" for name, count in kinds.items()]
        return "\n".join(lines)


def differs(expected: Any, got: Any) -> str:
    """What is not the same; empty when all is."""
    if isinstance(expected, torch.Tensor):
        if type(expected) is not type(got):
            return f"{type(got).__name__} for {type(expected).__name__}"
        for name in ("dtype", "shape", "layout", "device", "requires_grad"):
            if getattr(expected, name) != getattr(got, name):
                return f"{name} {getattr(got, name)} for {getattr(expected, name)}"
        if expected.layout is not torch.strided or expected.is_quantized:
            return "" if repr(expected) == repr(got) else "contents of a tensor that is not strided"
        if expected.is_nested:
            return ""
        if expected.stride() != got.stride():
            return f"strides {got.stride()} for {expected.stride()}"
        if expected.is_conj() != got.is_conj() or expected.is_neg() != got.is_neg():
            return "conjugate or negative bit"
        one, two = expected.detach(), got.detach()
        if one.dtype.is_floating_point or one.dtype.is_complex:
            wide = torch.complex128 if one.dtype.is_complex else torch.float64
            one, two = one.to(wide), two.to(wide)
            return "" if torch.equal(torch.isnan(one), torch.isnan(two)) and torch.equal(one[~one.isnan()], two[~two.isnan()]) else "values"
        return "" if torch.equal(one, two) else "values"
    if isinstance(expected, (tuple, list)):
        if type(expected) is not type(got) or len(expected) != len(got):
            return f"{type(got).__name__} for {type(expected).__name__}"
        return next((text for one, two in zip(expected, got, strict=True) if (text := differs(one, two))), "")
    if isinstance(expected, dict):
        return differs(list(expected.values()), list(got.values()))
    if isinstance(expected, float) and expected != expected:
        return "" if got != got else "values"
    if type(expected) is not type(got):
        return f"{type(got).__name__} for {type(expected).__name__}"
    try:
        return "" if bool(expected == got) or type(expected).__module__ not in ("builtins",) else f"{got!r} for {expected!r}"
    except (TypeError, RuntimeError):
        return ""


def clone(value: Any) -> Any:
    """The same tensors with storage of their own; layout, strides and gradient flags kept."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            return value.detach().clone().requires_grad_(value.requires_grad)
        with torch.no_grad():
            if value.is_conj() or value.is_neg() or torch._debug_has_internal_overlap(value) == 1:
                return value.detach().clone().requires_grad_(value.requires_grad)
            fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            fresh.copy_(value)
        return fresh.requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(clone, value))
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(map(clone, value))
    if type(value) is dict:
        return {key: clone(item) for key, item in value.items()}
    return value


def run(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, BaseException | None]:
    torch.manual_seed(3)
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def check(tally: Tally, label: str, name: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """One sample."""
    from fxloom_dynamo import optimize

    tally.samples += 1
    tally.seen.add(name)
    first, second, third = ((clone(args), clone(kwargs)) for _ in range(3))
    expected, error = run(fn, *first)
    if name in UNINITIALIZED or error is None and differs(expected, run(fn, *second)[0]):
        tally.skipped += 1
        return
    frames: list[Any] = []
    # a function of its own for every sample: nothing that an earlier one compiled is found
    scope: dict[str, Any] = {"fn": fn}
    exec("def call(*args, **kwargs):\n    return fn(*args, **kwargs)\n", scope)
    compiled = optimize(None, on_capture=frames.append)(scope["call"])
    got, got_error = run(compiled, *third)
    if (error is None) != (got_error is None) or type(error) is not type(got_error):
        tally.wrong.append(f"{label}: raises {type(got_error).__name__} ({str(got_error)[:160]}), eager {type(error).__name__}")
        return
    if error is not None:
        tally.raised_alike += 1
        return
    text = differs(expected, got) or differs(first, third) and f"arguments after the call: {differs(first, third)}"
    if text:
        tally.wrong.append(f"{label}: {text}")
        return
    breaks = [frame.info.broke for frame in frames if frame.info.broke is not None]
    if breaks or not frames:
        tally.broke += 1
        key = f"{breaks[0].key}: {breaks[0].details}" if breaks else "not captured"
        tally.breaks[key[:110]].append(name)
    else:
        tally.captured += 1
        tally.clean.add(name)


def operator_samples(names: set[str], count: int, every_dtype: bool) -> Iterator[tuple[str, str, Callable[..., Any], Any, Any]]:
    """label, name, function, args, kwargs of the operator database."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if names and op.name not in names and name not in names:
            continue
        supported = sorted(op.supported_dtypes("cpu"), key=str)
        dtypes = [torch.float32] if torch.float32 in supported else supported[:1]
        if every_dtype:
            dtypes += [dtype for dtype in supported if dtype not in dtypes]
        for number, dtype in enumerate(dtypes):
            grad = op.supports_autograd and dtype.is_floating_point and number == 0
            try:
                samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
                for index, sample in enumerate(samples):
                    if index >= (count if number == 0 else 1):
                        break
                    yield f"{name}[{dtype}] {index}", name, op.op, (sample.input, *sample.args), sample.kwargs
            except Exception as error:  # some of the database's own generators want what this machine lacks
                print(f"  no samples of {name}[{dtype}]: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)


def module_samples(names: set[str]) -> Iterator[tuple[str, str, Callable[..., Any], Any, Any]]:
    """The same of the module database, for train and eval mode; the module is an argument, so that it is copied."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if names and info.name not in names and info.formatted_name not in names:
            continue
        for training in (True, False):
            samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
            for index, sample in enumerate(samples):
                torch.manual_seed(0)
                module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
                module.train(training)
                given = sample.forward_input
                if given is None:
                    continue
                label = f"{info.name} {'train' if training else 'eval'} {index}"
                yield label, info.name, _call, (module, *given.args), given.kwargs


def _call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ops", default=None, help="names, comma-separated; `all` for every one")
    parser.add_argument("--modules", default=None)
    parser.add_argument("--samples", type=int, default=1_000_000, help="of each operator at its first dtype")
    parser.add_argument("--every-dtype", action="store_true", help="one sample at each further dtype")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    both = options.ops is None and options.modules is None
    bad = 0
    for what, wanted in (("modules", options.modules), ("ops", options.ops)):
        if wanted is None and not both:
            continue
        names = set() if wanted in (None, "all") else set(wanted.split(","))
        tally, start = Tally(), time.perf_counter()
        source = module_samples(names) if what == "modules" else operator_samples(names, options.samples, options.every_dtype)
        for label, name, fn, args, kwargs in source:
            try:
                check(tally, label, name, fn, args, kwargs)
            except Exception as error:
                tally.wrong.append(f"{label}: the check itself: {type(error).__name__}: {str(error)[:200]}")
        print(f"{tally.text(what)}\n  {time.perf_counter() - start:.0f} s", flush=True)
        whole = tally.clean - {name for names_ in tally.breaks.values() for name in names_} - {text.split("[")[0].split(" ")[0] for text in tally.wrong}
        print(f"  {len(whole)} of {len(tally.seen)} entries with every sample captured without a break")
        bad += len(tally.wrong)
        if options.json:
            with open(f"{options.json}.{what}", "w") as file:
                json.dump({"wrong": tally.wrong, "breaks": tally.breaks, "samples": tally.samples, "captured": tally.captured}, file, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
