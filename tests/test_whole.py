"""What only shows with all packages together: modes, options, errors, the debug folder, caches, torch's own stack beside ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fxloom

MLP = """
import torch, fxloom
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
compiled = fxloom.compile(model)
x = torch.randn(4, 8)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
"""


def run(code: str, **environment: str) -> str:
    """Standard output of a fresh process that runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_second_process_builds_nothing(tmp_path: Path) -> None:
    code = MLP + "s = fxloom.stats(); print(s.compiler_runs, s.cached_builds)"
    assert run(code, FXLOOM_CACHE_DIR=str(tmp_path)).split() == ["1", "0"]
    assert run(code, FXLOOM_CACHE_DIR=str(tmp_path)).split() == ["0", "1"]


def test_debug_folder_is_whole_and_its_scripts_run(tmp_path: Path) -> None:
    run(MLP, FXLOOM_CACHE_DIR=str(tmp_path / "cache"), FXLOOM_DEBUG="1", FXLOOM_DEBUG_DIR=str(tmp_path / "debug"))
    (folder,) = (tmp_path / "debug").glob("run_*/graph_*")
    names = {path.name for path in folder.iterdir()}
    wanted = "fx_graph_readable.py fx_graph_runnable.py fx_graph_transformed.py ir_pre_fusion.txt ir_post_fusion.txt output_code.py kept_apart.txt"
    assert names >= {*wanted.split(), "kernels.cpp", "guards.txt", "bytecode_before.txt", "bytecode_after.txt"}
    assert "linear" in (folder / "fx_graph_readable.py").read_text()
    assert "aten.addmm" in (folder / "fx_graph_transformed.py").read_text()
    for name in ("fx_graph_runnable.py", "output_code.py"):
        assert " ms" in run((folder / name).read_text(), FXLOOM_CACHE_DIR=str(tmp_path / "cache"))


def test_debug_folder_by_argument(tmp_path: Path) -> None:
    code = MLP.replace("fxloom.compile(model)", f"fxloom.compile(model, debug_dir={str(tmp_path)!r})")
    run(code, FXLOOM_CACHE_DIR=str(tmp_path / "cache"))
    assert len(list(tmp_path.glob("run_*/graph_*/output_code.py"))) == 1


def test_disable_runs_eager() -> None:
    assert run(MLP + "print(fxloom.stats().graphs)", FXLOOM_DISABLE="1").strip() == "0"


def test_missing_compiler_names_the_command_and_the_way_to_eager(tmp_path: Path) -> None:
    code = MLP.replace("with torch.no_grad():", "try:").replace(
        "    torch.testing.assert_close(compiled(x), model(x))",
        "    torch.set_grad_enabled(False); compiled(x)\nexcept Exception as error:\n    print(type(error).__name__, error)",
    )
    out = run(code, FXLOOM_CACHE_DIR=str(tmp_path), CXX="no-such-compiler")
    assert "no-such-compiler" in out
    assert "FXLOOM_DISABLE=1" in out


def test_import_is_light_and_uses_none_of_torchs_compile_stack() -> None:
    """Compares what a compiled run has imported with what the same eager run has."""
    probe = "\nimport sys; print(' '.join(sorted(m for m in sys.modules if m.startswith('torch.'))))"
    eager = set(run(MLP.replace("compiled(x)", "model(x)").replace("import torch, fxloom", "import torch").replace("compiled = fxloom.compile(model)", "") + probe).split())
    compiled = set(run(MLP + probe).split())
    stack = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch._decomp", "torch._refs", "torch.fx.experimental", "torch._export", "torch.export")
    assert sorted(m for m in compiled - eager if m.startswith(stack)) == []


def test_no_frame_of_ours_imports_torchs_compile_stack() -> None:
    hook = """
import builtins, sys, torch
real = builtins.__import__
stack = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch._decomp", "torch._refs", "torch._prims",
         "torch.fx.experimental", "torch._export", "torch.export")
caught = []
def hooked(name, globals=None, locals=None, fromlist=(), level=0):
    asker = (globals or {}).get("__name__", "")
    if asker.startswith("fxloom") and level == 0 and name.startswith(stack):
        caught.append((asker, name))
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = hooked
"""
    assert run(hook + MLP + "print(caught)").strip() == "[]"


