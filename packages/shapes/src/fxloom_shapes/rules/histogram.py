"""Histograms of one and more dimensions.

In: the device and the arguments, with the number of bins or their edges. Out: a plan: new contiguous tensors of counts and edges, or
None to decline.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.plans import Nest, Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


@shape_rule(aten.histogram.bin_ct)
def histogram_by_count(device: torch.device, x: Any, bins: int = 100, **options: Any) -> Plan | None:
    return several(fresh((bins,), x.desc.dtype, device), fresh((bins + 1,), x.desc.dtype, device)) if bins > 0 else None


@shape_rule(aten.histogram.bins_tensor)
def histogram_by_edges(device: torch.device, x: Any, bins: Any, **options: Any) -> Plan | None:
    edges = bins.desc
    if len(edges.size) != 1 or edges.dtype != x.desc.dtype or edges.size[0] < 2:
        return None
    return several(fresh((edges.size[0] - 1,), edges.dtype, device), fresh(edges.size, edges.dtype, device))


@shape_rule(aten._histogramdd_bin_edges.default)
def histogramdd_edges(device: torch.device, x: Any, bins: Any, **options: Any) -> Plan | None:
    if len(x.desc.size) < 2 or x.desc.size[-1] != len(bins) or any(count < 1 for count in bins):
        return None
    return Nest(tuple(fresh((count + 1,), x.desc.dtype, device) for count in bins), list)


@shape_rule(aten._histogramdd_from_bin_cts.default)
def histogramdd_by_counts(device: torch.device, x: Any, bins: Any, **options: Any) -> Plan | None:
    if len(x.desc.size) < 2 or x.desc.size[-1] != len(bins) or any(count < 1 for count in bins):
        return None
    return fresh(tuple(bins), x.desc.dtype, device)


@shape_rule(aten._histogramdd_from_bin_tensors.default)
def histogramdd_by_edges(device: torch.device, x: Any, bins: Any, **options: Any) -> Plan | None:
    if len(x.desc.size) < 2 or x.desc.size[-1] != len(bins) or any(len(edges.desc.size) != 1 for edges in bins):
        return None
    return fresh(tuple(edges.desc.size[0] - 1 for edges in bins), x.desc.dtype, device)
