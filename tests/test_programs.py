"""The demo's programs, small: correct, in as few graphs as they allow, without fallbacks, and compiled once."""

from __future__ import annotations

import pytest
import torch

import fxloom
from fxloom.demo.accuracy import compare, double_reference
from fxloom.demo.programs import PROGRAMS, Program

pytest.importorskip("transformers", reason="two of the programs are models of transformers")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_is_correct_whole_and_compiled_once(program: Program) -> None:
    torch.manual_seed(0)
    function, inputs = program.make(torch.device("cpu"), torch.float32, True)
    fxloom.reset()
    compiled = fxloom.compile(function)
    with torch.no_grad():
        reference = double_reference(function, inputs)
        for call in range(3):
            accuracy = compare(function(*inputs), compiled(*inputs), reference)
            assert accuracy.correct, accuracy.reason
            counts = fxloom.stats()
            assert counts.graphs == program.graphs, counts.break_reasons
            assert counts.graph_breaks == program.breaks
            assert counts.fallbacks.total() == 0, counts.fallbacks
            assert counts.compiles == program.graphs, f"compiled again in call {call}: {counts.recompile_reasons}"
    assert counts.kernels.total() > 0
    assert counts.library_calls.total() > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_each_layer_alone_gives_eagers_results(program: Program, backend: str) -> None:
    torch.manual_seed(0)
    function, inputs = program.make(torch.device("cpu"), torch.float32, True)
    fxloom.reset()
    compiled = fxloom.compile(function, backend=backend)
    with torch.no_grad():
        accuracy = compare(function(*inputs), compiled(*inputs), double_reference(function, inputs))
    assert accuracy.correct, accuracy.reason
    assert fxloom.stats().graphs == program.graphs


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "flip", "cumsum", "logsumexp", "amax", "sort"])
@pytest.mark.parametrize("dim", [0, -1])
def test_dimensions_of_a_tensor_without_any(name, dim):
    def program(x):
        found = getattr(torch, name)(x, [dim] if name == "flip" else dim, **({"correction": 0} if "var" in name or name == "std" else {}))
        return found if isinstance(found, torch.Tensor) else list(found)

    x = torch.tensor(2.5)
    assert str(fxloom.compile(program, fullgraph=True)(x)) == str(program(x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_part_of_changing_width_is_written(backend):
    def program(y):
        left, right = y.clone().chunk(2, 1)
        left.mul_(2)
        first, _ = right.split(y.shape[1] // 4, 1)
        first.add_(1)
        return left + right

    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    for width in (8, 12, 16):
        y = torch.randn(3, width)
        torch.testing.assert_close(compiled(y), program(y))
