"""The shipped contract of code generators."""

from __future__ import annotations

import pytest

from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.codegen import Codegen
from fxloom_testing import CodegenContract


class TestCpp(CodegenContract):
    entry_point = "fxloom_codegen_cpp.plugin:PLUGIN"

    @pytest.fixture
    def plugin(self) -> Codegen:
        return PLUGIN
