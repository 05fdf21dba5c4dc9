"""Kernels of one graph: one translation unit, one compiler run, one shared object in the artifact store, callables out of it.

The key declares everything that the object depends on: text, compiler, flags, instruction sets. Two processes that want the
same kernels meet at the key's lock, and one of them compiles.

In: the sources of a graph's kernels, the artifact store. Out: `BuiltKernels`.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fxloom_codegen_cpp.launch import make_launcher
from fxloom_codegen_cpp.toolchain import Toolchain, find_toolchain
from fxloom_codegen_cpp.vector_math import VectorLibrary, definitions, vector_library
from fxloom_interfaces.artifacts import artifact_key
from fxloom_interfaces.codegen import BuiltKernels, KernelSource

if TYPE_CHECKING:
    from fxloom_interfaces.artifacts import ArtifactStore


@lru_cache(maxsize=1)
def prelude() -> str:
    """The header that every translation unit begins with."""
    return (files("fxloom_codegen_cpp") / "prelude.h").read_text()


def translation_unit(sources: Sequence[KernelSource], isa: str, library: VectorLibrary | None = None) -> str:
    """The whole text that is compiled. library: has the functions that are called in vectors; None: the C library's are taken."""
    kernels = "\n".join(source.text for source in sources)
    return "\n".join([f"// made for: {isa}", prelude(), definitions(kernels, library), kernels])


def build_kernels(sources: Sequence[KernelSource], store: ArtifactStore) -> BuiltKernels:
    """Callables for all sources; compiles at most once."""
    toolchain = find_toolchain()
    library = vector_library()
    text = translation_unit(sources, toolchain.isa, library)
    key = artifact_key(
        "cpp_kernels",
        text=text,
        compiler=toolchain.identity,
        flags=" ".join((*toolchain.flags, *toolchain.link_flags)),
        isa=toolchain.isa,
    )
    path, runs = store.get(key), 0
    if path is None:
        with store.lock(key):
            path = store.get(key)
            if path is None:
                path = store.put(key, lambda target: _compile(toolchain, text, target, library), ".so")
                runs = 1
    return BuiltKernels(_load(path, sources), runs, cached=runs == 0, source=text)


def _compile(toolchain: Toolchain, text: str, target: Path, library: VectorLibrary | None) -> None:
    with tempfile.TemporaryDirectory(prefix="fxloom-") as folder:
        source = Path(folder) / "kernels.cpp"
        source.write_text(text)
        made = Path(folder) / "kernels.so"
        toolchain.compile(source, made, library.link_flags if library is not None and "FX_FUNCTION" in text else ())
        target.write_bytes(made.read_bytes())


def _load(path: Path, sources: Sequence[KernelSource]) -> dict[str, Callable[..., None]]:
    library = ctypes.CDLL(str(path))
    return {
        source.name: make_launcher(library, source.name, int(source.details["arguments"]), grouped="grouped" in source.details)
        for source in sources
    }
