"""torch's `associative_scan` as plain torch calls, for the evaluator to trace.

In: the arguments of the call. Out: the scan of all leaves, nested as they were given. Pairs of neighbours are combined, the half
as long result is scanned, and what lies between is filled in: about twice as many combinations as elements in twice as many steps
as the length has bits (Blelloch, "Prefix sums and their applications", 1990). The grouping of sums differs from a loop's, so
results are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

Leaves = list[torch.Tensor]
Combine = Callable[[Leaves, Leaves], Leaves]


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The inclusive scan of `xs` (tensors of one length in `dim`, nested as one likes) by `combine_fn`, nested as `xs`.

    combine_mode: "pointwise": `combine_fn` works on every element alone and gets whole pieces; "generic": it gets slices
    without `dim`.
    """
    leaves, spec = pytree.tree_flatten(xs)
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(f"Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}")
    if not leaves:
        raise ValueError("Expected at least one xs leaf")
    axis = dim + leaves[0].dim() if dim < 0 else dim
    length = leaves[0].shape[axis]

    def flat(*both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(both) // 2
        result = combine_fn(pytree.tree_unflatten(both[:count], spec), pytree.tree_unflatten(both[count:], spec))
        return tuple(pytree.tree_leaves(result))

    def combine(left: Leaves, right: Leaves) -> Leaves:
        if combine_mode == "pointwise":
            return list(flat(*left, *right))
        return list(torch.func.vmap(flat, in_dims=axis, out_dims=axis)(*left, *right))

    if reverse:
        leaves = [leaf.flip(axis) for leaf in leaves]
    leaves = _scan(combine, leaves, axis, length)
    if reverse:
        leaves = [leaf.flip(axis) for leaf in leaves]
    return pytree.tree_unflatten(leaves, spec)


def _scan(combine: Combine, leaves: Leaves, axis: int, length: int) -> Leaves:
    if length < 2:
        return leaves
    pairs = length // 2
    firsts = [_every_other(leaf, axis, 0) for leaf in leaves]
    seconds = [_every_other(leaf, axis, 1) for leaf in leaves]
    odd = _scan(combine, combine([first.narrow(axis, 0, pairs) for first in firsts], seconds), axis, pairs)
    heads = [first.narrow(axis, 0, 1) for first in firsts]
    between = length - pairs - 1
    if not between:
        even = heads
    else:
        before = [leaf.narrow(axis, 0, between) for leaf in odd]
        inner = combine(before, [first.narrow(axis, 1, between) for first in firsts])
        even = [torch.cat([head, rest], axis) for head, rest in zip(heads, inner, strict=True)]
    return [_interleaved(left, right, axis, pairs) for left, right in zip(even, odd, strict=True)]


def _every_other(tensor: torch.Tensor, axis: int, start: int) -> torch.Tensor:
    return tensor[(slice(None),) * axis + (slice(start, None, 2),)]


def _interleaved(even: torch.Tensor, odd: torch.Tensor, axis: int, pairs: int) -> torch.Tensor:
    """even[0], odd[0], even[1], ...; `even` may have one element more than the `pairs` of `odd`."""
    both = torch.stack([even.narrow(axis, 0, pairs), odd], axis + 1).flatten(axis, axis + 1)
    return both if even.shape[axis] == pairs else torch.cat([both, even.narrow(axis, pairs, 1)], axis)
