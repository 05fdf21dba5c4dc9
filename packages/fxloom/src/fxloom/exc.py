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

__all__ = [
    "BackendCompilerFailed",
    "ConfigError",
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
