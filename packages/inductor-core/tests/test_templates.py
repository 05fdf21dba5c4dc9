"""A plugin's own kernels for whole operators: asked for by option, called like a library, built with the graph's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from core_graphs import record

from fxloom_codegen_common.reference import REFERENCE, ReferenceCodegen
from fxloom_inductor_core import InductorOptions, compile_graph
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.codegen import BuiltKernels, Capabilities, KernelSource
from fxloom_interfaces.errors import PluginError

CAPABLE: Capabilities = replace(REFERENCE.capabilities, templates=frozenset({"mm"}))


def product(*operands: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    a, b, *bias = operands
    return out.copy_(torch.addmm(bias[0], a, b) if bias else a @ b)


@dataclass(frozen=True)
class WithTemplates:
    """The reference plugin, with a matrix product of its own."""

    name: str = "templated"
    device_types: tuple[str, ...] = ("cpu",)
    loop_ir: Any = REFERENCE.loop_ir
    capabilities: Capabilities = CAPABLE
    asked: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def emit(self, kernel: Any, name: str) -> KernelSource:
        return REFERENCE.emit(kernel, name)

    def template(self, kind: str, name: str, parameters: Mapping[str, Any]) -> KernelSource:
        self.asked.append((kind, name, parameters))
        return KernelSource(name, "template", f"template {name}")

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        kernels = REFERENCE.build([source for source in sources if source.language != "template"], store)
        return replace(kernels, callables={**kernels.callables, **{s.name: product for s in sources if s.language == "template"}})


def layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.addmm(b, torch.relu(x @ w) @ w, v))


INPUTS = [torch.randn(6, 8).half(), torch.randn(8, 8).half(), torch.randn(8, 5).half(), torch.randn(5).half()]


@pytest.mark.parametrize("asked", [True, False])
def test_products_go_to_the_template_when_options_ask(asked: bool, tmp_path: Path) -> None:
    plugin = WithTemplates()
    options = InductorOptions(templates=asked)
    compiled = compile_graph(record(layers, *INPUTS), options=options, codegens={"cpu": plugin}, store=FileStore(tmp_path))
    (result,) = compiled(list(INPUTS))
    torch.testing.assert_close(result, layers(*INPUTS), rtol=2e-3, atol=2e-2)
    names = [name for _, name, _ in plugin.asked]
    assert names == (["mm_float16", "mm_bias_float16"] if asked else [])
    calls = dict(compiled.library_calls)
    assert (calls.get("templated.mm_float16"), calls.get("templated.mm_bias_float16")) == ((2, 1) if asked else (None, None))


def test_full_precision_stays_with_the_library(tmp_path: Path) -> None:
    plugin = WithTemplates()
    inputs = [tensor.float() for tensor in INPUTS]
    compile_graph(record(layers, *inputs), options=InductorOptions(templates=True), codegens={"cpu": plugin}, store=FileStore(tmp_path))
    assert plugin.asked == []


def test_plugin_that_only_says_it_has_templates_is_named(tmp_path: Path) -> None:
    boastful = ReferenceCodegen(capabilities=CAPABLE)
    with pytest.raises(PluginError, match="has no method `template`"):
        compile_graph(record(layers, *INPUTS), options=InductorOptions(templates=True), codegens={"cpu": boastful}, store=FileStore(tmp_path))
