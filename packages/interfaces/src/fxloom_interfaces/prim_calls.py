"""What graphs of prims hold beside prims: calls of operators that are not written in prims, each with the reason.

A back end either has a library for a call or hands it to eager torch. `call_reason` says whether an operator may be called, and why;
the list is closed, but for operators that are not torch's and for types of elements that no prim takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fxloom_interfaces.prims import ANY

#: "namespace.name" of an operator (all of its overloads) -> reason
CALLS: dict[str, str] = {}


def _call(reason: str, names: str) -> None:
    for name in names.split():
        CALLS[name if "." in name else f"aten.{name}"] = reason


_call(
    "Fourier transforms: results are complex numbers, and the algorithms are a library's",
    "_fft_r2c _fft_c2r _fft_c2c",
)
_call(
    "factorizations and solvers of linear algebra: a library's algorithms",
    "_cholesky_solve_helper cholesky_solve cholesky cholesky_inverse geqrf ormqr lu_unpack triangular_solve"
    " _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd linalg_cholesky_ex linalg_eig"
    " linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu"
    " linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular",
)
_call(
    "fused attention: a library's kernels, whose results include what their own backward pass reads",
    " ".join(
        f"_scaled_dot_product_{kind}{end}"
        for kind in ("cudnn_attention", "efficient_attention", "flash_attention", "flash_attention_for_cpu", "fused_attention_overrideable")
        for end in ("", "_backward")
    ),
)
_call("gradients of a convolution: one call of a library gives all three", "convolution_backward")
_call("recurrent layers and losses along alignments: loops over time that no prim has", "_thnn_fused_lstm_cell _thnn_fused_gru_cell _ctc_loss _ctc_loss_backward")  # noqa: E501  # one name list
_call(
    "selection by eager's own algorithms: which of equal elements is chosen is part of the result",
    "topk kthvalue median nanmedian mode",
)
_call(
    "the size of the result, or a number, is read from the data",
    "nonzero nonzero_static masked_select _local_scalar_dense bincount repeat_interleave _unique _unique2 unique_dim unique_consecutive",
)
_call(
    "with boolean masks: how many elements they choose is in the data",
    "index _index_put_impl index_put _unsafe_index _unsafe_index_put",
)
_call(
    "bins are found and counted in one pass over the data",
    "histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
)
_call(
    "segments and bags are as long as the data says",
    "segment_reduce _segment_reduce_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_backward"
    " _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward",
)
_call("draws from distributions by rejection or without replacement", "multinomial poisson binomial randperm _standard_gamma _sample_dirichlet fxloom.choose_class")  # noqa: E501  # one name list
_call("the program's own generator: draws that a saved state repeats", "fxloom.philox_uniform fxloom.philox_normal fxloom.philox_integers fxloom.philox_seeds")  # noqa: E501  # one name list
_call("recurrent layers of a library, forward and backward", "fxloom.recurrent fxloom.recurrent_backward")
_call("checks of the program: nothing is computed, and a failed one raises", "_assert_async _assert_scalar _assert_tensor_metadata fxloom.check _linalg_check_errors sym_constrain_range sym_constrain_range_for_size")  # noqa: E501  # one name list


_call("gradients of draws: series whose length depends on the element", "_standard_gamma_grad _dirichlet_grad")
_call("rows of a table that are written where a bag or a batch names them", "embedding_renorm")
_call("pairs of rows are numbered along a triangle, labels end where the data says", "_pdist_forward _pdist_backward multilabel_margin_loss_forward multilabel_margin_loss_backward")  # noqa: E501  # one name list
_call(
    "where a formula declines the arguments: means, distances and losses of nothing, lines in half types whose every step eager rounds,"
    " padding that also cuts",
    "linspace logspace multi_margin_loss multi_margin_loss_backward _batch_norm_with_update_functional _batch_norm_no_update"
    " batch_norm_backward _native_batch_norm_legit_functional native_batch_norm native_batch_norm_backward"
    " native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _cdist_forward _cdist_backward"
    " _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    " reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
    " replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
)
_call(
    "of images of bytes: eager's kernels weigh them in fixed point",
    "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
)
_call("windows that draws place", "fractional_max_pool2d fractional_max_pool3d")


def documentation() -> str:
    """The list as Markdown, by reason."""
    lines = [f"## The {len(CALLS)} calls beside prims", "", "| why no prims | operators |", "|---|---|"]
    for reason in dict.fromkeys(CALLS.values()):
        names = ", ".join(f"`{name}`" for name, known in CALLS.items() if known == reason)
        lines.append(f"| {reason} | {names} |")
    lines += [
        "| an operator of a library beside torch | those of other namespaces than `aten`, `prims` and `fxloom` |",
        "| complex numbers and other elements that no prim takes | any, where an operand or a result has such elements |",
        "| an operator whose plain numbers are known when the graph runs | `fxloom.aten_NAME`, for any operator of ATen |",
        "| carries graphs of its own, which are graphs of prims | `cond` and its like |",
    ]
    return "\n".join(lines) + "\n"


def call_reason(target: Any, values: Iterable[Any]) -> str | None:
    """Why a graph of prims may call the operator `target`; None: it may not. values: fakes of operands and results."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "carries graphs of its own, which are graphs of prims"
    if not isinstance(target, torch._ops.OpOverload):
        return None
    reason = CALLS.get(f"{target.namespace}.{target.overloadpacket.__name__}")
    if reason is not None:
        return reason
    if target.namespace == "fxloom" and target.overloadpacket.__name__.startswith("aten_"):
        return "an operator whose plain numbers are known when the graph runs"
    if target.namespace not in ("aten", "prims", "fxloom"):
        return "an operator of a library beside torch"
    if any(isinstance(value, torch.Tensor) and value.dtype not in ANY for value in values):
        return "complex numbers and other elements that no prim takes"
    return None
