"""The table of shape rules is whole, whichever family is imported first, and each family is in the list of those that are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fxloom_shapes.rules
from fxloom_shapes.rules import load_all

ONE_FAMILY_FIRST = """
import torch
import fxloom_shapes.rules.view
from fxloom_shapes import TraceContext
from fxloom_shapes.propagation.propagate import statistics

context = TraceContext()
with context.activate(), context.fake_mode:
    x = context.fake_mode.from_tensor(torch.ones(2, 3))
    before = statistics.rules
    x.add(1)
assert statistics.rules == before + 1, "the rule of another family was not found"
"""


def test_a_family_imported_alone_hides_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_FAMILY_FIRST], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_family_is_loaded() -> None:
    (folder,) = map(Path, fxloom_shapes.rules.__path__)
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "load_all", "registry"}
    assert modules == set(load_all.__all__)
