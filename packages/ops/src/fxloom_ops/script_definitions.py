"""Lines that define fxloom's own operators in scripts that run by themselves.

In: names of operators that a script calls, `fxloom.aten_cdist.default` or `torch.ops.fxloom.aten_cdist`. Out: Python
statements, to stand before the first call. A scalar overload of another library's operator needs that library, which only its user has.
"""

from __future__ import annotations

from collections.abc import Iterable

from fxloom_ops.scalar_overloads import original

_MODULES = {"philox": "philox", "recurrent": "recurrent", "check": "assertions", "choose": "choices"}


def definitions(names: Iterable[str]) -> list[str]:
    """See the module's docstring."""
    lines: dict[str, None] = {}
    for name in names:
        parts = name.removeprefix("torch.ops.").split(".")
        if len(parts) < 2 or parts[0] != "fxloom":
            continue
        module = _MODULES.get(parts[1].partition("_")[0])
        overloaded = original(parts[1].removesuffix("_backward"))
        if overloaded is not None:
            lines["from fxloom_ops.scalar_overloads import scalar_overload"] = None
            lines[f"scalar_overload(torch.ops.{overloaded}, differentiated=False)"] = None
        elif module is not None:
            lines[f"import fxloom_ops.{module}"] = None
    return list(lines)
