"""Metadata of fakes against the real run's on the CPU: torch's operator database, float32, all samples.

    python benchmarks/fake_metadata.py
    python benchmarks/fake_metadata.py --ops add,svd --verbose

Compared for every tensor that an operator returns: shape, strides (where they matter), dtype, device, layout, storage offset,
conjugate and negative bits, which input's memory it is on, which other result's, whether it is an input itself; numbers by
their type. An operator counts as right when all its samples are. Operators whose metadata depends on values count apart:
none of their samples may be wrong, some may have no answer.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fxloom_interfaces.errors import GraphBreak
from fxloom_shapes import FakeMode, FakeTensor
from fxloom_shapes.errors import DataDependent
from fxloom_shapes.symbols.numbers import SYMBOLIC


@dataclass
class Tally:
    """Names of operators by outcome; reasons by operator for those that are not right."""

    right: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    data_dependent: dict[str, str] = field(default_factory=dict)
    samples: int = 0

    def share(self) -> float:
        """Right ones among all that are not data-dependent."""
        return len(self.right) / max(1, len(self.right) + len(self.wrong) + len(self.unanswered))

    def text(self) -> str:
        total = len(self.right) + len(self.wrong) + len(self.unanswered)
        lines = [
            f"{len(self.right)} of {total} operators right ({100 * self.share():.2f} %), {self.samples} samples; "
            f"{len(self.data_dependent)} more depend on values"
        ]
        for what, found in (("wrong", self.wrong), ("no answer", self.unanswered), ("depends on values", self.data_dependent)):
            reasons: dict[str, list[str]] = collections.defaultdict(list)
            for name, reason in found.items():
                reasons[reason].append(name)
            lines += [f"  {what}: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(lines)


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a nest of sequences and mappings, in order."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def convert(value: Any, mode: FakeMode) -> Any:
    """The same nest with fakes for its tensors."""
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert(item, mode) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(convert(item, mode) for item in value)
    if isinstance(value, dict):
        return {key: convert(item, mode) for key, item in value.items()}
    return value


def memory(tensor: torch.Tensor) -> Any:
    """Equal for tensors on the same memory."""
    if isinstance(tensor, FakeTensor):
        return tensor.storage_token
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def facts(result: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """What is compared of an operator's result."""
    found: list[Any] = []
    outputs = [item for item in leaves(result) if isinstance(item, torch.Tensor)]
    for item in leaves(result):
        if not isinstance(item, torch.Tensor):
            found.append(type(item).__name__)
            continue
        strided = item.layout is torch.strided
        stride = tuple(s if n > 1 else None for s, n in zip(item.stride(), item.shape, strict=True)) if strided else ()
        found.append(
            {
                "shape": tuple(item.shape),
                "stride": None if 0 in item.shape else stride,
                "dtype": item.dtype,
                "device": item.device,
                "layout": item.layout,
                "offset": item.storage_offset() if strided else 0,
                "conj": item.is_conj(),
                "neg": item.is_neg(),
                "memory of input": next((n for n, given in enumerate(inputs) if memory(given) == memory(item)), None),
                "memory of result": next(n for n, other in enumerate(outputs) if memory(other) == memory(item)),
                "input itself": next((n for n, given in enumerate(inputs) if given is item), None),
            }
        )
    return found


def difference(fake: list[Any], real: list[Any]) -> str:
    """What is not the same; empty when all is."""
    if len(fake) != len(real):
        return f"{len(fake)} results, eager has {len(real)}"
    for number, (one, other) in enumerate(zip(fake, real, strict=True)):
        if isinstance(one, dict) and isinstance(other, dict):
            for key, value in one.items():
                if value != other[key]:
                    return f"result {number}: {key} {value}, eager has {other[key]} (shape {other['shape']})"
        elif one != other:
            return f"result {number}: {one}, eager has {other}"
    return ""


def check_sample(op: Any, sample: Any) -> str:
    """What is not as in eager. Raises GraphBreak where fakes have no answer."""
    given = (sample.input, sample.args, sample.kwargs)
    mode = FakeMode()
    fakes = convert(given, mode)
    mine: Any = None
    failed: Exception | None = None
    with torch.no_grad():
        try:
            with mode:
                mine = op(fakes[0], *fakes[1], **fakes[2])
        except GraphBreak:
            raise
        except Exception as error:  # what eager says decides
            failed = error
        before = facts(mine, [item for item in leaves(fakes) if isinstance(item, torch.Tensor)])
        try:
            real = op(given[0], *given[1], **given[2])
        except Exception as error:
            return "" if type(error) is type(failed) else f"eager raises {type(error).__name__}, fakes {failed!r:.200}"
    if failed is not None:
        return f"raises {type(failed).__name__}: {str(failed).splitlines()[0] if str(failed) else ''}"[:200]
    if any(type(item) in SYMBOLIC for item in leaves(mine)):
        return "a symbolic number without an environment"
    return difference(before, facts(real, [item for item in leaves(given) if isinstance(item, torch.Tensor)]))


def run(only: set[str] | None, limit: int | None, verbose: bool = False) -> Tally:
    """The tally over the database, or the operators named `only`; limit: samples of each."""
    from torch.testing._internal.common_methods_invocations import op_db

    tally = Tally()
    for op in op_db:
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if torch.float32 not in op.supported_dtypes("cpu") or (only is not None and name not in only and op.name not in only):
            continue
        torch.manual_seed(0)
        reason, kind = "", "right"
        for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), limit)):
            tally.samples += 1
            try:
                message, found = check_sample(op, sample), "wrong"
            except DataDependent as error:
                message, found = str(error.details or error).splitlines()[0], "data_dependent"
            except GraphBreak as error:
                message, found = str(error.details or error).splitlines()[0], "unanswered"
            if message and verbose:
                print(f"{name} sample {number}: {found}: {message}")
            if message and (kind == "right" or found == "wrong" != kind):
                reason, kind = message, found
        if kind == "right":
            tally.right.append(name)
        else:
            getattr(tally, kind)[name] = reason
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names, by commas; all without")
    parser.add_argument("--samples", type=int, default=None)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(run(set(options.ops.split(",")) if options.ops else None, options.samples, options.verbose).text())


if __name__ == "__main__":
    main()
