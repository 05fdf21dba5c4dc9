"""Keeps the documentation true to the tree: `python3 tools/refresh_docs.py` says what is stale, `--write` mends it.

Three things are refreshed in place, the prose stays as its author wrote it:

- The block after `<!-- dump: NAME -->` is the file NAME of tests/golden/stages, which a test compares with what the stages make.
- The target of a link whose text is a definition, as in the line "[`Evaluator`]: packages/dynamo/..." at the end of a page, is the
  module of that package which defines the class or function. A definition that is gone, or that stands in several modules, is an
  error: the prose is about something else then.
- An import from a module of fxloom's that no longer defines what is imported leads to the one that does.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DUMPS = ROOT / "tests" / "golden" / "stages"
LANGUAGES = {".py": "py", ".cpp": "cpp", ".txt": "text"}  # not "python": those blocks are run

DUMP = re.compile(r"<!-- dump: (\S+) -->\n```\w+\n.*?^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"^\[`(\w+)`\]: (?:\.\./)*packages/([\w-]+)/.*$", re.MULTILINE)
IMPORT = re.compile(r"^from (fxloom_\w+)\.([\w.]+) import (\w+(?:, \w+)*)$", re.MULTILINE)


def pages() -> list[Path]:
    """Everything that is written for readers, by hand."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md")])


def refreshed(page: Path, text: str) -> str:
    """`text`, the contents of `page`, with dumps and links as they should be. LookupError for what the tree doesn't have."""
    text = DUMP.sub(lambda found: _dump(found.group(1)), text)
    text = IMPORT.sub(lambda found: _import(found.group(0), *found.groups()), text)
    return LINK.sub(lambda found: f"[`{found.group(1)}`]: {_target(page, found.group(2), found.group(1))}", text)


def _dump(name: str) -> str:
    path = DUMPS / name
    if not path.is_file():
        raise LookupError(f"no {name} in {DUMPS.relative_to(ROOT)}")
    return f"<!-- dump: {name} -->\n```{LANGUAGES[path.suffix]}\n{path.read_text().strip()}\n```\n"


def _target(page: Path, package: str, name: str) -> str:
    modules = definitions(package).get(name, [])
    if len(modules) != 1:
        where = ", ".join(str(module.relative_to(ROOT)) for module in modules) or "no module"
        raise LookupError(f"{page.relative_to(ROOT)} links to `{name}` of {package}: one module should define it, found {where}")
    return os.path.relpath(modules[0], page.parent)


def _import(line: str, package: str, module: str, names: str) -> str:
    source = ROOT / "packages" / package.removeprefix("fxloom_").replace("_", "-") / "src"
    if source.exists():
        found = [definitions(source.parent.name).get(name, []) for name in names.split(", ")]
        places = {path for paths in found for path in paths}
        if len(places) == 1 and all(found):
            return f"from {'.'.join(places.pop().relative_to(source).with_suffix('').parts)} import {names}"
    return line


@functools.cache
def definitions(package: str) -> dict[str, list[Path]]:
    """Name of a class, function or table at the top level of a module -> the modules of the package that define it."""
    pattern = re.compile(r"^(?:class |def |(?=[A-Z][A-Z_0-9]*(?:: [^=\n]+)? = ))(\w+)", re.MULTILINE)
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "packages" / package / "src").rglob("*.py")):
        for name in dict.fromkeys(pattern.findall(path.read_text())):
            found.setdefault(name, []).append(path)
    return found


def main(arguments: list[str]) -> int:
    stale = 0
    for page in pages():
        text = page.read_text()
        try:
            wanted = refreshed(page, text)
        except LookupError as error:
            print(error.args[0])
            stale = 1
            continue
        if wanted != text and "--write" in arguments:
            page.write_text(wanted)
            print(f"{page.relative_to(ROOT)}: written")
        elif wanted != text:
            print(f"{page.relative_to(ROOT)} is stale: python3 tools/refresh_docs.py --write")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
