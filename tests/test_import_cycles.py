"""The check of import cycles in tools/: what it counts, and what it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "check_cycles.py"
    spec = importlib.util.spec_from_file_location("check_cycles", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(folder: Path, **modules: str) -> Path:
    """A package `p`; `a__b` is the module `p.a.b`."""
    source = folder / "p"
    for name, text in {"__init__": "", **modules}.items():
        path = source / f"{name if name == '__init__' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


CASES: list[Any] = [
    pytest.param({"a": "import p.b", "b": "import torch"}, [], id="one way"),
    pytest.param({"a": "import p.b", "b": "from p import a"}, [["p.a", "p.b"]], id="two ways"),
    pytest.param({"a": "from p.b import x", "b": "def f():\n    from p.a import y"}, [["p.a", "p.b"]], id="inside of a function"),
    pytest.param({"a": "from .b import x", "b": "from . import a"}, [["p.a", "p.b"]], id="relative"),
    pytest.param({"a": "import p.b", "b": "import p.c", "c": "import p.a"}, [["p.a", "p.b", "p.c"]], id="three"),
    pytest.param({"a": "import p.b", "b": "if TYPE_CHECKING:\n    import p.a"}, [], id="type checking"),
    pytest.param({"a": "import p.b", "b": "if t.TYPE_CHECKING:\n    x = 1\nelse:\n    import p.a"}, [["p.a", "p.b"]], id="else"),
    pytest.param({"a": "from p import x", "__init__": "from p.a import x"}, [["p", "p.a"]], id="through the package"),
    pytest.param({"sub__a": "from ..b import x", "b": "from p.sub.a import y"}, [["p.b", "p.sub.a"]], id="packages in the package"),
    pytest.param(
        {"a": "import p.b", "b": "import p.a", "c": "import p.d, p.a", "d": "import p.c"}, [["p.a", "p.b"], ["p.c", "p.d"]], id="two"
    ),
]


@pytest.mark.parametrize(("modules", "expected"), CASES)
def test_cycles_that_it_finds(tool: ModuleType, tmp_path: Path, modules: dict[str, str], expected: list[list[str]]) -> None:
    assert tool.cycles(tool.arrows(package(tmp_path, **modules))) == expected


def test_an_extension_module_is_known_by_its_stub(tool: ModuleType, tmp_path: Path) -> None:
    source = package(tmp_path, a="from p import _native", __init__="from p.a import x")
    (source / "_native.pyi").write_text("")
    assert tool.cycles(tool.arrows(source)) == []


def test_a_cycle_is_a_complaint(tool: ModuleType, tmp_path: Path) -> None:
    source = package(tmp_path, a="import p.b", b="import p.a")
    (complaint,) = tool.check("p", source)
    assert "p.a <-> p.b" in complaint

def test_the_tree_passes(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main() == 0, capsys.readouterr().out
