"""Writes docs/operators.md: what becomes of each operator, from the registries, and how the operator database fared, from runs.

    python3 tools/operators_page.py                                    # says whether the page is stale
    python3 tools/operators_page.py --write
    python3 tools/operators_page.py --record cpu run.json "EPYC, torch 2.13"   # keep a run of `benchmarks/operators.py --json`

A kept run is docs/operators/NAME.json: by operator and dtype what differed from eager, and what fell back. The registries need the
packages and the torch that the page names; with another torch the page is not compared.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

from generated_page import refresh

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operators.md"
RUNS = ROOT / "docs" / "operators"

HEAD = """# Operators

Written by `tools/operators_page.py` from the registries of torch {torch}'s operators; a test fails when it is stale.

- **decomposed**: written in other operators before lowering (`fxloom-decomp`, set `inductor`); a rule may decline some arguments.
- **kernel**: lowered to loops, which are fused (`fxloom-inductor-core`).
- **view**: an index, no work. **call**: eager's own kernel on purpose, with the reason.
- What stands in none of the lists runs eager's kernel as a *fallback*, which `fxloom.stats()` counts.
"""


def page() -> str:
    """The page as it should be."""
    import torch

    aten, calls = _operators()
    lines = [HEAD.format(torch=torch.__version__.split("+")[0])]
    lines += [f"## {len(aten)} operators of ATen", "", "| operator | decomposed | kernel | view | call |", "|---|---|---|---|---|"]
    for name, ways in sorted(aten.items()):
        lines.append(f"| `{name}` | " + " | ".join(", ".join(sorted(ways[way])) for way in ("decomposed", "kernel", "view", "call")) + " |")
    lines += ["", "## Calls, and why", "", "| reason | operators |", "|---|---|"]
    lines += [f"| {reason} | {', '.join(f'`{name}`' for name in sorted(names))} |" for reason, names in calls.items()]
    return "\n".join([*lines, "", *_database()])


def _operators() -> tuple[dict[str, dict[str, set[str]]], dict[str, set[str]]]:
    """By name of the operator and way, the overloads; by reason, the names of calls."""
    import torch

    from fxloom_decomp import table
    from fxloom_inductor_core.lowering.library_calls import LIBRARY_CALLS
    from fxloom_inductor_core.lowering.load_all import rules
    from fxloom_inductor_core.lowering.registry import library_call

    found: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    calls: dict[str, set[str]] = collections.defaultdict(set)

    def note(op: Any, way: str) -> None:
        if op.namespace == "aten":
            found[op.overloadpacket.__name__][way].add(op._overloadname)

    for op in table("inductor"):
        note(op, "decomposed")
    for op, rule in rules().items():
        if rule is library_call:
            note(op, "call")
            calls[LIBRARY_CALLS.get(op, "a library's own algorithm (LAPACK, cuSOLVER, attention kernels)")].add(op.overloadpacket.__name__)
        elif isinstance(op, torch._ops.OpOverload):
            note(op, "view" if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns) else "kernel")
    for op, reason in LIBRARY_CALLS.items():
        note(op, "call")
        calls[reason].add(op.overloadpacket.__name__)
    return found, calls


def _database() -> list[str]:
    """How the operators of torch's database compare with eager, by kept run."""
    lines = []
    for path in sorted(RUNS.glob("*.json")):
        run = json.loads(path.read_text())
        results: dict[str, dict[str, Any]] = run["operators"]
        dtypes = run["dtypes"]
        equal = {dtype: [by[dtype][0] == "equal" for by in results.values() if dtype in by] for dtype in dtypes}
        lines += [
            f"## torch's operator database: {run['machine']}",
            "",
            "`=`: results and gradients are eager's, within the rounding that `benchmarks/operators.py` allows; `f`: equal, with a fallback;",  # noqa: E501  # a line of the page
            "else what differs. Empty: not an operator of that dtype.",
            "",
            "| operator | " + " | ".join(dtypes) + " |",
            "|---" * (1 + len(dtypes)) + "|",
            "| **equal** | " + " | ".join(f"{sum(known)} of {len(known)}" for known in equal.values()) + " |",
        ]
        for name, by in sorted(results.items()):
            lines.append(f"| `{name}` | " + " | ".join(_cell(by.get(dtype)) for dtype in dtypes) + " |")
        lines.append("")
    return lines


def _cell(outcome: list[Any] | None) -> str:
    if outcome is None:
        return ""
    kind, fallbacks = outcome
    return ("f" if fallbacks else "=") if kind == "equal" else str(kind)


def record(name: str, source: Path, machine: str) -> None:
    """Keep a run."""
    operators: dict[str, dict[str, Any]] = {}
    dtypes: dict[str, None] = {}
    for outcome in json.loads(source.read_text()):
        if outcome["kind"] == "no samples":
            continue
        dtypes[outcome["dtype"]] = None
        operators.setdefault(outcome["operator"], {})[outcome["dtype"]] = [outcome["kind"], sorted(outcome["fallbacks"])]
    RUNS.mkdir(exist_ok=True)
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(by)}" for name, by in sorted(operators.items()))
    head = json.dumps({"machine": machine, "dtypes": list(dtypes)})[:-1]
    (RUNS / f"{name}.json").write_text(f'{head},\n "operators": {{\n{rows}\n}}}}\n')


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--record"]:
        record(arguments[1], Path(arguments[2]), arguments[3])
        return 0
    return refresh(PAGE, page(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
