"""The contract of replayers: declining on the CPU, recording where there is a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_cudagraphs import PLUGIN
from fxloom_testing import ReplayerContract


class TestDeclining(ReplayerContract):
    @pytest.fixture
    def replayer(self) -> Any:
        return PLUGIN


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a real GPU")
class TestRecording(TestDeclining):
    @pytest.fixture
    def device(self) -> str:
        return "cuda"
