"""Several threads compile and run one function at once; a forked child goes on with what its parent compiled."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

from fxloom_dynamo import graph_break, optimize
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig

pytestmark = pytest.mark.cpu_only("a default device is a thread's own; CUDA does not work in forked children")

def program(x: torch.Tensor, n: int, log: list[int]) -> torch.Tensor:
    for i in range(n):
        x = x * 2 + i
        graph_break()
        log.append(i)
    return x.sin() if n % 2 else x.cos()


def _expected(x: torch.Tensor, n: int) -> torch.Tensor:
    return program(x, n, [])


def test_threads_compile_one_function_at_once() -> None:
    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append, recompile_limit=64))
    wrong: list[Any] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(12):
            x, n, log = torch.full((3,), float(seed)), (seed + turn) % 4, []
            result = compiled(x, n, log)
            if not torch.equal(result, _expected(x, n)) or log != list(range(n)):
                wrong.append((seed, turn, result, log))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    made = len(frames)
    compiled(torch.ones(3), 3, [])
    assert len(frames) == made  # all there is has been compiled, by whichever thread


def test_a_function_dropped_while_another_thread_runs_it() -> None:
    ready, go = threading.Event(), threading.Event()
    results: list[Any] = []

    def waits(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        ready.set()
        go.wait(20)
        return x * 2

    holder = [optimize()(waits)]
    thread = threading.Thread(target=lambda: results.append(holder[0](torch.ones(2))))
    thread.start()
    assert ready.wait(20)
    holder[0] = None  # type: ignore[call-overload]  # the thread's frame alone holds it
    go.set()
    thread.join()
    assert torch.equal(results[0], torch.full((2,), 4.0))


def test_exceptions_in_one_thread_leave_the_others_alone() -> None:
    def divides(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x + 1
        graph_break()
        return x * (6 // n)

    compiled = optimize(recompile_limit=64)(divides)
    outcomes: list[Any] = []

    def work(n: int) -> None:
        for _ in range(10):
            try:
                outcomes.append((n, float(compiled(torch.ones(1), n))))
            except ZeroDivisionError:
                outcomes.append((n, None))

    threads = [threading.Thread(target=work, args=(n,)) for n in (0, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(outcomes), key=str) == sorted({(0, None), (1, 12.0), (2, 6.0), (3, 4.0)}, key=str)
    assert len(outcomes) == 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("warm", [False, True])
def test_a_forked_child_runs_and_compiles(warm: bool) -> None:
    compiled = optimize(recompile_limit=64)(program)
    x = torch.arange(3.0)
    if warm:
        compiled(x, 2, [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads in the parent, which are torch's
        child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs fails
        try:
            fine = all(torch.equal(compiled(x, n, []), _expected(x, n)) for n in (2, 3))
        except BaseException:
            fine = False
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(compiled(x, 3, []), _expected(x, 3))
