"""Samples of what `benchmarks/models.py`, `benchmarks/bandwidth.py` and the programs of `benchmarks/programs.py` run whole."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from benchmark_modules import load

FAST = {"nerf", "graph_network", "dlrm"}
SLOW = (
    "deepfm", "detection", "diffusion", "gan_generator", "gru", "lstm", "mixture_of_experts", "mlp_mixer", "pointnet", "rwkv", "speech",
    "state_space", "super_resolution", "tcn", "transformer_encoder", "unet", "vae",
)  # fmt: skip


def test_a_run_measures_and_judges_every_contender(tmp_path: Path) -> None:
    models = load("models")
    arguments = ["--contenders", "eager,fxloom", "--compile-modes", "default,no-such-mode", "--rounds", "3", "--least-ms", "0"]
    options = models.parser().parse_args(arguments)
    runs = [models.measure("program:nerf", *case, options) for case in (("inference", "float32"), ("train", "amp-bfloat16"))]
    for run in runs:
        eager, ours, refused = run.measured()
        assert (eager.label, ours.label, refused.label) == ("eager", "fxloom default", "fxloom no-such-mode")
        assert ours.kind in ("correct", "rounding"), ours.text
        assert ours.ms and ours.over_eager and ours.first_seconds and ours.peak_mb
        assert (ours.graphs, ours.breaks, ours.fallbacks) == (1, 0, {}) and ours.kernels
        assert refused.kind == "refused" and "no-such-mode" in refused.text and refused.ms is None
        assert "nerf" in models.told(run)
    lost = models.Outcome("program:unet", "train", "float32", "died", "exit code -11")
    text = models.summary([*runs, lost])
    assert "refused by fxloom: ConfigError: unknown mode 'no-such-mode'" in text
    assert "program:unet train float32: died: exit code -11" in text
    assert "inference float32 programs (1), default: over eager" in text
    models.write([*runs, lost], models.about(options), str(tmp_path / "runs.json"), str(tmp_path / "runs.csv"))
    kept = json.loads((tmp_path / "runs.json").read_text())["outcomes"]
    assert [models.Outcome(**item) for item in kept] == [*runs, lost]
    with open(tmp_path / "runs.csv") as file:
        assert [row["kind"] for row in csv.DictReader(file)] == [row.kind for run in runs for row in run.measured()] + ["died"]


def test_what_is_below_a_limit_is_listed() -> None:
    models = load("models")
    rows = [
        models.Measured("eager", "", ms=1.0, peak_mb=1.0),
        models.Measured("torch.compile", "default", ms=0.5, over_eager=2.0, peak_mb=0.5, first_seconds=10.0),
        models.Measured("fxloom", "default", ms=2.0, over_eager=0.5, beside_torch=0.25, peak_mb=1.5, first_seconds=1.0),
    ]
    text = models.summary([models.Outcome("bert", "train", "float32", rows=[models.asdict(row) for row in rows])])
    assert "train float32 default, below 0.9 of torch.compile: 1 of 1: bert 0.25" in text
    assert "train float32 default, below 1.0 of eager: 1 of 1: bert 0.50" in text
    assert "train float32 default, peak above eager's: 1 of 1: bert 1.50" in text
    assert "first call 0.100 of its seconds" in text


def test_kernels_are_measured_beside_the_copy_and_the_library() -> None:
    bandwidth = load("bandwidth")
    options = bandwidth.parser().parse_args(["--contenders", "eager,fxloom", "--rounds", "3", "--least-ms", "0"])
    wanted = {"layer norm, forward + backward", "Adam", "mm + bias + GELU"}
    found = [kernel for kernel in bandwidth.kernels("cpu", torch.float32, "tiny") if kernel.name in wanted]
    assert len(found) == len(wanted)
    for kernel in found:
        row = bandwidth.measured(kernel, options)
        assert row["right"]["fxloom"] <= 1, row
        assert row["kernels"] >= 1 and set(row["share"]) == {"eager", "fxloom"}
        assert kernel.name in bandwidth.told(row)


def test_the_gpus_command_passes_options_on() -> None:
    gpu = load("gpu")
    assert gpu.passed_on("rounds", ["--modes", "train", "--rounds", "3"]) == ["--rounds", "3"]
    assert gpu.passed_on("budget", ["--budget=9", "--rounds", "3"]) == ["--budget=9"]
    assert gpu.passed_on("contenders", ["--rounds", "3"]) == []


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", [*sorted(FAST), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_programs_are_right_in_one_graph(name: str, mode: str) -> None:
    checks = load("check_models")
    assert set(load("programs").PROGRAMS) == FAST | set(SLOW)
    options = checks.argparse.Namespace(device="cpu", size="tiny", backend="inductor", time=False)
    outcome = checks.check(f"program:{name}", mode, "float32", options)
    assert outcome.kind in ("correct", "rounding"), outcome.text
    assert (outcome.graphs, outcome.breaks) == (1, 0)
