"""One small program on its way: what each stage makes of it is kept in tests/golden/stages and compared whole.

After a change that is meant, `pytest tests/test_stages.py --update-golden` writes the files anew, and their difference is reviewed
like code. They are the same on every processor, and but for bytecode on every version of Python. docs/walk.md shows them.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fxloom_aot import aot_graph
from fxloom_decomp import table
from fxloom_dynamo import export
from fxloom_inductor_core import CompiledGraph, compile_graph
from fxloom_interfaces import telemetry
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.codegen import BuiltKernels, KernelSource
from fxloom_interfaces.graph_text import readable
from fxloom_interfaces.plugins import CODEGENS
from fxloom_interfaces.signature import GraphSignature

GOLDEN = Path(__file__).parent / "golden" / "stages"
#: Written for and compared on this version alone: instructions differ between versions.
BYTECODE_OF = (3, 11)


class EmitsOnly:
    """A code generator that prints its kernels and builds none, so that GPU code is seen on any machine."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        return BuiltKernels({source.name: None for source in sources}, 0, 0)  # type: ignore[dict-item]  # never launched


@dataclass
class Stages:
    """texts: by file name. run: the compiled graph for the CPU. program: the namespace of the program's file."""

    texts: dict[str, str]
    run: Callable[..., Any]
    program: Mapping[str, Any]


def stages(store: Path) -> Stages:
    """The program, captured, traced and compiled by the layers one after the other, as the umbrella calls them."""
    program = runpy.run_path(str(GOLDEN / "program.py"))
    inputs = program["make_inputs"]()
    texts: dict[str, str] = {}
    graphs: list[tuple[torch.fx.GraphModule, GraphSignature]] = []

    def keep(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.ArtifactWritten):
            texts[event.name] = _plain(event.text)

    def compile_for(plugin: Any) -> CompiledGraph:
        return compile_graph(*graphs[0], codegens={"cpu": plugin}, store=FileStore(store))

    def cpp(gm: torch.fx.GraphModule, signature: GraphSignature) -> CompiledGraph:
        graphs.append((gm, signature))
        return compile_for(CODEGENS.load("cpp"))

    with telemetry.listen(keep, artifacts=True):
        graph = export(program["score"], *inputs).graph
        run = aot_graph(graph, inputs, decompositions=table("inductor"), compiler=cpp)
    names = ("bytecode_before.txt", "bytecode_after.txt", "guards.txt", "ir_pre_fusion.txt", "ir_post_fusion.txt")
    texts = {name: texts[name] for name in names}
    texts["fx_graph_readable.py"] = _plain(readable(graph))
    texts["fx_graph_transformed.py"] = _plain(readable(graphs[0][0]))
    on_cpu, on_gpu = (compile_for(plugin) for plugin in (CODEGENS.load("cpp"), EmitsOnly(CODEGENS.load("triton"))))
    texts["kernels.cpp"] = "\n".join(source.text for source in on_cpu.kernel_sources)
    texts["kernels_triton.py"] = "\n".join(source.text for source in on_gpu.kernel_sources)
    texts["wrapper.py"] = on_cpu.wrapper_source
    return Stages(texts, run, program)


def _plain(text: str) -> str:
    """Without addresses, and without the paths and the number of threads of this machine."""
    text = text.replace(f"{GOLDEN}/", "")
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"\bthreads=\d+", "threads=2", text)
    return re.sub(r"<module '(\w+)' from '[^']*'>", r"<module '\1'>", text)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return stages(tmp_path_factory.mktemp("store"))


NAMES = (
    "bytecode_before.txt",
    "guards.txt",
    "fx_graph_readable.py",
    "fx_graph_transformed.py",
    "ir_pre_fusion.txt",
    "ir_post_fusion.txt",
    "kernels.cpp",
    "kernels_triton.py",
    "wrapper.py",
    "bytecode_after.txt",
)


@pytest.mark.parametrize("name", NAMES)
def test_stage_is_as_recorded(name: str, found: Stages, golden: Callable[[Path, str], None]) -> None:
    if name.startswith("bytecode") and sys.version_info[:2] != BYTECODE_OF:
        pytest.skip("the bytecode of another version of Python")
    golden(GOLDEN / name, found.texts[name])


def test_every_stage_is_recorded(found: Stages) -> None:
    assert set(found.texts) == set(NAMES)
    assert {path.name for path in GOLDEN.iterdir() if path.is_file()} == {*NAMES, "program.py"}


def test_what_the_stages_made_runs_as_eager(found: Stages) -> None:
    inputs = found.program["make_inputs"]()
    (got,) = found.run(*inputs)
    torch.testing.assert_close(got, found.program["score"](*inputs), rtol=1e-5, atol=1e-6)


def test_five_loops_become_one_kernel(found: Stages) -> None:
    assert found.texts["ir_pre_fusion.txt"].count("buf") > 5
    for name, function in (("kernels.cpp", 'extern "C"'), ("kernels_triton.py", "@triton.jit"), ("ir_post_fusion.txt", "launch")):
        assert found.texts[name].count(function) == 1, name
