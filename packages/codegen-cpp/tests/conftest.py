"""One artifact store for the session, outside the user's cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxloom_interfaces.artifacts import FileStore

collect_ignore = ["golden"]
sys.path.insert(0, str(Path(__file__).parent))  # for cpp_kernels, which the tests share


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileStore]:
    yield FileStore(Path(tmp_path_factory.mktemp("store")))
