"""`fxloom::choose_class`: the score of each target's class, as losses pick it.

In: `aten::gather`'s operands. Out: its result. Invariant: an index out of range, a negative one among them, raises IndexError, as losses
do, where `gather` raises RuntimeError.
"""

from __future__ import annotations

import torch
from torch import Tensor

_library = torch.library.Library("fxloom", "FRAGMENT")
_library.define("choose_class(Tensor x, int dim, Tensor index) -> Tensor")


def _choose(x: Tensor, dim: int, index: Tensor) -> Tensor:
    try:
        return torch.gather(x, dim, index)
    except RuntimeError as error:
        raise IndexError(f"Target is out of bounds: {error}") from None


_library.impl("choose_class", _choose, "CompositeExplicitAutograd")


@torch.library.register_fake("fxloom::choose_class", lib=_library)
def _fake(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.empty(index.shape, dtype=x.dtype, device=x.device)


CHOOSE_CLASS = torch.ops.fxloom.choose_class.default
