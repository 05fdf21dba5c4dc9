"""Factorizations and solvers: a list of operators that are library calls of eager's kernels, which are LAPACK's or the device's."""

from __future__ import annotations

import torch

from fxloom_inductor_core.lowering.registry import library_call, lowering

aten = torch.ops.aten

_NAMES = (
    "_linalg_det",
    "_linalg_eigh",
    "_linalg_eigvals",
    "_linalg_slogdet",
    "_linalg_solve_ex",
    "_linalg_svd",
    "linalg_cholesky_ex",
    "linalg_eig",
    "linalg_householder_product",
    "linalg_inv_ex",
    "linalg_ldl_factor_ex",
    "linalg_ldl_solve",
    "linalg_lstsq",
    "linalg_lu",
    "linalg_lu_factor_ex",
    "linalg_lu_solve",
    "linalg_matrix_exp",
    "linalg_qr",
    "linalg_solve_triangular",
    "cholesky",
    "cholesky_inverse",
    "_cholesky_solve_helper",
    "geqrf",
    "lu_unpack",
    "ormqr",
    "triangular_solve",
)

lowering(*(getattr(aten, name).default for name in _NAMES if "default" in getattr(aten, name).overloads()))(library_call)
