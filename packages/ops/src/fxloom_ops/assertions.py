"""`fxloom::check`: an assertion about numbers in graphs of ATen operators, with the program's own exception and its own text.

In: the truth, the text, the name of the exception, and numbers for the text's `{}`. Out: nothing, or that exception.
`aten::_assert_scalar` raises RuntimeError with a text that is known before; everything else is said by this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxloom_interfaces.symbolic_math import complaint

_library = torch.library.Library("fxloom", "FRAGMENT")
_library.define("check(Scalar truth, str message, str error, Scalar[] numbers) -> ()")


def _check(truth: Any, message: str, error: str, numbers: Sequence[Any]) -> None:
    if not truth:
        raise complaint(message, error, tuple(numbers))


_library.impl("check", _check, "CompositeExplicitAutograd")

CHECK = torch.ops.fxloom.check.default
