"""What fakes say against what eager gives, over the samples of torch's operator database, forward and backward."""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from fxloom_shapes import FakeMode, FakeTensor
from fxloom_shapes.errors import DataDependent, NoFakeKernel, UnsupportedTensor
from fxloom_shapes.rules.registry import RULES

#: samples of each operator in the ordinary run; the slow one takes MANY
SAMPLES = {torch.float32: 8, torch.bfloat16: 4, torch.int64: 4, torch.bool: 4}
MANY = 40
SKIPPED = ("sparse.", "masked.", "_refs.", "jiterator")
#: operators whose answer is undefined or that Meta kernels get wrong in torch itself
KNOWN = {
    torch.ops.aten._local_scalar_dense.default: "reads a number",
    torch.ops.aten._segment_reduce_backward.default: "torch's Meta kernel gives other strides",
}


#: operators whose samples are not tried with a transposed input; eager's kernel of the last one aborts the process then
NOT_TRANSPOSED = ("norm", "conv", "max_pool2d_with_indices_backward")
#: what eager itself refuses of the samples: (which call, operator, exception)
REFUSED = {("backward", "to_sparse", "NotImplementedError")}
#: what eager raises for arguments that a sample was not made for, here the transposed first one
REFUSALS = ("RuntimeError", "ValueError", "IndexError", "AssertionError")


class Compare(TorchDispatchMode):
    """Beside each operator runs the same on fakes made for it.

    failures: where fakes differ from eager. faults: what the comparison itself raised; nothing of that reaches the program.
    """

    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, only: frozenset[Any]) -> None:
        super().__init__()
        self.only = only
        self.checked: Counter[Any] = Counter()
        self.declined: Counter[str] = Counter()
        self.failures: list[str] = []
        self.faults: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in KNOWN or func not in self.only:
            return func(*args, **kwargs)
        try:
            call, outcome = self.on_fakes(func, args, kwargs)
        except Exception:
            self.faults.append(f"{func}: {traceback.format_exc()}")
            return func(*args, **kwargs)
        real = func(*args, **kwargs)  # what eager raises is for the program: the fakes may have raised, too
        try:
            self.compare(func, call, outcome, real)
        except Exception:
            self.faults.append(f"{call}: {traceback.format_exc()}")
        return real

    def on_fakes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str, Any]:
        """The call as text, and its result on fakes or what it raised."""
        call = f"{func}{describe(args)} {kwargs}"
        mode = FakeMode()
        try:
            fakes = convert(args, mode), {name: convert(value, mode) for name, value in kwargs.items()}
        except UnsupportedTensor as error:
            return call, error
        try:
            with mode:
                return call, func(*fakes[0], **fakes[1])
        except Exception as error:
            return call, error

    def compare(self, func: Any, call: str, mine: Any, real: Any) -> None:
        if isinstance(mine, (DataDependent, NoFakeKernel, UnsupportedTensor)):
            self.declined[type(mine).__name__] += 1
            return
        if isinstance(mine, Exception):
            self.failures.append(f"{call}: fake raised {type(mine).__name__}: {str(mine)[:200]}")
            return
        self.checked[func] += 1
        for number, (a, b) in enumerate(zip(flat(mine), flat(real), strict=True)):
            if isinstance(b, torch.Tensor) and (message := difference(a, b)):
                self.failures.append(f"{call}: result {number}: {message}")


def convert(value: Any, mode: FakeMode) -> Any:
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return mode.from_tensor(value.detach() if value.requires_grad else value)
    return type(value)(convert(item, mode) for item in value) if isinstance(value, (list, tuple)) else value


def difference(fake: Any, real: torch.Tensor) -> str:
    if not isinstance(fake, FakeTensor):
        return f"{type(fake).__name__}"
    if real.layout is not torch.strided:
        return ""
    a, b = (tuple(fake.shape), fake.dtype), (tuple(real.shape), real.dtype)
    if a != b:
        return f"{a}, eager has {b}"
    if real.numel() and any(s != t for s, t, n in zip(fake.stride(), real.stride(), real.shape) if n != 1):
        return f"stride {fake.stride()}, eager has {real.stride()} for {tuple(real.shape)}"
    return ""


