"""Graph capture from Python bytecode."""

from fxloom_dynamo.api import Capture, capture, explain, optimize
from fxloom_dynamo.breaks import CATALOGUE, BreakKind
from fxloom_dynamo.config import CaptureConfig

__all__ = ["CATALOGUE", "BreakKind", "Capture", "CaptureConfig", "capture", "explain", "optimize"]
