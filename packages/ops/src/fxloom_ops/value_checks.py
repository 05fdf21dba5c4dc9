"""Which operators, of aten and of ours, may raise for the values in their tensors, which shapes and dtypes do not show.

In: an operator, and its result as a fake. Out: whether eager may raise where the fake did not. A graph may drop a call whose
result nobody uses only if it is none of these.
"""

from __future__ import annotations

import torch

#: by name without the `_` of in-place forms
_NAMES = frozenset(
    {
        # positions
        "index", "index_put", "_index_put_impl", "_unsafe_index_put", "index_select", "index_add", "index_copy", "index_fill",
        "index_reduce", "gather", "scatter", "scatter_add", "scatter_reduce", "take", "put", "embedding", "embedding_bag",
        "_embedding_bag", "_embedding_bag_forward_only", "max_unpool2d", "max_unpool3d", "masked_scatter", "repeat_interleave",
        "_pack_padded_sequence", "segment_reduce", "bincount",
        # classes and probabilities
        "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss_forward", "_ctc_loss",
        "binary_cross_entropy", "histc", "histogram", "choose_class",
        # matrices
        "cholesky", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_eigvals", "_linalg_svd", "linalg_lstsq", "linalg_lu_solve",
        "lu_unpack",
    }
)  # fmt: skip
#: of whole numbers: by zero
_DIVISIONS = frozenset({"floor_divide", "remainder", "fmod", "div"})


def may_raise(op: torch._ops.OpOverload, result: object) -> bool:
    """See the module's docstring."""
    if op.namespace not in ("aten", "fxloom"):
        return False
    name = op._schema.name.partition("::")[2].rstrip("_")
    if name in _DIVISIONS:
        return isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())
    return name in _NAMES
