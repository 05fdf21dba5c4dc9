"""Every rule against eager, on the samples of torch's operator database.

A sample runs in eager under a mode that looks at each operator as it is called: where there is a rule for it, the rule runs
on the same arguments and its results are compared with eager's, both judged by float64. Backward operators come by
differentiating the samples.
"""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import fxloom_decomp
from fxloom_decomp import grids, indexing, resampling, shape
from fxloom_decomp.registry import Decomposition

#: random results are compared by distribution in test_random.py
RANDOM = {op for op in fxloom_decomp.registered() if torch.Tag.nondeterministic_seeded in op.tags}
#: eager's own result for these is undefined memory or not meant to be read
UNREAD = {
    torch.ops.aten.log_sigmoid_forward.default: (1,),
    torch.ops.aten.native_batch_norm.default: (1, 2),
    torch.ops.aten._native_batch_norm_legit_no_training.default: (1, 2),
    torch.ops.aten._native_batch_norm_legit_functional.default: (),
}
#: eager's float64 kernel multiplies by a sixth that was rounded to float32; ours is the more accurate
LESS_ACCURATE_IN_EAGER = {(torch.ops.aten.hardsigmoid_backward.default, torch.float64)}
#: in the ordinary run; the slow one takes MANY
SAMPLES_PER_OP = {torch.float32: 5, torch.int64: 3, torch.float64: 1, torch.bfloat16: 2}
MANY = 8
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


@pytest.fixture(autouse=True)
def whatever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that leave the CPU to the library are tested there all the same."""
    for family in (grids, indexing, resampling, shape):
        monkeypatch.setattr(family, "_library_is_faster", lambda x: False)


class Compare(TorchDispatchMode):
    """Runs the rule beside each operator that has one.

    failures: where a rule differs from eager. faults: what the comparison itself raised; nothing of that reaches the program.
    """

    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self) -> None:
        super().__init__()
        self.checked: Counter[Any] = Counter()
        self.refused: Counter[str] = Counter()
        self.failures: list[str] = []
        self.faults: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = fxloom_decomp.registered().get(func)
        if entry is None or func in RANDOM:
            return func(*args, **kwargs)
        # before eager, which might write to its arguments after all
        mine = self.run_rule(entry, args, kwargs)
        eager = func(*args, **kwargs)
        if mine is not NotImplemented:
            self.checked[func] += 1
            try:
                self.compare(func, args, kwargs, mine, eager)
            except Exception:
                self.faults.append(f"{func}{describe(args)} {kwargs}: {traceback.format_exc()}")
        return eager

    def compare(self, func: Any, args: Any, kwargs: Any, mine: Any, eager: Any) -> None:
        wide = self.in_float64(func, args, kwargs)
        inputs = [a.double().abs().max().item() for a in flat(args) if isinstance(a, torch.Tensor) and a.numel()]
        # a derivative is a difference of terms as large as its inputs
        scale = max(inputs, default=0.0) if "backward" in func.name() else 0.0
        for message in differences(func, mine, eager, wide, scale):
            self.failures.append(f"{func}{describe(args)} {kwargs}: {message}")

    def run_rule(self, entry: Decomposition, args: Any, kwargs: Any) -> Any:
        try:
            with torch.no_grad():
                return entry.call(*args, **kwargs)
        except Exception as error:
            try:
                entry.op(*args, **kwargs)
            except Exception:
                return NotImplemented  # eager raises too
            self.failures.append(f"{entry.op}{describe(args)} {kwargs}: rule raised {type(error).__name__}: {error}")
            return NotImplemented

    def in_float64(self, func: Any, args: Any, kwargs: Any) -> Any:
        def widen(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value.double()
            if isinstance(value, (list, tuple)):
                return type(value)(widen(item) for item in value)
            return torch.float64 if value in (torch.float32, torch.bfloat16) and isinstance(value, torch.dtype) else value

        try:
            return func(*widen(args), **{name: widen(value) for name, value in kwargs.items()})
        except Exception:
            return None


def describe(args: Any) -> str:
    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype)[6:]}{list(value.shape)}{'' if value.is_contiguous() else value.stride()}"
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, (list, tuple)) else repr(value)

    return "(" + ", ".join(map(text, args)) + ")"


def differences(func: Any, mine: Any, eager: Any, wide: Any, scale: float) -> list[str]:
    mine_flat, eager_flat = flat(mine), flat(eager)
    if len(mine_flat) != len(eager_flat):
        return [f"{len(mine_flat)} results, eager has {len(eager_flat)}"]
    wide_flat = flat(wide) if wide is not None else [None] * len(eager_flat)
    found = []
    for number, (a, b, exact) in enumerate(zip(mine_flat, eager_flat, wide_flat, strict=True)):
        if number in UNREAD.get(func, ()):
            continue
        if (a is None) != (b is None):
            found.append(f"result {number}: {type(a).__name__}, eager has {type(b).__name__}")
        elif a is not None and (a.shape != b.shape or a.dtype != b.dtype):
            found.append(f"result {number}: {a.dtype}{list(a.shape)}, eager has {b.dtype}{list(b.shape)}")
        elif a is not None and (func, a.dtype) not in LESS_ACCURATE_IN_EAGER and not close(a, b, exact, scale):
            found.append(f"result {number}: values differ by {(a.double() - b.double()).abs().max().item():.3g}")
    return found


def close(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, scale: float) -> bool:
    """At most twice eager's error against float64, elementwise maximum, with a floor of a few ulp."""
    if not mine.is_floating_point() or mine.numel() == 0:
        half = mine.dtype is torch.complex32  # which torch.equal does not know
        return torch.equal(mine.to(torch.complex64), eager.to(torch.complex64)) if half else torch.equal(mine, eager)
    truth = exact if exact is not None and exact.shape == mine.shape else eager
    truth = truth.double()
    a, b = mine.double(), eager.double()
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    same = (a == b) | a.isnan()
    scale = max(scale, truth[truth.isfinite()].abs().max().item() if truth.isfinite().any() else 1.0)
    floor = 8 * torch.finfo(mine.dtype).eps * max(scale, 1e-30)
    own = (b - truth).abs()[~same & truth.isfinite()]
    limit = 2 * (own.max().item() if own.numel() else 0.0) + floor
    error = (a - truth).abs()
    error = torch.minimum(error, (a - b).abs())
    return bool((same | (error <= limit)).all())