def test_neither_arrays_nor_norms_import_torchs_capture() -> None:
    """`torch._numpy` reads its defaults there, and torch's own kernel of norms on fakes lives there, unless they are told: 1 s."""
    code = """
import sys, numpy as np, torch, fxloom_dynamo
def program(a, t):
    whole = a.astype(np.int64)
    return whole.mean(), np.zeros(3) + a, np.linalg.norm(a), np.array([1, 2.5]), torch.nn.functional.normalize(t), t.norm()
found = fxloom_dynamo.capture(program, np.ones((2, 3)), torch.ones(2, 3))
assert found.op_count >= 8 and not found.breaks, found
print([name for name in sys.modules if name.startswith("torch._dynamo")])
"""
    assert run(code).strip() == "[]"


def test_unknown_arguments_are_refused_at_once() -> None:
    with pytest.raises(fxloom.exc.PluginError, match="did you mean 'inductor'"):
        fxloom.compile(torch.relu, backend="inducter")
    with pytest.raises(fxloom.exc.ConfigError, match="takes a function or an nn.Module"):
        fxloom.compile(3)  # type: ignore[call-overload]  # what is tested


@pytest.mark.parametrize(("arguments", "message"), [({"mode": "reduce-overhed"}, "did you mean 'reduce-overhead'"), ({"options": {"fuze": True}}, "did you mean 'fuse'")])
def test_unknown_mode_or_option_names_the_nearest(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(fxloom.exc.ConfigError, match=message):
        fxloom.compile(lambda x: x + 1, **arguments)


def test_reduce_overhead_on_the_cpu_says_why_it_replays_nothing() -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x: x.sin() + 1, mode="reduce-overhead")
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert "uses no cuda device" in fxloom.stats().replay_skips[0]


def test_module_stays_a_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    compiled = fxloom.compile(model)
    assert isinstance(compiled, torch.nn.Module)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert compiled[0] is model[0]
    compiled.eval()
    assert not model.training
    assert not model[1].training


def test_fullgraph_turns_a_break_into_an_error_with_the_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(fxloom.exc.Unsupported, match=r"if x.sum\(\) > 0"):
        fxloom.compile(f, fullgraph=True)(torch.ones(3))


def test_stock_torch_compile_beside_ours() -> None:
    """torch's own frame hook may be live in the same process, and fxloom may be its backend."""
    code = """
import torch, fxloom
def f(x): return x.sin() + x.cos()
x = torch.randn(5)
ours = fxloom.compile(f); theirs = torch.compile(f, backend="eager"); inside = torch.compile(f, backend="fxloom", dynamic=False)
for _ in range(3):
    for g in (ours, theirs, inside, lambda x: ours(theirs(x))):
        g(x)
torch.testing.assert_close(ours(x), f(x)); torch.testing.assert_close(theirs(x), f(x)); torch.testing.assert_close(inside(x), f(x))
torch.testing.assert_close(torch.compile(lambda x: ours(x) * 2, backend="eager")(x), f(x) * 2)
print(fxloom.stats().kernels.total() >= 2)
"""
    assert run(code).strip() == "True"


def test_a_backend_of_stock_torch_compile_for_shapes_that_change() -> None:
    """Values and gradients at every shape; sizes that torch made symbolic are dynamic with us too; values that torch left in the graph."""
    code = """
import copy, torch, fxloom
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2))
mine = copy.deepcopy(model)
compiled = torch.compile(lambda x, k: mine(x) * x.shape[0] + k, backend="fxloom")
for number, rows in enumerate((5, 7, 9, 3, 1, 0, 12)):
    x = torch.randn(rows, 4)
    got, want = compiled(x, number / 2), model(x) * rows + number / 2
    torch.testing.assert_close(got, want)
    for result, parameters in ((got, mine.parameters()), (want, model.parameters())):
        result.square().sum().backward()
    torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in model.parameters()])
counted = fxloom.stats()
print(counted.compiles, counted.graph_breaks, sum(counted.fallbacks.values()))

def writes(x, k):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
    x.add_(k)
    return y.float().sum(0), x[:k]
for dynamic in (None, True, False):
    torch._dynamo.reset()
    compiled = torch.compile(writes, backend="fxloom", dynamic=dynamic, options={"memory_budget": 1.0})
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3); y = x.clone()
        torch.testing.assert_close(compiled(x, rows - 2), writes(y, rows - 2))
        torch.testing.assert_close(x, y)
"""
    assert run(code).strip() == "3 0 0"


def test_command_line() -> None:
    found = json.loads(run("from fxloom.__main__ import main; main(['info', '--json'])"))
    assert any("fxloom.codegen: cpp" in line for line in found["plugins"])
    rows = json.loads(run("from fxloom.__main__ import main; main(['demo', 'python', '--small', '--repeats', '2', '--json'])").splitlines()[-1])
    assert rows[0]["correct"]
    assert rows[0]["graphs"] == 2
