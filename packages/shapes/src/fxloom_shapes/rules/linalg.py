"""Shape rules of LAPACK's factorizations and solvers, which give matrices back column-major.

In: the device and the operator's arguments. Out: a plan of new tensors, or None to decline, as for most devices other than the
CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import contiguous_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


def columns(size: Any, dtype: torch.dtype, device: torch.device) -> Plan:
    """New matrices, column-major, contiguous over the axes before."""
    *batch, rows, cols = size
    *steps, col_step, row_step = contiguous_stride((*batch, cols, rows))
    return fresh(size, dtype, device, (*steps, row_step, col_step))


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


@shape_rule(aten._linalg_svd.default)
def linalg_svd(
    device: torch.device, a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Plan | None:
    desc = a.desc
    if device.type != "cpu" or len(desc.size) < 2 or driver is not None:
        return None
    *batch, rows, cols = desc.size
    rank = torch.sym_min(rows, cols)
    values = fresh((*batch, rank), _real(desc.dtype), device)
    if not compute_uv:
        return several(fresh((0,), desc.dtype, device), values, fresh((0,), desc.dtype, device))
    u = columns((*batch, rows, rows if full_matrices else rank), desc.dtype, device)
    vh = columns((*batch, cols if full_matrices else rank, cols), desc.dtype, device)
    return several(u, values, vh)


@shape_rule(aten.linalg_eig.default)
def linalg_eig(device: torch.device, a: Any) -> Plan | None:
    desc = a.desc
    if device.type != "cpu" or len(desc.size) < 2 or desc.size[-1] != desc.size[-2] or not desc.dtype.is_floating_point:
        return None
    dtype = desc.dtype.to_complex()
    return several(fresh(desc.size[:-1], dtype, device), columns(desc.size, dtype, device))


@shape_rule(aten.geqrf.default)
def geqrf(device: torch.device, a: Any) -> Plan | None:
    desc = a.desc
    if len(desc.size) < 2 or not (desc.dtype.is_floating_point or desc.dtype.is_complex):
        return None
    *batch, rows, cols = desc.size
    return several(columns(desc.size, desc.dtype, device), fresh((*batch, torch.sym_min(rows, cols)), desc.dtype, device))


@shape_rule(aten.linalg_lstsq.default)
def linalg_lstsq(device: torch.device, a: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Plan | None:
    """Declines where there are residuals: whether they are computed depends on the rank, a value."""
    x, y = a.desc, b.desc
    driver = driver or "gelsy"
    if device.type != "cpu" or len(x.size) < 2 or len(x.size) != len(y.size) or x.size[:-1] != y.size[:-1] or x.dtype != y.dtype:
        return None
    *batch, rows, cols = x.size
    if rows == 0 or cols == 0 or (rows > cols and driver != "gelsy"):
        return None
    long = torch.sym_max(rows, cols)
    *steps, row_step, col_step = contiguous_stride((*batch, y.size[-1], long))
    solution = fresh((*batch, cols, y.size[-1]), x.dtype, device, (*steps, col_step, row_step))
    nothing = fresh((0,), x.dtype, device)
    rank = fresh((0,) if driver == "gels" else batch, torch.int64, device)
    by_values = driver in ("gelsd", "gelss")
    values = fresh((*batch, torch.sym_min(rows, cols)), _real(x.dtype), device) if by_values else nothing
    return several(solution, nothing, rank, values)
