"""Shared helpers lie beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

collect_ignore = ["golden"]
sys.path.insert(0, str(Path(__file__).parent))  # for core_graphs
