"""The exceptions that users meet, under one name: re-exported from `fxloom_interfaces.errors` and `fxloom_shapes.errors`."""

from fxloom_interfaces.errors import (
    BackendCompilerFailed,
    ConfigError,
    FallbackWarning,
    FxloomError,
    GraphBreak,
    GraphRejected,
    InternalError,
    PluginError,
    PluginVersionError,
    RecompileLimitExceeded,
    ToolchainError,
    Unsupported,
    UserError,
)
from fxloom_shapes.errors import ConstraintViolated

__all__ = [
    "BackendCompilerFailed",
    "ConfigError",
    "ConstraintViolated",
    "FallbackWarning",
    "FxloomError",
    "GraphBreak",
    "GraphRejected",
    "InternalError",
    "PluginError",
    "PluginVersionError",
    "RecompileLimitExceeded",
    "ToolchainError",
    "Unsupported",
    "UserError",
]
