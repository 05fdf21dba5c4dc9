"""Compile generated kernels for a GPU that need not be here: what the interpreter lets through and the compiler refuses.

In: sources of kernels. Out: those that Triton refuses, with what it says, and those that ptxas is known to get wrong. They go through
Triton's front end, or the whole way to machine code, for the target `TARGET`; Triton's interpreter, in which kernels run on machines
without a GPU, checks no types.

It needs a process in which TRITON_INTERPRET is not set, so it can be run as a program on sources that another process has
pickled:

    python -m fxloom_codegen_triton.check kernels.pickle ... [--whole]
"""

from __future__ import annotations

import pickle
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxloom_codegen_triton.compiler_options import options_for
from fxloom_codegen_triton.launch import ALIGNMENT
from fxloom_codegen_triton.modules import interpreting, load_module
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.dtypes import dtype_info

#: See `KernelEmitter.divides_inner`.
_MISCOMPILED = re.compile(r"\badd\.[su]16x2\b")

#: compute capability and lanes of a warp: Hopper
TARGET = ("cuda", 90, 32)


def triton_ir(source: KernelSource) -> str:
    """What Triton's front end makes of a kernel, as text."""
    with tempfile.TemporaryDirectory() as folder:
        module, _ = load_module([source], FileStore(Path(folder)))
        return str(_compile(getattr(module, source.name), source, whole=False))


def refused(sources: Sequence[KernelSource], *, whole: bool = False) -> list[tuple[KernelSource, str]]:
    """The kernels that Triton refuses, with what it says. whole: compile to machine code, not just Triton's own IR."""
    if interpreting():
        raise RuntimeError("fxloom_codegen_triton.check: Triton was told to interpret (TRITON_INTERPRET=1); compile in another process")
    found: list[tuple[KernelSource, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder))
        for source in sources:
            module, _ = load_module([source], store)
            try:
                _compile(getattr(module, source.name), source, whole)
            except Exception as error:  # whatever the compiler raises is its refusal
                found.append((source, f"{type(error).__name__}: {error}"))
    return found


def _compile(function: Any, source: KernelSource, whole: bool) -> Any:
    """Triton's IR, or the compiled kernel (whole)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    details = source.details
    names = function.arg_names
    constants = {"OUTER_TILE": details["outer_tile"], **({"INNER_TILE": details["inner_tile"]} if details["inner_tile"] else {})}
    if "grouped" in details:  # a table and its number of rows
        constants["ALIGNMENT"] = ALIGNMENT
        types = ["*i64", "i32"]
    else:
        types = [f"*{_pointee(dtype)}" for dtype in details["buffers"]] + ["i32"] * len(details["sizes"])
    types += ["constexpr"] * len(constants)
    aligned = {(place,): [["tt.divisibility", ALIGNMENT]] for place, kind in enumerate(types) if kind.startswith("*")}  # as at launches
    ast = ASTSource(function, signature=dict(zip(names, types, strict=True)), constexprs=constants, attrs=aligned)
    target = GPUTarget(*TARGET)
    backend = make_backend(target)
    chosen = {"num_warps": details["num_warps"], "debug": bool(function.debug), **options_for(backend)}
    if whole:
        compiled = triton.compile(ast, target=target, options=chosen)
        if miscompiled := _MISCOMPILED.search(compiled.asm["ptx"]):
            raise AssertionError(f"{miscompiled.group()}: ptxas of CUDA 12.8 may take its constant for 0")
        return compiled
    from triton._C.libtriton import ir

    options = backend.parse_options({**chosen, **ast.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return ast.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def _pointee(dtype: str) -> str:
    """Triton's name of an element's type."""
    info = dtype_info(dtype)
    bits = 8 * info.nbytes
    match info.kind:
        case "bool":
            return "i1"
        case "int":
            return f"i{bits}"
        case "uint":
            return f"u{bits}"
    return "bf16" if dtype == "bfloat16" else f"fp{bits}"


def main(arguments: list[str]) -> int:
    whole = "--whole" in arguments
    count = bad = 0
    for path in arguments:
        if path == "--whole":
            continue
        sources = [source for source in pickle.loads(Path(path).read_bytes()) if "configs" not in source.details]
        found = refused(sources, whole=whole)
        for source, text in found:
            print(f"{path}: {source.name}: {text}\n{source.text}\n")  # noqa: T201
        count, bad = count + len(sources), bad + len(found)
    print(f"{count} kernels, {bad} refused")  # noqa: T201
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
