"""Calling a kernel from Python: by the extension `_launch` where it was built, else by ctypes (some ten times slower a call)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

try:
    from fxloom_codegen_cpp import _launch
except ImportError:  # installed without a compiler, or run from a source tree
    _launch = None  # type: ignore[assignment]  # the fall-back below


def is_native() -> bool:
    """True when launches go through the extension."""
    return _launch is not None


def make_launcher(library: ctypes.CDLL, name: str, count: int, *, grouped: bool = False) -> Callable[..., None]:
    """`kernel(*ints)` for the function `name` that takes `count` arguments, or `kernel(ints)` for a grouped one, which takes sets of
    as many. IndexError or RuntimeError when the kernel met a bad index, as the kernel says."""
    function = getattr(library, name)
    if _launch is not None:
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return _launch.Kernel(address, name, count, library, grouped)  # type: ignore[no-any-return]  # a C type
    return _grouped_by_ctypes(function, name, count) if grouped else _by_ctypes(function, name, count)


def _grouped_by_ctypes(function: Any, name: str, count: int) -> Callable[..., None]:
    function.restype = ctypes.c_int64

    def kernel(arguments: Sequence[int]) -> None:
        if len(arguments) % count:
            raise TypeError(f"{name} takes sets of {count} arguments, got {len(arguments)}")
        function((ctypes.c_int64 * (1 + len(arguments)))(len(arguments) // count, *arguments))

    return kernel


def _by_ctypes(function: Any, name: str, count: int) -> Callable[..., None]:
    array = ctypes.c_int64 * count
    function.argtypes = [array]
    function.restype = ctypes.c_int64

    def kernel(*arguments: int) -> None:
        if len(arguments) != count:
            raise TypeError(f"{name} takes {count} arguments, got {len(arguments)}")
        bad = function(array(*arguments))
        if bad:
            raise (IndexError if bad & 1 else RuntimeError)(f"index out of range in kernel {name}")

    return kernel
