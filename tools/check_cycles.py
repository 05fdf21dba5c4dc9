"""Refuses import cycles between the modules of one package.

In: the modules under packages/*/src, parsed and not imported. An arrow goes from a module to each module of the same package
that it names in an import, also inside of functions; imports under `if TYPE_CHECKING:` run never and count for nothing.
`from package import name` points to the submodule `name` where there is one, else to the package's `__init__`.
Out: every set of modules that reach each other, and exit status 1 where there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[str, ...]]:
    """(module, names imported from it...) for every import that may run. package: what relative imports start at."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imported_names(ast.Module([other], []), package)
        elif isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield (".".join([*base, *([node.module] if node.module else [])]), *(alias.name for alias in node.names))
        else:
            yield from imported_names(node, package)


def arrows(source: Path) -> dict[str, dict[str, None]]:
    """Module -> modules that it imports, of one import package at `source`. A package's `__init__` has the package's name."""
    paths: dict[str, Path] = {}
    for path in sorted([*source.rglob("*.py"), *source.rglob("*.pyi")]):  # an extension module's stub stands for it
        parts = path.relative_to(source.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, dict[str, None]] = {}
    for module, path in paths.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        targets = found.setdefault(module, {})
        for base, *names in imported_names(ast.parse(path.read_text(), str(path)), package):
            wanted = [f"{base}.{name}" if f"{base}.{name}" in paths else base for name in names] or [base]
            targets.update(dict.fromkeys(name for name in wanted if name in paths and name != module))
    return found


def cycles(graph: Mapping[str, Mapping[str, None]]) -> list[list[str]]:
    """The sets of at least two modules that reach each other, largest first."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for target in graph[todo.pop()]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return seen

    reach = {module: reached(module) for module in graph}
    found: dict[tuple[str, ...], None] = {}
    for module in sorted(graph):
        if module in reach[module]:
            found[tuple(other for other in sorted(reach[module]) if module in reach[other])] = None
    return sorted((list(members) for members in found), key=lambda members: (-len(members), members))


def check(package: str, source: Path) -> list[str]:
    """Complaints about the package's cycles."""
    return [f"{package}: these modules import each other: {' <-> '.join(members)}" for members in cycles(arrows(source))]


def main() -> int:
    complaints: list[str] = []
    for project in sorted(ROOT.glob("packages/*/pyproject.toml")):
        (source,) = (path.parent for path in project.parent.glob("src/*/__init__.py"))
        complaints += check(project.parent.name, source)
    print("\n".join(complaints) or "no import cycles")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
