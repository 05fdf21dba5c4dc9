"""The contract of code generators, in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fxloom_testing import CodegenContract


class TestTriton(CodegenContract):
    entry_point = "fxloom_codegen_triton.plugin:PLUGIN"

    @pytest.fixture
    def plugin(self, plugin: Any) -> Any:
        return plugin

    @pytest.fixture
    def device(self) -> str:
        return "cuda" if os.environ.get("FXLOOM_TEST_GPU") == "1" else "cpu"
