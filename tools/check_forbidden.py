"""Refuses uses of torch's own compile stack in the product (ARCHITECTURE: what of torch may be used).

Looks at imports, attribute chains and strings handed to import functions in packages/*/src; names every place. Private
names of torch (`torch._x`, `torch._C`) are allowed in a package's `_torch_private.py` only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = (
    "torch._dynamo", "torch._C._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs", "torch._prims",
    "torch._prims_common", "torch._subclasses", "torch.fx.experimental", "torch.export", "torch._export",
    "torch._higher_order_ops", "torch.compile",
)  # fmt: skip


#: The one exception, with the package whose `_torch_private.py` may name it. `torch._numpy` is a library of functions of tensors, but it
#: belongs to torch's capture and imports it for its settings unless it is told them first; docs/architecture.md says more.
EXCEPTIONS = {"torch._numpy": "dynamo"}


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import and every attribute chain that starts at a plain name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            parts, base = [node.attr], node.value
            while isinstance(base, ast.Attribute):
                parts.append(base.attr)
                base = base.value
            if isinstance(base, ast.Name):
                yield node.lineno, ".".join([base.id, *reversed(parts)])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


#: documented, in spite of their names; so are the operators on lists, `torch._foreach_*`
PUBLIC = frozenset({"torch._check", "torch._check_is_size", "torch._check_value", "torch._check_index", "torch._check_type"})


def check(path: Path) -> Iterator[str]:
    """Complaints about one file."""
    for line, name in names_used(ast.parse(path.read_text(), str(path))):
        where = f"{path.relative_to(ROOT)}:{line}"
        exempt = next((package for prefix, package in EXCEPTIONS.items() if within(name, prefix)), None)
        if any(within(name, prefix) for prefix in FORBIDDEN):
            yield f"{where}: {name} is torch's own compile stack"
        elif exempt is not None and (path.name != "_torch_private.py" or path.relative_to(ROOT).parts[1] != exempt):
            yield f"{where}: {name} is for the _torch_private.py of {exempt} alone"
        elif (
            name.startswith("torch._")
            and not name.startswith("torch.__")
            and path.name != "_torch_private.py"
            and not within(name, "torch._ops")
            and name not in PUBLIC
            and not name.startswith("torch._foreach_")
        ):
            yield f"{where}: {name} is private to torch; gather it in the package's _torch_private.py"


def main() -> int:
    complaints = [complaint for path in sorted(ROOT.glob("packages/*/src/**/*.py")) for complaint in check(path)]
    print("\n".join(dict.fromkeys(complaints)) or "no forbidden names")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
