"""The written list of operators that stay calls of eager's kernels: operator -> reason.

Where a decomposition or a rule takes some arguments of an operator, the call is what is left for the others. A call is counted
among the library calls, not among the fallbacks. Ratios are eager's time over that of our kernel on the CPU, one thread.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_inductor_core.lowering.registry import library_call, lowering

aten = torch.ops.aten

LIBRARY_CALLS: dict[Any, str] = {}


#: of an order that is data
_POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)


def _call(reason: str, *names: str) -> None:
    for name in names:
        packet, _, overload = name.partition(".")
        if hasattr(aten, packet):  # not every torch has all of them
            LIBRARY_CALLS[getattr(getattr(aten, packet), overload or "default")] = reason


_call(
    "gathers of our own are slower on the CPU (0.3 to 0.7); on GPUs they are kernels, but for float64",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa",
    "grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "affine_grid_generator",
)  # fmt: skip
_call(
    "float64, whose sums are judged by no wider type, and antialiasing to symbolic sizes; all else is kernels",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
    "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward",
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward",
    "upsample_bicubic2d", "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    "_upsample_lanczos2d_aa_backward",
)  # fmt: skip
_call(
    "bags are as long as the data says: eager's kernels walk them, ours would add all rows one by one; backward are kernels, but for"
    " gradients scaled by frequencies, which eager's kernel for the CPU takes of other places than the indices",
    "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward", "_embedding_bag_dense_backward",
    "_embedding_bag_per_sample_weights_backward",
)  # fmt: skip
_call(
    "eager's kernels for the CPU copy rows, ours choose each element (0.3; 0.2); on GPUs they are kernels",
    *(f"{kind}_pad{axes}d" for kind in ("reflection", "replication") for axes in (1, 2, 3)), "diag_embed",
)  # fmt: skip
_call("FFT libraries: MKL's, pocketfft, cuFFT", "_fft_c2c", "_fft_r2c", "_fft_c2r")
_call("as many results as the data says", "nonzero", "nonzero_static", "masked_select")
_call(
    "a recurrence over time steps, of cuDNN or of eager's library",
    "_ctc_loss", "_ctc_loss.Tensor", "_ctc_loss_backward", "_ctc_loss_backward.Tensor",
)  # fmt: skip
_call("a factorization, or made of one (LAPACK, cuSOLVER)", "cholesky_solve", "linalg_pinv.atol_rtol_tensor")
_call("writes into its argument, a few rows of it", "embedding_renorm", "embedding_renorm_")
_call(
    "eager's kernels are off by up to 4e-7 beyond 2 (airy_ai) and 5, in float64 too: ours could be right or equal to it, not both",
    "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
)  # fmt: skip
_call(
    "how many terms or steps an element takes depends on its value; kernels have no such loops",
    "igamma", "igammac", "special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar",
    *(f"special_{name}{overload}" for overload in ("", ".n_scalar", ".x_scalar") for name in _POLYNOMIALS),
)  # fmt: skip
_call(
    "selection and sorting algorithms of eager's library; a kernel of ours would sort whole rows",
    "sort", "sort.stable", "topk", "kthvalue", "median", "median.dim", "nanmedian", "nanmedian.dim", "mode",
    "_unique", "_unique2", "unique_dim", "unique_consecutive",
)  # fmt: skip
_call(
    "bins are found and counted in one pass over the data by each thread, each with bins of its own",
    "histc", "histogram.bin_ct", "histogram.bins_tensor",
    "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors",
)  # fmt: skip
_call("segments are as long as the data says: eager's kernel walks them", "segment_reduce", "_segment_reduce_backward")
_call("on the CPU a copy of block after block takes a third of the time of a kernel; on GPUs it is one", "block_diag")
_call(
    "averages of float64 whose order of sums can't be judged by a wider type, and windows of symbolic size; others are kernels",
    "avg_pool2d_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward",
)  # fmt: skip
_call("its length is in the data", "bincount")
_call("series of as many terms as an element needs", "_standard_gamma_grad", "_dirichlet_grad")
_call("drawn by rejection: how many numbers an element takes is in the numbers", "_standard_gamma", "_sample_dirichlet")
_call("writes among symbolic strides, or into memory with gaps", "as_strided_scatter")
_call("eager fills in runs, ours would search for each position; on GPUs it does, for a known length", "repeat_interleave.Tensor")
_call(
    "half types, of which eager rounds each step, and integers of one or two bytes, whose differences wrap; others are kernels",
    *(f"{name}{ends}" for name in ("linspace", "logspace") for ends in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")),
)  # fmt: skip
_call(
    "float64, whose sums are judged by no wider type, and types that eager refuses; float32 is a kernel, but for distances by the largest"
    " difference and the gradients of euclidean ones on the CPU (0.1 to 0.4)",
    "_cdist_forward", "_cdist_backward", "_euclidean_dist", "renorm", "multi_margin_loss", "multi_margin_loss_backward",
    "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype",
)  # fmt: skip
_call("pairs of rows are numbered along a triangle; eager's kernel walks it", "_pdist_forward", "_pdist_backward")
_call(
    "each row ends at its first -1, and each of its labels is compared with each other class",
    "multilabel_margin_loss_forward", "multilabel_margin_loss_backward",
)  # fmt: skip
_call(
    "an order given apart, numbers and lines of two types; all else is kernels",
    "searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar",
)  # fmt: skip

lowering(*LIBRARY_CALLS)(library_call)
