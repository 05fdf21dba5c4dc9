"""From sources to callables: one Python module per graph, imported, its kernels compiled several at a time.

In: the `KernelSource`s of a graph and the artifact store. Out: `BuiltKernels`; how a built kernel is called stands in `launch`,
how a template is in its module of `templates`. Triton keeps compiled binaries in a cache of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fxloom_codegen_triton.grouped_launch import GroupedLauncher
from fxloom_codegen_triton.launch import Launcher
from fxloom_codegen_triton.modules import interpreting, load_module, module_text
from fxloom_codegen_triton.table_writer import emit_writer
from fxloom_codegen_triton.templates import TEMPLATES
from fxloom_interfaces.artifacts import ArtifactStore
from fxloom_interfaces.codegen import BuiltKernels, KernelSource


def build_kernels(sources: Sequence[KernelSource], store: ArtifactStore) -> BuiltKernels:
    """Callables for all sources. ToolchainError when Triton is missing or refuses a kernel."""
    module, cached = load_module(sources, store)
    kernels = [source for source in sources if "template" not in source.details]
    write = None
    if any("grouped" in source.details for source in kernels):
        write = load_module([emit_writer("write_words")], store)[0].write_words
    launchers: dict[str, Launcher | GroupedLauncher] = {}
    for source in kernels:
        function = getattr(module, source.name)
        launchers[source.name] = GroupedLauncher(function, source, write) if "grouped" in source.details else Launcher(function, source)
    runs = 0 if interpreting() else _compile_all(list(launchers.values()))
    templates = {
        source.name: TEMPLATES[source.details["template"]].launcher(module, source) for source in sources if "template" in source.details
    }
    return BuiltKernels({**launchers, **templates}, compiler_runs=runs, cached=cached, source=module_text(sources))


def _compile_all(launchers: Sequence[Launcher | GroupedLauncher]) -> int:
    """Compile before the first launch, several at a time: most of the work is done outside of Python."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda launcher: launcher.compile(), launchers))
    return len(launchers)
