"""Whether an operator raises, and what, only running it tells: a fake knows shapes, and may be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fxloom_dynamo import capture, optimize
from fxloom_interfaces.errors import Unsupported

LIBRARY = torch.library.Library("fxloom_raising", "DEF")
LIBRARY.define("pessimist(Tensor x) -> Tensor")
LIBRARY.impl("pessimist", lambda x: x.clone(), "CPU")


@torch.library.register_fake("fxloom_raising::pessimist")
def _(x: Tensor) -> Tensor:
    raise RuntimeError("a fake that is wrong")


def wrong(x: Tensor) -> Tensor:
    return torch.ops.fxloom_raising.pessimist(x)


def plain(x: Tensor) -> Tensor:
    return wrong(x + 1) * 2


def last(x: Tensor) -> Tensor:
    return wrong(x + 1)


def handled(x: Tensor) -> Tensor:
    try:
        y = wrong(x + 1)
    except RuntimeError:
        y = x - 1000
    return y * 2


def cleaned_up(x: Tensor) -> Any:
    done = []
    try:
        y = wrong(x + 1)
        done.append("body")
    finally:
        done.append("end")
    return y * 2, done


def in_a_context(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = wrong(x + 1)
    return y * 2


@pytest.mark.parametrize("program", [plain, last, handled, cleaned_up, in_a_context])
def test_a_fake_that_raises_where_the_operator_does_not(program: Any) -> None:
    x = torch.ones(2)
    want = program(x)
    found = capture(program, x)
    assert str(found.result) == str(want)
    assert "operator_raises" in {broke.key for broke in found.breaks}
    assert any(broke.site is not None and broke.site.file == __file__ for broke in found.breaks)
    with pytest.raises(Unsupported, match="a fake that is wrong"):
        optimize("eager", fullgraph=True)(program)(x)


def of_other_shapes(x: Tensor) -> Tensor:
    return (x + 1) @ torch.ones(3, 3)


def of_other_shapes_handled(x: Tensor) -> Any:
    try:
        return (x + 1) @ torch.ones(3, 3)
    except RuntimeError as error:
        return str(error), x * 2


def test_an_operator_that_raises_in_eager_too_is_no_break() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError) as eager:
        of_other_shapes(x)
    with pytest.raises(RuntimeError) as compiled:
        optimize("eager", fullgraph=True)(of_other_shapes)(x)
    assert str(compiled.value) == str(eager.value)
    text, doubled = optimize("eager")(of_other_shapes_handled)(x)
    assert (text, doubled.tolist()) == (str(eager.value), [[2.0, 2.0], [2.0, 2.0]])


def through_dlpack(x: Tensor) -> Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x + 1)) * 2


def test_c_functions_that_work_on_memory_are_never_run_on_fakes() -> None:
    """DLPack here; kernels of `torch.cuda.jiterator` are launched by such a function, on a GPU."""
    frames: list[Any] = []
    assert optimize("eager", on_capture=frames.append)(through_dlpack)(torch.zeros(2)).tolist() == [2.0, 2.0]
    assert any("may work on the memory of tensors" in str(frame.info.broke) for frame in frames)
