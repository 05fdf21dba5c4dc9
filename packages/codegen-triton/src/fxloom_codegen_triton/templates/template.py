"""What a template is: a Triton kernel written by hand for a whole operator, with places to fill in.

In, when a graph is lowered: the parameters that the lowering gives. Out: a `KernelSource`; and, when it is built, its callable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fxloom_interfaces.codegen import KernelSource


@dataclass(frozen=True, slots=True)
class Template:
    """render(name, parameters): the source of function `name`; its `details` hold the helpers that it uses.

    launcher(module, source): the callable, which takes the operands and `out=`, once `module` holds the source.
    """

    render: Callable[[str, Mapping[str, Any]], KernelSource]
    launcher: Callable[[ModuleType, KernelSource], Callable[..., None]]
