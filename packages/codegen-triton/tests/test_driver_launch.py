"""Launches past Triton's launcher, with a driver that writes down what it is given."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fxloom_codegen_triton import driver_launch as module
from fxloom_codegen_triton.driver_launch import driver_launch

PTX = """
.visible .entry kernel(
\t.param .u64 .ptr .global .align 16 kernel_param_0,
\t.param .u32 kernel_param_1,
\t.param .u64 .ptr .global .align 1 kernel_param_2
)
"""


def compiled(ptx: str = PTX, **metadata: Any) -> Any:
    options = {"num_warps": 4, "shared": 512, "num_ctas": 1, "global_scratch_size": 0, **metadata}
    return SimpleNamespace(asm={"ptx": ptx}, metadata=SimpleNamespace(**options), function=77, run=None)


class Driver:
    """In place of libcuda."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.calls: list[tuple[Any, ...]] = []
        self.meeting: threading.Barrier | None = None

    def cuLaunchKernel(self, function: int, *rest: Any) -> int:  # noqa: N802  # the driver's name
        if self.meeting is not None:
            self.meeting.wait(timeout=30)
        *grid_and_more, stream, addresses, _ = rest
        words = [ctypes.c_int64.from_address(address).value for address in addresses]
        self.calls.append((function, tuple(grid_and_more), stream, words))
        return self.error

    def cuGetErrorString(self, error: int, text: Any) -> None:  # noqa: N802
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"an illegal address"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(module, "_driver", lambda: made)
    return made


def test_words_stand_where_parameters_are_read(driver: Driver) -> None:
    run = driver_launch("kernel", compiled(), 2)
    assert run is not None
    run(9, 5, [1 << 40, -3])
    assert driver.calls == [(77, (9, 1, 1, 128, 1, 1, 512), 5, [1 << 40, -3, 0])]


def test_an_error_names_the_kernel(driver: Driver) -> None:
    driver.error = 700
    run = driver_launch("kernel", compiled(), 2)
    assert run is not None
    with pytest.raises(RuntimeError, match=r"kernel kernel \(9 programs\): an illegal address \(700\)"):
        run(9, 5, [0, 0])


@pytest.mark.parametrize(
    "kernel",
    [compiled(global_scratch_size=64), compiled(num_ctas=2), compiled(launch_cooperative_grid=True), compiled(PTX.split("kernel_param_0")[0] + ")")],
    ids=["scratch memory", "clusters", "cooperative", "a constant parameter"],
)
def test_others_are_left_to_triton(driver: Driver, kernel: Any) -> None:
    assert driver_launch("kernel", kernel, 2) is None


def test_threads_do_not_take_one_anothers_words(driver: Driver) -> None:
    run = driver_launch("kernel", compiled(), 2)
    assert run is not None
    driver.meeting = threading.Barrier(2)  # both have filled in their words before the first is read
    threads = [threading.Thread(target=run, args=(1, number, [number, number])) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(words for _, _, _, words in driver.calls) == [[1, 1, 0], [2, 2, 0]]
