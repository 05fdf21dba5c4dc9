"""Compares every package with the table of docs/architecture.md: files, declared siblings, pins, entry points' targets."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "0.1.0"
NEEDED = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "src", "tests")

#: Package -> siblings that it may depend on (ARCHITECTURE 1).
TABLE: dict[str, set[str]] = {
    "interfaces": set(),
    "ops": {"interfaces"},
    "shapes": {"interfaces", "ops"},
    "dynamo": {"interfaces", "ops", "shapes"},
    "decomp": {"interfaces", "ops"},
    "aot": {"interfaces", "ops", "shapes"},
    "inductor-core": {"interfaces", "ops", "shapes"},
    "codegen-common": {"interfaces"},
    "codegen-cpp": {"interfaces", "codegen-common"},
    "codegen-triton": {"interfaces", "codegen-common"},
    "cudagraphs": {"interfaces"},
    "testing": {"interfaces"},
}
TABLE["fxloom"] = set(TABLE) - {"testing"}


def check(package: str, allowed: set[str]) -> list[str]:
    folder = ROOT / "packages" / package
    complaints = [f"{package}: {name} is missing" for name in NEEDED if not (folder / name).exists()]
    name = "fxloom" if package == "fxloom" else f"fxloom-{package}"
    source = folder / "src" / name.replace("-", "_")
    if not (source / "py.typed").exists():
        complaints.append(f"{package}: {source.name}/py.typed is missing")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    if project["name"] != name or project["version"] != VERSION:
        complaints.append(f"{package}: is {project['name']} {project['version']}, expected {name} {VERSION}")
    siblings = set()
    for requirement in project["dependencies"]:
        if not requirement.startswith("fxloom"):
            continue
        found = re.fullmatch(r"fxloom-([a-z-]+)==(\S+)", requirement)
        if found is None or found[2] != VERSION:
            complaints.append(f"{package}: {requirement!r} must pin =={VERSION}: releases move in lockstep")
        else:
            siblings.add(found[1])
    if siblings != allowed:
        complaints.append(f"{package}: depends on {sorted(siblings)}, the table says {sorted(allowed)}")
    for group, entries in project.get("entry-points", {}).items():
        for entry, target in entries.items():
            module = target.split(":")[0].split(".")
            path = folder / "src" / Path(*module)
            if not (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
                complaints.append(f"{package}: entry point {group}:{entry} names {target}, which does not exist")
    return complaints


def main() -> int:
    present = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    complaints = [f"package {name} is not in the table" for name in sorted(present - set(TABLE))]
    complaints += [f"package {name} is missing" for name in sorted(set(TABLE) - present)]
    for package in sorted(present & set(TABLE)):
        complaints += check(package, TABLE[package])
    print("\n".join(complaints) or f"{len(present)} packages as the table says")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
