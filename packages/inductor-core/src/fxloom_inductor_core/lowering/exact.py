"""Operators whose kernels give eager's results bit by bit, which `numerics="exact"` compiles; all others are eager's own calls.

In: a node of an aten graph. Out: whether a kernel of ours may compute it. The operators are those whose result IEEE 754 determines
(one rounded operation, or none), and what moves, compares and chooses values. `benchmarks/numerics.py` measures them all.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from fxloom_interfaces import meta

_ROUNDED_ONCE = "add sub rsub mul div neg abs reciprocal relu clamp clamp_min clamp_max maximum minimum fmax fmin copysign".split()
_CHOSEN = (
    "where masked_fill eq ne lt le gt ge isnan isinf isfinite isposinf isneginf signbit logical_and logical_or logical_not logical_xor "
    "sign floor ceil trunc round frac nan_to_num threshold leaky_relu hardtanh heaviside nextafter amax amin max min argmax argmin any all"
).split()
_MOVED = (
    "clone copy _to_copy cat stack constant_pad_nd flip roll index gather index_select slice_scatter select_scatter diagonal_scatter "
    "as_strided_scatter embedding tril triu full full_like zeros zeros_like ones ones_like empty empty_like empty_strided "
    "empty_permuted new_empty new_empty_strided new_full new_zeros new_ones arange scalar_tensor repeat fill eye lift_fresh_copy"
).split()
_NAMES = frozenset((*_ROUNDED_ONCE, *_CHOSEN, *_MOVED))
#: Integers are exact everywhere, but for operators whose result is a float; and draws are eager's.
_DRAWS = torch.Tag.nondeterministic_seeded


def is_exact(node: torch.fx.Node) -> bool:
    """Whether kernels give eager's bits: by the operator, or because no floating-point number takes part."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if target.overloadpacket.__name__ in _NAMES:
        return _one_rounding(node, target)
    fakes = tree_leaves([meta.get_fake(part) for part in (node, *node.all_input_nodes) if meta.has_fake(part)])
    floats = any(isinstance(fake, torch.Tensor) and (fake.is_floating_point() or fake.is_complex()) for fake in fakes)
    return not floats and _DRAWS not in target.tags


def _one_rounding(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    """Not a sum with a factor, which eager may round once or twice, nor a quotient with a rounding mode."""
    name = target.overloadpacket.__name__
    if name in ("add", "sub", "rsub"):
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        return isinstance(alpha, (int, float)) and alpha == 1
    return name != "div" or len(node.args) + len(node.kwargs) == 2
