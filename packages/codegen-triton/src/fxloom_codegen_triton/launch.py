"""A built kernel as a callable: `launcher(*buffers, *sizes)` on the current stream of the device that the buffers are on.

In: the function of the generated module and its `KernelSource`. Where all pointers are as aligned and all sizes as small as the kernel
was compiled for, its compiled form is launched by the driver (`driver_launch`); Triton, which dispatches on the types of the arguments
at each call, does all others. Invariant: a compiled form is loaded while its device is current, and while no other thread loads one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_codegen_triton._torch_private import current_device, current_stream
from fxloom_codegen_triton.compiler_options import options_here
from fxloom_codegen_triton.driver_launch import DriverLaunch, driver_launch
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.errors import ToolchainError

#: Bytes. Pointers that Triton may take for so aligned vectorise; torch's own allocations are.
ALIGNMENT = 16

_INT32 = 1 << 31

#: what expressions of sizes are made of, beside sizes
_NAMES = {"__builtins__": {}, "min": min, "max": max}

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
        self._outer_count = compile(details["outer_count"], f"<{self.name}>", "eval")
        self._static_programs = None if self.sizes else self.programs(())
        self._compiled: Any = None
        #: the driver's launches, by index of the device that the compiled form was loaded on
        self._launches: dict[int, DriverLaunch | None] = {}

    def programs(self, sizes: Sequence[int]) -> int:
        """Programs to launch."""
        count = int(eval(self._outer_count, _NAMES, dict(zip(self.sizes, sizes, strict=True))))
        return max(-(-count // self.outer_tile), 1)

    def compile(self) -> None:
        """Compile for aligned pointers. ToolchainError when Triton refuses."""
        self.keywords.update(options_here())
        self._compiled = self._compile()

    def _compile(self) -> Any:
        # Sizes as Triton types them: an int that fits 32 bits. 17 has none of the properties that Triton specialises on.
        arguments = [getattr(torch, dtype) for dtype in self.buffers] + [17] * len(self.sizes)
        try:
            return self.function.warmup(*arguments, *self.constants, grid=(1,), **self.keywords)
        except Exception as error:
            raise refusal(self.name, error) from error

    def __call__(self, *args: Any) -> None:
        index = args[0].get_device()
        run_on(index, self._launch, index, args)

    def _launch(self, index: int, args: tuple[Any, ...]) -> None:
        """Launch; the device `index` is the current one."""
        sizes = args[len(self.buffers) :]
        programs = self._static_programs or self.programs(sizes)
        launch = self._launches.get(index) if index in self._launches else self._load(index)
        if launch is not None:
            addresses = [tensor.data_ptr() for tensor in args[: len(self.buffers)]]
            bits = 0
            for address in addresses:
                bits |= address
            if not bits % ALIGNMENT and all(-_INT32 <= size < _INT32 for size in sizes):
                launch(programs, current_stream(index), [*addresses, *sizes])
                return
        with LOADING:  # it may be the first of its kind
            self.function[(programs, 1, 1)](*args, *self.constants, **self.keywords)

    def _load(self, index: int) -> DriverLaunch | None:
        """The driver's launch on the device `index`; None where there is none, as in Triton's interpreter."""
        with LOADING:
            if index not in self._launches:
                words = len(self.buffers) + len(self.sizes)
                self._launches[index] = None if self._compiled is None or index < 0 else driver_launch(self.name, self._form(), words)
        return self._launches[index]

    def _form(self) -> Any:
        """The compiled form; for each further device one of its own, as a form is loaded once."""
        form = self._compiled
        return form if not self._launches else type(form)(form.src, form.metadata_group, form.hash)


def refusal(name: str, error: Exception) -> ToolchainError:
    """What is raised where Triton refuses a kernel."""
    return ToolchainError(
        f"Triton can't compile kernel {name}: {type(error).__name__}: {error}\n"
        "Run eager instead: backend='aot_eager', or FXLOOM_DISABLE=1."
    )


def run_on(index: int, run: Callable[..., None], *args: Any) -> None:
    """Call `run(*args)` while the device `index` is the current one; -1 is the CPU of Triton's interpreter."""
    if index < 0 or current_device() == index:
        run(*args)
        return
    with torch.cuda.device(index):
        run(*args)
