"""A built kernel as a callable: `launcher(*buffers, *sizes)` on the current stream of the device that the buffers are on.

In: the function of the generated module and its `KernelSource`. Triton dispatches on the types of the arguments at each call; a
kernel whose grid is known is launched past that, through its compiled form, wherever all pointers are as aligned as it was
compiled for. Invariant: a compiled form is loaded while its device is current, and while no other thread loads one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fxloom_codegen_triton.compiler_options import options_here
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.errors import ToolchainError

#: Bytes. Pointers that Triton may take for so aligned vectorise; torch's own allocations are.
ALIGNMENT = 16

#: Triton up to 3.6 imports the C launcher of every signature under one module name: two threads that do it at once may each get
#: the other's, and a launch with arguments of another kernel's types reads and writes anywhere.
LOADING = threading.Lock()


class Launcher:
    """See the module's docstring."""

    def __init__(self, function: Any, source: KernelSource) -> None:
        details = source.details
        self.function = function
        self.name = source.name
        self.buffers: tuple[str, ...] = details["buffers"]
        self.sizes: tuple[str, ...] = details["sizes"]
        self.outer_tile: int = details["outer_tile"]
        self.constants = (details["outer_tile"], details["inner_tile"]) if details["inner_tile"] else (details["outer_tile"],)
        self.keywords: dict[str, Any] = {"num_warps": details["num_warps"]}
        self._outer_count: str = details["outer_count"]
        self._static_grid = None if self.sizes else self.grid({})
        self._compiled: Any = None
        #: launches of the compiled form, by index of the device that it was loaded on
        self._runs: dict[int, Callable[..., None]] = {}

    def grid(self, sizes: dict[str, int]) -> tuple[int, int, int]:
        """Programs to launch."""
        return (max(-(-_evaluate(self._outer_count, sizes) // self.outer_tile), 1), 1, 1)

    def compile(self) -> None:
        """Compile for aligned pointers. ToolchainError when Triton refuses."""
        import torch

        # Sizes as Triton types them: an int that fits 32 bits. 17 has none of the properties that Triton specialises on.
        arguments = [getattr(torch, dtype) for dtype in self.buffers] + [17] * len(self.sizes)
        self.keywords.update(options_here())
        try:
            self._compiled = self.function.warmup(*arguments, *self.constants, grid=(1,), **self.keywords)
        except Exception as error:
            raise refusal(self.name, error) from error

    def __call__(self, *args: Any) -> None:
        index = args[0].get_device()
        run_on(index, self._launch, index, args)

    def _launch(self, index: int, args: tuple[Any, ...]) -> None:
        """Launch; the device `index` is the current one."""
        if self._static_grid is not None and self._compiled is not None:
            if all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in args):
                run = self._runs.get(index)
                if run is None:
                    with LOADING:
                        run = self._runs[index] = self._compiled[self._static_grid]
                run(*args, *self.constants)
                return
        grid = self._static_grid or self.grid(dict(zip(self.sizes, args[len(self.buffers) :], strict=True)))
        with LOADING:  # it may be the first of its kind
            self.function[grid](*args, *self.constants, **self.keywords)


def refusal(name: str, error: Exception) -> ToolchainError:
    """What is raised where Triton refuses a kernel."""
    return ToolchainError(
        f"Triton can't compile kernel {name}: {type(error).__name__}: {error}\n"
        "Run eager instead: backend='aot_eager', or FXLOOM_DISABLE=1."
    )


def run_on(index: int, run: Callable[..., None], *args: Any) -> None:
    """Call `run(*args)` while the device `index` is the current one; -1 is the CPU of Triton's interpreter."""
    import torch

    if index < 0 or torch.cuda.device_count() == 1 or torch.cuda.current_device() == index:
        run(*args)
        return
    with torch.cuda.device(index):
        run(*args)


def _evaluate(expression: str, sizes: dict[str, int]) -> int:
    """A size expression of our own printing, on ints."""
    return int(eval(expression, {"__builtins__": {}, "min": min, "max": max}, dict(sizes)))
