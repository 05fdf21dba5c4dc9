"""The Python blocks of the documentation run, in order, one namespace a page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md")])
NAMED_LINK = re.compile(r"^\[([^]]+)\]: (\S+)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run(page: Path) -> None:
    scope: dict[str, object] = {"__name__": "example"}
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        exec(compile("\n" * line + found.group(1), str(page), "exec"), scope)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        named = dict(NAMED_LINK.findall(prose))
        used = set(re.findall(r"\[(`\w+`)\](?!\()", NAMED_LINK.sub("", prose)))
        assert used == set(named), f"{page.relative_to(ROOT)}: links without a target, or targets without a link: {used ^ set(named)}"
        for target in [*re.findall(r"\]\(([^)#]+)", prose), *named.values()]:
            assert "://" in target or (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_dumps_and_links_to_definitions_are_fresh() -> None:
    assert runpy.run_path(str(ROOT / "tools" / "refresh_docs.py"))["main"]([]) == 0, "run tools/refresh_docs.py --write"


def test_the_readme_lists_every_page() -> None:
    missing = [page.name for page in ROOT.glob("docs/*.md") if f"](docs/{page.name})" not in (ROOT / "README.md").read_text()]
    assert not missing


def terms() -> list[str]:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    return [term for line in lines if line.startswith("- ") for term in re.findall(r"\*\*([^*]+)\*\*", line)]


def test_terms_of_the_glossary_are_those_of_the_tree() -> None:
    pages = [*ROOT.glob("packages/*/src/**/*.py"), *(page for page in PAGES if page.name not in ("glossary.md", "walk.md"))]
    text = "\n".join(page.read_text() for page in pages).lower().replace("_", " ")
    text = re.sub(r"[\s#]+", " ", text)  # terms may go on in the next line
    missing = [term for term in terms() if term.lower() not in text]
    assert not missing and len(set(terms())) == len(terms()) >= 30
