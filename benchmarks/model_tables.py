"""What models.py measured, as text and files: lines of a run, geometric means, lists of models that fall short, JSON and CSV.

In: `Outcome` records. Out: text, and files that hold all that is known so far. Nothing is measured here.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from whole_way import geometric_mean

PEER = "torch.compile"


@dataclass
class Measured:
    """One contender in one run. kind: correct, rounding, wrong, raised, refused (its mode), skipped (no time was left).

    ms, least_ms: median and least of a call. over_eager: eager's over its own, above 1 is faster; beside_torch: torch.compile's in the same mode over its
    own. worst: largest error over what is allowed. graphs to calls: fxloom's only, kernels and library calls of forward and backward.
    """

    contender: str
    compile_mode: str
    kind: str = "correct"
    text: str = ""
    first_seconds: float | None = None
    ms: float | None = None
    least_ms: float | None = None
    over_eager: float | None = None
    beside_torch: float | None = None
    cpu_ms: float | None = None
    peak_mb: float | None = None
    reserved_mb: float | None = None
    worst: float | None = None
    graphs: int | None = None
    breaks: int | None = None
    kernels: int | None = None
    calls: int | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.contender if self.contender == "eager" else f"{self.contender} {self.compile_mode}"


@dataclass
class Outcome:
    """One run. kind: done, raised, died, timeout. rows: of the contenders, `Measured` as dictionaries."""

    model: str
    mode: str
    dtype: str
    kind: str = "done"
    text: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def measured(self) -> list[Measured]:
        return [Measured(**row) for row in self.rows]


def family(model: str) -> str:
    return {"timm": "timm", "program": "programs"}.get(model.split(":")[0], "Hugging Face")


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def told(outcome: Outcome) -> str:
    """A run in some lines."""
    head = f"{outcome.model} {outcome.mode} {outcome.dtype}"
    if outcome.kind != "done":
        return f"{head}: {outcome.kind}: {outcome.text[:500]}"
    lines = [head]
    for row in outcome.measured():
        if row.ms is None:
            lines.append(f"    {row.label:32} {row.kind}: {row.text[:300]}")
            continue
        words = [
            f"{row.ms:9.3f} ms (least {number(row.least_ms, '.3f')})",
            f"over eager {number(row.over_eager)}",
            f"peak {number(row.peak_mb, '.4g')} MB",
        ]
        words += [f"reserved {row.reserved_mb:.0f} MB"] if row.reserved_mb is not None else []
        words += [f"cpu {row.cpu_ms:.3f} ms"] if row.cpu_ms is not None else []
        if row.contender != "eager":
            words += [f"first {number(row.first_seconds)} s", row.kind]
        if row.beside_torch is not None:
            words.insert(2, f"beside torch.compile {row.beside_torch:.2f}")
        if row.contender == "fxloom":
            words.append(
                f"graphs {row.graphs} breaks {row.breaks} kernels {row.kernels} calls {row.calls} fallbacks {sum(row.fallbacks.values())}"
            )
        lines.append(f"    {row.label:32} {', '.join(words)}" + (f": {row.text[:200]}" if row.text else ""))
    return "\n".join(lines)


def mean(values: list[float | None]) -> str:
    """Geometric, of those that are there."""
    there = [value for value in values if value]
    return f"{geometric_mean(there):.3f}" if there else "-"


def ratio(left: float | None, right: float | None) -> float | None:
    return left / right if left and right else None


def summary(outcomes: list[Outcome]) -> str:
    """Geometric means by mode, dtype, set of models and compile mode, then the models that fall short."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, dict[str, Measured]]]] = defaultdict(list)
    odd: list[str] = []
    best: dict[tuple[str, str, str], list[float | None]] = defaultdict(list)
    for outcome in outcomes:
        head = f"{outcome.model} {outcome.mode} {outcome.dtype}"
        if outcome.kind != "done":
            odd.append(f"{head}: {outcome.kind}: {outcome.text[:160]}")
            continue
        rows = outcome.measured()
        odd += [f"{head}, {row.label}: {row.kind}: {row.text[:160]}" for row in rows if row.kind in ("wrong", "raised", "skipped")]
        eager = next(row for row in rows if row.contender == "eager")
        for compile_mode in dict.fromkeys(row.compile_mode for row in rows if row.compile_mode):
            found = {row.contender: row for row in rows if row.compile_mode == compile_mode} | {"eager": eager}
            for models in (family(outcome.model), "all"):
                groups[outcome.mode, outcome.dtype, models, compile_mode].append((outcome.model, found))
        best[outcome.mode, outcome.dtype, family(outcome.model)].append(
            max((row.over_eager or 0 for row in rows if row.contender == "fxloom"), default=None)
        )
    lines = []
    for (mode, dtype, models, compile_mode), members in sorted(groups.items()):
        pairs = [(found.get("fxloom"), found.get(PEER), found["eager"]) for _, found in members]
        both = [(mine, peer) for mine, peer, _ in pairs if mine and peer and mine.ms and peer.ms]
        head = f"{mode} {dtype} {models} ({len(members)}), {compile_mode}"
        refused = [mine.text for mine, _, _ in pairs if mine and mine.kind == "refused"]
        if refused:
            lines += [
                f"{head}: refused by fxloom: {refused[0]}; torch.compile over eager {mean([peer.over_eager for _, peer, _ in pairs if peer])}"
            ]
            continue
        parts = [f"over eager {mean([mine.over_eager for mine, _, _ in pairs if mine])}"]
        parts += [f"peak {mean([ratio(mine.peak_mb, eager.peak_mb) for mine, _, eager in pairs if mine])} of eager's"]
        if both:
            parts += [
                f"torch.compile's {mean([peer.over_eager for _, peer in both])}",
                f"beside it {mean([mine.beside_torch for mine, _ in both])}",
                f"first call {mean([ratio(mine.first_seconds, peer.first_seconds) for mine, peer in both])} of its seconds",
                f"peak {mean([ratio(mine.peak_mb, peer.peak_mb) for mine, peer in both])}",
                f"reserved {mean([ratio(mine.reserved_mb, peer.reserved_mb) for mine, peer in both])}",
                f"cpu time {mean([ratio(mine.cpu_ms, peer.cpu_ms) for mine, peer in both])}",
            ]
        lines.append(f"{head}: {', '.join(parts)}")
    lines += [
        f"{mode} {dtype} {models}, fxloom's best mode of each model: over eager {mean(ratios)}"
        for (mode, dtype, models), ratios in sorted(best.items())
    ]
    for (mode, dtype, models, compile_mode), members in sorted(groups.items()):
        if models != "all":
            continue
        mine = [(name, found["fxloom"], found["eager"]) for name, found in members if "fxloom" in found]
        beside = [(name, row.beside_torch) for name, row, _ in mine if row.beside_torch is not None]
        over = [(name, row.over_eager) for name, row, _ in mine if row.over_eager is not None]
        peaks = [(name, part) for name, row, eager in mine if (part := ratio(row.peak_mb, eager.peak_mb)) is not None]
        for what, values, falls_short in (
            ("below 0.9 of torch.compile", beside, lambda value: value < 0.9),
            ("below 1.0 of eager", over, lambda value: value < 1.0),
            ("peak above eager's", peaks, lambda value: value > 1.0),
        ):
            short = sorted((value, name) for name, value in values if falls_short(value))
            if values:
                lines.append(
                    f"{mode} {dtype} {compile_mode}, {what}: {len(short)} of {len(values)}: {', '.join(f'{n} {v:.2f}' for v, n in short) or 'none'}"
                )
    kinds = [row.kind for outcome in outcomes for row in outcome.measured() if row.contender == "fxloom"]
    lines.append(f"fxloom, contenders by kind: { {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} }")
    return "\n".join(lines + odd)


def write(outcomes: list[Outcome], about: dict[str, Any], as_json: str, as_csv: str) -> None:
    """Write the files, where they have a name. about: the machine, for the JSON."""
    if as_json:
        Path(as_json).write_text(json.dumps({"about": about, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1))
    if as_csv:
        with open(as_csv, "w", newline="") as file:
            table = csv.writer(file)
            names = [item.name for item in fields(Measured)]
            table.writerow(["model", "set", "mode", "dtype", *names])
            for outcome in outcomes:
                start = [outcome.model, family(outcome.model), outcome.mode, outcome.dtype]
                for row in outcome.rows or [{"kind": outcome.kind, "text": outcome.text}]:
                    table.writerow(
                        [*start, *[json.dumps(row[name]) if name == "fallbacks" and name in row else row.get(name) for name in names]]
                    )
