"""What fakes say against what eager gives, over the samples of torch's operator database, forward and backward."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from fxloom_shapes import FakeMode, FakeTensor
from fxloom_shapes.errors import DataDependent, NoFakeKernel, UnsupportedTensor
from fxloom_shapes.fake.rule_registry import RULES

#: samples of each operator in the ordinary run; the slow one takes MANY
SAMPLES = {torch.float32: 4, torch.bfloat16: 2, torch.int64: 1, torch.bool: 1}
MANY = 8
SKIPPED = (
    "sparse.",
    "masked.",
    "_refs.",
    "jiterator",
    "svd",
    "pca_lowrank",
    "nn.functional.ctc_loss",
    "linalg.",
    "fft.",
    "special.",
)
#: operators whose answer is undefined or that Meta kernels get wrong in torch itself
KNOWN = {
    torch.ops.aten._local_scalar_dense.default: "reads a number",
    torch.ops.aten._segment_reduce_backward.default: "torch's Meta kernel gives other strides",
}


class Compare(TorchDispatchMode):
    """Beside each operator runs the same on fakes made for it."""

    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, only: frozenset[Any]) -> None:
        super().__init__()
        self.only = only
        self.checked: Counter[Any] = Counter()
        self.failures: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in KNOWN or func not in self.only:
            return func(*args, **kwargs)
        mode = FakeMode()
        try:
            fakes = convert(args, mode), {name: convert(value, mode) for name, value in kwargs.items()}
            fake_before = describe(fakes[0])
            with mode:
                mine = func(*fakes[0], **fakes[1])
        except (DataDependent, NoFakeKernel, UnsupportedTensor):
            return func(*args, **kwargs)
        except Exception as error:
            real = func(*args, **kwargs)  # if eager raises as well, so it should
            self.failures.append(f"{func}{describe(args)} {kwargs}: fake raised {type(error).__name__}: {str(error)[:200]}")
            return real
        real = func(*args, **kwargs)
        self.checked[func] += 1
        for number, (a, b) in enumerate(zip(flat(mine), flat(real), strict=True)):
            if isinstance(b, torch.Tensor) and (message := difference(a, b)):
                self.failures.append(f"{func}{fake_before} {kwargs}: result {number}: {message}")
        return real


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


def compare_samples(dtype: torch.dtype, count: int) -> None:
    import fxloom_shapes.rules  # noqa: F401

    only = frozenset(RULES)
    checked: Counter[Any] = Counter()
    failures: list[str] = []
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
                try:
                    with mode:
                        out = op(sample.input, *sample.args, **sample.kwargs)
                        outputs = [o for o in flat(out) if isinstance(o, torch.Tensor) and o.requires_grad]
                        if outputs:
                            torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])
                        if (
                            isinstance(sample.input, torch.Tensor)
                            and sample.input.dim() > 1
                            and not backward
                            and not ("norm" in op.name or "conv" in op.name)
                        ):
                            op(sample.input.transpose(0, -1), *sample.args, **sample.kwargs)
                except Exception:
                    continue  # eager's own limits
        checked.update(mode.checked)
        failures += mode.failures
    assert not failures, f"{len(failures)} differences:\n" + "\n".join(dict.fromkeys(failures[:60]))
    assert len(checked) > {torch.float32: 190, torch.bfloat16: 140, torch.int64: 110, torch.bool: 90}[dtype]
