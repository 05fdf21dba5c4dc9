"""The error roots. Every exception that fxloom raises on purpose derives from one of the four.

`GraphBreak` is expected and falls back to eager; `UserError` is the user's to mend; `PluginError` names a plugin;
`InternalError` is a fault of fxloom's and says how to report it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.fx

    from fxloom_interfaces.versions import Version


class FxloomError(Exception):
    """Root of everything fxloom raises on purpose."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's program: file, 1-based line, function name, and the text of the line (may be empty)."""

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        text = f"{self.file}:{self.line} in {self.function}"
        return f"{text}: {self.code}" if self.code else text


class GraphBreak(FxloomError):
    """Capture can't go on at this instruction; the frame is split there and eager runs the instruction.

    key: constant name of the kind of break, an entry of the catalogue of the layer that raises it.
    details: what this occurrence was about, in the user's terms.
    site: where, filled in by the evaluator when the raiser does not know.
    """

    def __init__(self, key: str, details: str = "", site: Site | None = None) -> None:
        super().__init__(f"{key}: {details}" if details else key)
        self.key = key
        self.details = details
        self.site = site


class GraphRejected(FxloomError):
    """A later layer can't treat `node` soundly; capture starts again with a graph break at the node's instruction.

    Raised by backends and by the layers below them; caught by dynamo only.
    raises: an operator refused its arguments (`__cause__`), as it may do in eager too: the instruction shows whether it does.
    """

    def __init__(self, node: torch.fx.Node, reason: str, *, raises: bool = False) -> None:
        super().__init__(f"{node.format_node()}: {reason}")
        self.node = node
        self.reason = reason
        self.raises = raises


#: what operators raise for arguments that they refuse
OPERATOR_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError)


def refused(node: torch.fx.Node, error: Exception) -> GraphRejected:
    """The rejection of a node whose operator raised while it was traced or lowered."""
    return GraphRejected(node, f"{type(error).__name__}: {error}", raises=True)


class FallbackWarning(RuntimeWarning):
    """Something that was to be compiled runs in eager, or a plugin is left out. The text has the cause and the place."""


class UserError(FxloomError):
    """The program or the arguments given to fxloom are at fault; the message says what to change."""


class Unsupported(UserError):
    """`fullgraph=True` met a graph break. The text is that of the break's catalogue entry."""


class RecompileLimitExceeded(UserError):
    """`fullgraph=True` met a function that was compiled too often; names the guard that kept failing."""


class ConfigError(UserError):
    """An unknown or ill-typed option or environment variable; the message has the nearest valid name."""


class ToolchainError(UserError):
    """A compiler or other tool is missing or failed; the message has the command, its output and the way to eager."""


class PluginError(FxloomError):
    """A plugin is at fault. Names the plugin, and where it matters the versions and the fix."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(f"plugin {plugin!r}: {message}")
        self.plugin = plugin


class PluginVersionError(PluginError):
    """The plugin speaks another major version of an interface."""

    def __init__(self, plugin: str, interface: str, speaks: Version, ours: Version) -> None:
        newer = speaks > ours
        fix = "upgrade fxloom" if newer else f"upgrade the plugin to one written for {interface} {ours.major}.x"
        super().__init__(plugin, f"speaks {interface} {speaks}, this fxloom has {ours}; {fix}")
        self.speaks = speaks
        self.ours = ours


class BackendCompilerFailed(FxloomError):
    """A backend raised while it compiled a graph. `__cause__` is what it raised."""

    def __init__(self, backend: str, cause: BaseException) -> None:
        super().__init__(
            f"backend {backend!r} failed: {type(cause).__name__}: {cause}\n"
            "Run with backend='eager' to see whether capture is at fault, or set suppress_errors=True to run eager instead."
        )
        self.backend = backend


class InternalError(FxloomError):
    """A fault of fxloom's. stage: the layer; node: what it worked on, printed; site: the user's line if known."""

    def __init__(self, stage: str, message: str, *, node: str = "", site: Site | None = None) -> None:
        parts = [f"{stage}: {message}"]
        if node:
            parts.append(f"while treating: {node}")
        if site is not None:
            parts.append(f"from: {site}")
        parts.append("This is a fault of fxloom. FXLOOM_DEBUG=1 writes what is needed to report it; FXLOOM_DISABLE=1 runs eager.")
        super().__init__("\n  ".join(parts))
        self.stage = stage


class IRError(InternalError):
    """A node of an IR is not well formed; raised where it is made."""

    def __init__(self, message: str) -> None:
        super().__init__("ir", message)


class VerificationError(InternalError):
    """A graph breaks a rule of its dialect. Names the node and the rule."""

    def __init__(self, dialect: str, rule: str, node: str, message: str) -> None:
        super().__init__(f"verify {dialect}", f"rule {rule}: {message}", node=node)
        self.dialect = dialect
        self.rule = rule
