"""The recipes of CONTRIBUTING.md run against the real registries: each in a child of one process that has imported everything, so
that what it registers is gone with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"

#: Prints the headings of the recipes that fail, after their tracebacks.
RUN = '''
import os, re, sys, traceback
import torch, fxloom, fxloom_aot, fxloom_decomp, fxloom_dynamo, fxloom_inductor_core

page = open(sys.argv[1]).read()
recipes = page[page.index("## Recipes"):]
first, *sections = re.split(r"^### ", recipes, flags=re.MULTILINE)
code = lambda text: "\\n".join(re.findall(r"^```python\\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
for section in sections:
    child = os.fork()
    if child == 0:
        try:
            exec(compile(code(first) + code(section), section.partition("\\n")[0], "exec"), {"__name__": "recipe"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print(section.partition("\\n")[0])
'''


def headings() -> list[str]:
    return re.findall(r"^### (.*)", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Headings of the recipes that fail, and what they wrote."""
    environment = {**os.environ, "FXLOOM_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run([sys.executable, "-c", RUN, str(PAGE)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("recipe", headings())
def test_recipe(recipe: str, failed: tuple[list[str], str]) -> None:
    assert recipe not in failed[0], failed[1]


def test_recipes_are_all_that_a_newcomer_is_promised() -> None:
    kinds = (
        "opcode handler", "guard", "graph break", "shape rule", "decomposition", "lowering", "Triton template", "graph pass", "fusion rule",
        "op to the loop IR",
    )  # fmt: skip
    assert [kind for kind in kinds if not any(kind in heading for heading in headings())] == []
