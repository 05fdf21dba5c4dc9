"""Contract suites that plugin authors run against their plugin: subclass one, give it the plugin, run pytest."""

from fxloom_testing.backend import BackendContract
from fxloom_testing.codegen import CodegenContract
from fxloom_testing.kernels import CASES, KernelCase
from fxloom_testing.prims import PrimsContract
from fxloom_testing.replayer import ReplayerContract

__all__ = ["CASES", "BackendContract", "CodegenContract", "KernelCase", "PrimsContract", "ReplayerContract"]