def flat(value: Any) -> list[Any]:
    return [item for part in value for item in flat(part)] if isinstance(value, (list, tuple)) else [value]


def run(op: Any, dtype: torch.dtype, backward: bool, count: int) -> Compare:
    mode = Compare()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), count))
    for number, sample in enumerate(samples):
        if number == 2 and not mode.checked:
            break  # an operator that reaches no rule in two samples reaches none
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                out = op(sample.input, *sample.args, **sample.kwargs)
                if backward:
                    outputs = [o for o in flat(out) if isinstance(o, torch.Tensor) and o.requires_grad]
                    if outputs:
                        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])
            except Exception as error:  # eager's: the mode keeps what its own work raises
                mode.refused[f"{op.name}: {type(error).__name__}"] += 1
    return mode


#: what eager itself refuses of the samples
REFUSED = {"to_sparse: NotImplementedError"}
#: beginnings of names: their tensors are no plain ones, or they are made of other operators of the database
SKIPPED = ("sparse.", "masked.", "_refs.", "jiterator")
#: filled by the first run: what reaches no rule in float32 reaches none in other types
REACHED: set[str] = set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rules_agree_with_eager(dtype: torch.dtype) -> None:
    compare_samples(dtype, SAMPLES_PER_OP[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rules_agree_with_eager_on_many_samples(dtype: torch.dtype) -> None:
    compare_samples(dtype, MANY)


def compare_samples(dtype: torch.dtype, count: int) -> None:
    # in a thread of its own: each sample has torch walk the stack of whoever takes it, and pytest's is deep
    with ThreadPoolExecutor(1) as pool:
        pool.submit(compare_samples_here, dtype, count).result()


def compare_samples_here(dtype: torch.dtype, count: int) -> None:
    checked: Counter[Any] = Counter()
    failures: list[str] = []
    faults: list[str] = []
    refused: Counter[str] = Counter()
    reached: set[str] = set()
    for op in op_db:
        if op.name.startswith(SKIPPED) or dtype not in op.supported_dtypes("cpu"):
            continue
        differentiable = dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        if REACHED and op.name not in REACHED:
            continue
        mode = run(op, dtype, differentiable, count)
        if dtype is torch.float32 and mode.checked:
            reached.add(op.name)
        checked.update(mode.checked)
        refused.update(mode.refused)
        failures += mode.failures
        faults += mode.faults
    REACHED.update(reached)
    assert not faults, f"{len(faults)} faults of the comparison:\n" + "\n".join(faults[:5])
    assert refused.keys() <= REFUSED, refused
    assert not failures, f"{len(failures)} differences:\n" + "\n".join(failures[:40])
    assert len(checked) >= {torch.int64: 60, torch.bfloat16: 100}.get(dtype, 120), f"only {len(checked)} rules were reached"
