"""The umbrella's own parts: counters, debug folder, accuracy, settings. What needs all layers is in the repository's tests/."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxloom
from fxloom.config import cache_root, settings
from fxloom.debug import debug_folder
from fxloom.demo.accuracy import compare, double_reference
from fxloom.demo.resnet import ResNet50
from fxloom.info import collect_info
from fxloom.stats import Recorder
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import ConfigError, Site
from fxloom_interfaces.replayer import current_step
from fxloom_shapes.fake import cpu_features


def test_recorder_counts_every_kind_of_event() -> None:
    recorder = Recorder()
    site = Site("f.py", 3, "f", "x.item()")
    events = [
        telemetry.GraphCaptured("f", 3, 2),
        telemetry.GraphBroke("data_dependent", "an if", "use where", site),
        telemetry.FrameCompiled("f"),
        telemetry.FrameCompiled("f", "shape is [3], was [2]"),
        telemetry.KernelsBuilt("cpp", ("a", "b"), 1, False),
        telemetry.LibraryCalled("aten.mm", 2),
        telemetry.FellBack("aten.sort", "no lowering"),
        telemetry.RanEager("capture_fault", "KeyError", site),
        telemetry.GraphRaised("RuntimeError: first"),
        telemetry.GraphRaised("RuntimeError: second"),
        telemetry.PhaseEnded("aot.trace", 0.5),
        telemetry.PhaseEnded("aot.trace", 0.25),
        telemetry.ReplaySkipped("cudagraphs", "no device"),
    ]
    for event in events:
        recorder(event)
    stats = recorder.stats
    assert (stats.graphs, stats.graph_breaks, stats.compiles, stats.compiler_runs) == (1, 1, 2, 1)
    assert stats.kernels == {"cpp": 2}
    assert stats.library_calls == {"aten.mm": 2}
    assert stats.fallbacks == {"aten.sort": 1, "capture_fault": 1, "graph_raised": 2}
    assert stats.fallback_reasons["graph_raised"] == "RuntimeError: second"
    assert stats.seconds["aot.trace"] == 0.75
    assert stats.recompile_reasons == ["f: shape is [3], was [2]"]
    assert "f.py:3 in f: x.item()" in str(stats.break_reasons[0])
    recorder.reset()
    assert recorder.stats.graphs == 0


def test_debug_folder_starts_anew_for_each_graph(tmp_path: Path) -> None:
    with debug_folder(tmp_path) as folder:
        for text in ("first", "second"):
            telemetry.emit(telemetry.ArtifactWritten("output_code.py", text))
            telemetry.emit(telemetry.ArtifactWritten("guards.txt", text))
    assert not telemetry.wants_artifacts()
    written = sorted(folder.root.glob("graph_*/*"))
    assert [path.read_text() for path in written] == ["first", "first", "second", "second"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t + 1e-4, "error of result"),
        (lambda t: t.double(), "dtype"),
        (lambda t: t.t(), "strides"),
        (lambda t: t[:2], "shape"),
        (lambda t: torch.full_like(t, float("nan")), "error of result"),
        (lambda t: [t], "structure"),
    ],
)
def test_accuracy_refuses_what_differs(change: object, reason: str) -> None:
    exact = torch.randn(3, 3, dtype=torch.float64)
    eager = exact.float()
    assert compare(eager, eager.clone(), exact).correct
    assert change is not None
    found = compare(eager, change(eager), exact)  # type: ignore[operator]
    assert not found.correct
    assert reason in found.reason


def test_double_reference_widens_closures() -> None:
    layers = [torch.nn.Linear(3, 3)]
    table = {"w": torch.randn(3)}

    def inner(x: torch.Tensor) -> torch.Tensor:
        return layers[0](x) * table["w"]

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    x = torch.randn(2, 3)
    wide = double_reference(outer, (x,))
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), outer(x))
    assert layers[0].weight.dtype == torch.float32


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FXLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FXLOOM_DISABLE", "1")
    assert cache_root() == tmp_path
    assert settings().disable
    assert fxloom.compile(torch.relu) is torch.relu
    monkeypatch.setenv("FXLOOM_DISABLE", "perhaps")
    with pytest.raises(ConfigError, match="FXLOOM_DISABLE"):
        fxloom.compile(torch.relu)


def test_resnet_is_resnet50() -> None:
    assert sum(parameter.numel() for parameter in ResNet50().parameters()) == 25_557_032


def test_builtin_backends_are_listed() -> None:
    assert {"eager", "aot_eager", "aot_eager_decomp", "inductor"} <= set(fxloom.list_backends())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "reduce_overhead"}, "unknown mode 'reduce_overhead'; did you mean 'reduce-overhead'"),
        ({"options": {"fuze": True}}, "unknown option 'fuze'"),
        ({"options": 3}, "options must be a mapping"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_first_call(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fxloom.compile(lambda x: x, suppress_errors=True, **arguments)


def test_a_backend_with_options_keeps_its_name_in_messages() -> None:
    def wobbly(gm: object, inputs: object, **options: object) -> object:
        raise ValueError("no")

    with pytest.raises(fxloom.exc.BackendCompilerFailed, match="backend 'wobbly' failed"):
        fxloom.compile(lambda x: x + 1, backend=wobbly, options={"a": 1})(torch.ones(1))


def test_steps_are_marked_outside_and_inside_of_graphs() -> None:
    before = current_step()
    fxloom.cudagraph_mark_step_begin()
    assert current_step() == before + 1

    def step(x: torch.Tensor) -> torch.Tensor:
        fxloom.cudagraph_mark_step_begin()
        return x + 1

    graphs = []
    compiled = fxloom.compile(step, backend=lambda gm, inputs: graphs.append(gm) or gm.forward, fullgraph=True)
    for number in range(3):
        assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
        assert current_step() == before + 2 + number
    assert len(graphs) == 1


@pytest.mark.parametrize("taken", [(), (torch.float32,), (torch.float32, torch.bfloat16, torch.float16)], ids=str)
def test_info_says_what_the_processor_is(taken: tuple[torch.dtype, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "capability", lambda: "AVX2")
    monkeypatch.setattr(cpu_features, "threads", lambda: 3)
    monkeypatch.setattr(cpu_features, "onednn_computes", lambda dtype: dtype in taken)
    found = collect_info()
    assert (found["cpu"], found["threads"]) == ("AVX2", 3)
    assert found["onednn"] == ([str(dtype).removeprefix("torch.") for dtype in taken] or ["not there"])


def test_info_asks_this_processor() -> None:
    found = collect_info()
    assert found["cpu"] == torch.backends.cpu.get_cpu_capability()
    if torch.backends.mkldnn.is_available():
        assert "float32" in found["onednn"]
        assert ("bfloat16" in found["onednn"]) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
        assert ("float16" in found["onednn"]) == torch.ops.mkldnn._is_mkldnn_fp16_supported()
    else:
        assert found["onednn"] == ["not there"]


def test_public_names_are_there_and_lead_somewhere() -> None:
    assert [name for name in fxloom.__all__ if not hasattr(fxloom, name)] == []
    assert set(fxloom.__all__) >= {"compile", "config", "explain", "export", "exc", "stats", "reset", "compile_fx", "plugins", "list_backends"}


def test_reasons_of_kernels_that_were_not_fused() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x + 1)
        return (torch.exp(h @ w) * h).sum()

    inputs = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    explained = fxloom.explain_fusion(program)
    found = explained(*inputs)
    assert [pair.reason for pair in found][:1] == ["aten.mm runs between them"]
    assert explained(*inputs) == found, "compiled anew, with the same result"
    assert fxloom.explain_fusion(lambda x: torch.softmax(x * 2, -1))(torch.randn(4, 4)) == ()
