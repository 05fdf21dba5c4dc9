"""Checks of sizes that eager's kernels make and that neither shape rules nor Meta kernels do.

In: a call on fakes that has a plan. Out: nothing, or eager's exception. Invariant: what is compared is guarded, or checked when the
graph runs where it is known only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_ops.schema import Op
from fxloom_shapes.fake.descriptor import Sizes
from fxloom_shapes.fake.sizes import assume_equal, broadcast

_INTEGERS = (torch.int64, torch.int32)
_MASKS = (torch.bool, torch.uint8)


def check_sizes(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager's kernel raises for tensors of such sizes."""
    check = _CHECKS.get(op._schema.name.rstrip("_"))
    if check is not None:
        names = [argument.name for argument in op._schema.arguments]
        check(**dict(zip(names, args)) | kwargs)


def _same(a: Sizes, b: Sizes) -> bool:
    return len(a) == len(b) and all(map(assume_equal, a, b))


def _index_put(self: Any, indices: Any, values: Any, **rest: Any) -> None:
    size = self.desc.size
    kept: list[int] = []  # axes that no index covers
    numbers: list[Sizes] = []
    covered: list[int] = []
    masked = False
    axis = 0
    for item in indices:
        if item is None:
            kept.append(axis)
            axis += 1
            continue
        picks, dtype = item.desc.size, item.desc.dtype
        if dtype in _MASKS:
            for number, extent in enumerate(picks):
                if axis + number >= len(size) or not assume_equal(extent, size[axis + number]):
                    raise IndexError(
                        f"The shape of the mask {list(picks)} at index {number} does not match "
                        f"the shape of the indexed tensor {list(size)} at index {axis + number}"
                    )
            masked = True
            width = len(picks)
        elif dtype in _INTEGERS:
            numbers.append(picks)
            width = 1
        else:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        covered += range(axis, axis + width)
        axis += width
    kept += range(axis, len(size))
    picked = broadcast(*numbers)
    if picked is None or not covered or axis > len(size):
        return  # Meta kernels say so
    given = values.desc.size
    after = [size[other] for other in kept if other > covered[0]] if _together(covered) else [size[other] for other in kept]
    before = [size[other] for other in kept if other < covered[0]] if _together(covered) else []
    rank = max(len(picked), 1) if masked else len(picked)
    # how many elements a mask picks is not known: whatever the values have fits
    first = len(given) - len(after) - rank
    places = [given[n] if 0 <= n < len(given) else 1 for n in range(first, first + rank)] if masked else list(picked)
    result = (*before, *places, *after)
    if not _broadcasts_to(given, result):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing result of shape {list(result)}"
        )


def _together(axes: list[int]) -> bool:
    return axes == list(range(axes[0], axes[0] + len(axes)))


def _broadcasts_to(given: Sizes, size: Sizes) -> bool:
    whole = broadcast(size, given) if len(given) <= len(size) else None
    return whole is not None and _same(whole, size)


def _index_add(self: Any, dim: int, index: Any, source: Any, **rest: Any) -> None:
    """Also of `index_reduce`."""
    a, b = self.desc.size, source.desc.size
    if len(a) != len(b) or len(a) < 2:
        return  # Meta kernels say so
    axis = dim % len(a)
    if not _same((*a[:axis], *a[axis + 1 :]), (*b[:axis], *b[axis + 1 :])):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(a)} source.shape = {list(b)}"
        )


def _nll_loss2d(self: Any, target: Any, **rest: Any) -> None:
    a, b = self.desc.size, target.desc.size
    if len(a) == 4 and len(b) == 3 and not _same((a[0], *a[2:]), b):
        raise RuntimeError(f"size mismatch (got input: {list(a)} , target: {list(b)}")


_CHECKS: dict[str, Callable[..., None]] = {
    "aten::index_put": _index_put, "aten::_index_put_impl": _index_put,
    "aten::index_add": _index_add, "aten::index_reduce": _index_add,
    "aten::nll_loss2d_forward": _nll_loss2d,
}  # fmt: skip
