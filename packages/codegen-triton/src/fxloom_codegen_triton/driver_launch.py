"""Launches of compiled Triton kernels by the CUDA driver, past Triton's launcher: what is known before the call is done before it.

In: a kernel that Triton compiled, loaded on the current device. Out: a callable of a grid, a stream and 64-bit words (addresses, sizes),
one for each parameter that isn't constant. None where only Triton's launcher will do: kernels that want scratch memory, clusters or
cooperative grids, another driver than CUDA's.

Triton's launcher asks the driver about each pointer, and makes a dictionary and a tuple on the way: some microseconds of a call that
takes the driver two. The words of a launch lie in memory of the thread's own, as another one may run between filling it and the call.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: (programs, stream, words)
DriverLaunch = Callable[[int, int, Sequence[int]], None]

_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)


@functools.cache
def _driver() -> Any:
    """The driver's library; None where there is no CUDA."""
    try:
        library = ctypes.PyDLL("libcuda.so.1")
    except OSError:
        return None
    numbers, pointer = ctypes.c_uint, ctypes.c_void_p
    library.cuLaunchKernel.argtypes = [pointer, *[numbers] * 7, pointer, pointer, pointer]
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def driver_launch(name: str, compiled: Any, words: int) -> DriverLaunch | None:
    """See the module's docstring. words: parameters of the kernel."""
    driver = _driver()
    if driver is None or torch.version.hip is not None or not _is_plain(compiled.metadata):
        return None
    found = _ENTRY.search(compiled.asm["ptx"])
    parameters = found.group(1).count(".param") if found else 0
    if parameters < words:
        return None  # Triton found one of them constant
    compiled.run  # noqa: B018  # loads it
    function, shared, threads = compiled.function, compiled.metadata.shared, 32 * compiled.metadata.num_warps
    slots = _Slots(parameters)
    fill = struct.Struct(f"{words}q").pack_into
    launch = driver.cuLaunchKernel

    def run(programs: int, stream: int, values: Sequence[int]) -> None:
        fill(slots.memory, 0, *values)
        error = launch(function, programs, 1, 1, threads, 1, 1, shared, stream, slots.addresses, None)
        if error:
            raise RuntimeError(f"CUDA can't launch kernel {name} ({programs} programs): {_message(driver, error)}")

    return run


class _Slots(threading.local):
    """A word of memory for each parameter, and the words' addresses. Made for each thread that launches the kernel.

    Behind the kernel's own parameters are addresses of scratch memory, which it does not use.
    """

    def __init__(self, parameters: int) -> None:
        self.memory = ctypes.create_string_buffer(8 * parameters)
        start = ctypes.addressof(self.memory)
        self.addresses = (ctypes.c_void_p * parameters)(*range(start, start + 8 * parameters, 8))


def _is_plain(metadata: Any) -> bool:
    """Whether a launch needs nothing but the grid, the threads and the shared memory."""
    scratch = getattr(metadata, "global_scratch_size", 0) or getattr(metadata, "profile_scratch_size", 0)
    special = getattr(metadata, "launch_cooperative_grid", False) or getattr(metadata, "launch_pdl", False)
    return not scratch and not special and getattr(metadata, "num_ctas", 1) == 1


def _message(driver: Any, error: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(error, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} ({error})"