def flat(value: Any) -> list[Any]:
    return [item for part in value for item in flat(part)] if isinstance(value, (list, tuple)) else [value]


def describe(args: Any) -> str:
    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype)[6:]}{list(value.shape)}" + ("" if value.is_contiguous() else f"s{value.stride()}")
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, (list, tuple)) else repr(value)

    return "(" + ", ".join(map(text, args)) + ")"


@pytest.mark.parametrize("dtype", SAMPLES, ids=str)
def test_rules_agree_with_eager(dtype: torch.dtype) -> None:
    compare_samples(dtype, SAMPLES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SAMPLES, ids=str)
def test_rules_agree_with_eager_on_many_samples(dtype: torch.dtype) -> None:
    compare_samples(dtype, MANY)


def test_what_the_comparison_itself_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    import fxloom_shapes.rules.load_all  # noqa: F401

    def broken(fake: Any, real: torch.Tensor) -> str:
        raise ZeroDivisionError

    monkeypatch.setitem(globals(), "difference", broken)
    with Compare(frozenset(RULES)) as mode:
        assert torch.ones(2).add(1).tolist() == [2, 2]  # the program sees nothing of it
    assert len(mode.faults) == 2 and "ZeroDivisionError" in mode.faults[0]


@dataclass
class Outcome:
    """Over all operators. refused: (which call, operator, exception) -> how often eager raised. called: by which call, how often."""

    checked: Counter[Any] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    called: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def compare_samples(dtype: torch.dtype, count: int) -> None:
    import fxloom_shapes.rules.load_all  # noqa: F401

    # in a thread of its own: each sample has torch walk the stack of whoever takes it, and pytest's is deep
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(run_samples, dtype, count).result()
    assert not outcome.faults, f"{len(outcome.faults)} faults of the comparison:\n" + "\n".join(outcome.faults[:5])
    assert not outcome.failures, f"{len(outcome.failures)} differences:\n" + "\n".join(dict.fromkeys(outcome.failures[:60]))
    unexpected = {
        one: times
        for one, times in outcome.refused.items()
        if one not in REFUSED and not (one[0] == "transposed" and one[2] in REFUSALS)
    }
    assert not unexpected
    assert outcome.refused.total() < outcome.called["transposed"] / 3 + len(REFUSED) * count
    assert outcome.declined.total() < outcome.checked.total() / 20
    assert len(outcome.checked) > {torch.float32: 190, torch.bfloat16: 140, torch.int64: 110, torch.bool: 90}[dtype]


def run_samples(dtype: torch.dtype, count: int) -> Outcome:
    only = frozenset(RULES)
    outcome = Outcome()
    for op in op_db:
        if op.name.startswith(SKIPPED) or dtype not in op.supported_dtypes("cpu"):
            continue
        backward = dtype is torch.float32 and op.supports_autograd
        mode = Compare(only)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), count)):
                if number == 1 and not mode.checked:
                    break
                for which, call in calls_of(op, sample, backward):
                    outcome.called[which] += 1
                    try:
                        with mode:
                            call()
                    except Exception as error:  # eager's: the mode keeps what its own work raises
                        outcome.refused[which, op.name, type(error).__name__] += 1
                        break
        outcome.checked.update(mode.checked)
        outcome.declined.update(mode.declined)
        outcome.failures += mode.failures
        outcome.faults += mode.faults
    return outcome


def calls_of(op: Any, sample: Any, backward: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The operator on a sample, its derivative, and the operator on the transposed input, each with its name."""
    results: list[Any] = []
    yield "forward", lambda: results.append(op(sample.input, *sample.args, **sample.kwargs))
    outputs = [made for made in flat(results) if isinstance(made, torch.Tensor) and made.requires_grad]
    if outputs:
        yield "backward", lambda: torch.autograd.backward(outputs, [torch.ones_like(made) for made in outputs])
    if isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1 and not backward:
        if not any(part in op.name for part in NOT_TRANSPOSED):
            yield "transposed", lambda: op(sample.input.transpose(0, -1), *sample.args, **sample.kwargs)
