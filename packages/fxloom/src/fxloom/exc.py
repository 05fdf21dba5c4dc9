"""The exceptions that users meet."""

from fxloom_interfaces.errors import (
    BackendCompilerFailed,
    ConfigError,
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
