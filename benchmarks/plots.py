"""Plots of what models.py measured: the distribution of speed-ups over eager, as in figure 4 of the paper, and bars by model.

In: outcomes of models.py. Out: PNG files in a folder, `distribution-MODE-DTYPE.png` and `bars-MODE-DTYPE.png`. Needs matplotlib.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # after the choice of a backend that needs no screen


def speedups(outcomes: list[Any]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """By mode and dtype, by contender, by model: speed over eager of what ran and was right."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for outcome in outcomes:
        for row in outcome.measured():
            if row.contender != "eager" and row.over_eager and row.kind in ("correct", "rounding"):
                found[outcome.mode, outcome.dtype][row.label][outcome.model] = row.over_eager
    return found


def colour(label: str, number: int) -> Any:
    """Reds for torch.compile, blues for fxloom."""
    shades = pyplot.get_cmap("Blues" if label.startswith("fxloom") else "Reds")
    return shades(0.9 - 0.2 * (number // 2 % 4))


def draw(outcomes: list[Any], folder: Path) -> list[Path]:
    """Write the plots; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for (mode, dtype), contenders in speedups(outcomes).items():
        figure, axes = pyplot.subplots(figsize=(7, 4.5))
        for number, (label, by_model) in enumerate(contenders.items()):
            values = sorted(by_model.values())
            share = [i / len(values) for i in range(len(values) + 1)]
            axes.step([values[0], *values], share, where="post", label=f"{label} ({len(values)})", color=colour(label, number))
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set(
            xlabel="speed over eager", ylabel="share of the models at most so fast", title=f"{mode}, {dtype}", xscale="log", ylim=(0, 1.02)
        )
        axes.legend()
        made.append(folder / f"distribution-{mode}-{dtype}.png")
        figure.savefig(made[-1], dpi=150, bbox_inches="tight")
        pyplot.close(figure)

        models = list(dict.fromkeys(model for by_model in contenders.values() for model in by_model))
        figure, axes = pyplot.subplots(figsize=(max(7.0, 0.18 * len(models) * (len(contenders) + 1)), 4.5))
        width = 0.8 / len(contenders)
        for number, (label, by_model) in enumerate(contenders.items()):
            places = [i + number * width for i, model in enumerate(models) if model in by_model]
            axes.bar(places, [by_model[model] for model in models if model in by_model], width, label=label, color=colour(label, number))
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xticks([i + 0.4 - width / 2 for i in range(len(models))], models, rotation=90)
        axes.set(ylabel="speed over eager", title=f"{mode}, {dtype}", xlim=(-0.5, len(models)))
        axes.legend()
        made.append(folder / f"bars-{mode}-{dtype}.png")
        figure.savefig(made[-1], dpi=150, bbox_inches="tight")
        pyplot.close(figure)
    return made
