"""Finding the compiler, asking what it is, and running it. Every failure is a ToolchainError with command, output and way out.

In: the environment's choice of a compiler, flags, source files. Out: a description of the compiler for cache keys, and shared objects.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fxloom_interfaces.errors import ToolchainError

_WAY_OUT = (
    'To run without compiling kernels: FXLOOM_DISABLE=1, or fxloom.compile(..., backend="aot_eager"). '
    "To use another compiler: CXX=/path/to/g++."
)

#: -ffp-contract=off: eager's kernels round every operation. No -ffast-math: results don't depend on how loops are split.
#: -fwrapv: integers wrap, as eager's do; a compiler may otherwise take what follows from an overflow for impossible.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=default",
    "-w",
)

#: The choice of pointers and counters for a loop takes GCC more than linear time in the loads and stores: seconds for a hundred, where
#: there aren't so many registers anyway. Loops with more than so many are left as they are.
_GCC_FLAGS = ("--param=iv-max-considered-uses=64",)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler. identity: what it says it is, and its arguments; isa: what the code is made for. Both are in the cache key."""

    command: tuple[str, ...]
    identity: str
    flags: tuple[str, ...]
    isa: str
    link_flags: tuple[str, ...]

    def compile(self, source: Path, target: Path, libraries: tuple[str, ...] = ()) -> None:
        """A shared object from one translation unit. libraries: flags for the linker, of what the process has loaded."""
        object_file = target.with_suffix(".o")
        _run([*self.command, *self.flags, "-c", str(source), "-o", str(object_file)])
        try:
            # Linked without -fopenmp: the kernels then use the OpenMP runtime that torch brought, and its threads.
            _run([*self.command, "-shared", "-nostdlib", str(object_file), "-o", str(target), *libraries, *self.link_flags, "-lgcc"])
        finally:
            object_file.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """The compiler that CXX names (`g++`, `ccache g++`, `g++ -O2`, as make reads it), else g++, else clang++."""
    wished = os.environ.get("CXX", "").strip()
    named = [wished] if shutil.which(wished) else shlex.split(wished)  # a path with spaces is one word
    for name, *arguments in [named] if named else [["g++"], ["clang++"]]:
        program = shutil.which(name)
        if program is not None:
            return _describe((program, *arguments))
    sought = f"CXX={wished}" if wished else "g++ or clang++"
    raise ToolchainError(f"no C++ compiler: {sought} not found on PATH={os.environ.get('PATH', '')}\n{_WAY_OUT}")


def _describe(command: tuple[str, ...]) -> Toolchain:
    identity = " ".join([_run([*command, "--version"]).splitlines()[0], *command[1:]])
    wished = next((a for a in command[1:] if a.startswith(("-march=", "-mcpu="))), None)
    isa = wished or cpu_isa()  # CXX="g++ -march=haswell" makes kernels for another processor than this
    flags = [*_FLAGS] if wished else [*_FLAGS, "-march=native"]
    if "clang" in identity:
        flags = [f if f != "-fopenmp" else "-fopenmp=libgomp" for f in flags]
    else:
        flags += [*(["-mprefer-vector-width=512"] if "avx512f" in isa else []), *_GCC_FLAGS]
    link: list[str] = []
    if not _openmp_in_process():
        link.append("-lgomp")
    return Toolchain(command, identity, tuple(flags), isa, tuple(link))


def _openmp_in_process() -> bool:
    """True when an OpenMP runtime (torch's) is visible to libraries loaded later."""
    return hasattr(ctypes.CDLL(None), "GOMP_parallel")


@lru_cache(maxsize=1)
def cpu_isa() -> str:
    """The instruction sets that matter here, as the system reports them."""
    wanted = (
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512dq",
        "avx512_bf16",
        "avx512_fp16",
        "asimd",
        "sve",
    )
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        import platform

        return platform.machine()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            present = set(value.split())
            return " ".join(w for w in wanted if w in present) or "baseline"
    return "baseline"


def _run(command: list[str]) -> str:
    printed = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise ToolchainError(f"the compiler can't be started: {printed}\n{error}\n{_WAY_OUT}") from error
    if done.returncode != 0:
        raise ToolchainError(f"the compiler failed ({done.returncode}): {printed}\n{done.stdout}{done.stderr}\n{_WAY_OUT}")
    return done.stdout
