"""Histograms, and losses over alignments."""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.plans import Nest, Plan
from fxloom_shapes.fake.rule_registry import fresh, several, shape_rule

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


@shape_rule(aten._ctc_loss.default)
def ctc_loss(
    device: torch.device, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *rest: Any, **options: Any
) -> Plan | None:
    """The lengths are numbers of the call, so the shape depends on no tensor's values."""
    desc = log_probs.desc
    if len(desc.size) != 3 or device.type != "cpu" or not input_lengths or len(input_lengths) != len(target_lengths):
        return None
    steps, batch, _ = desc.size
    if batch != len(input_lengths) or max(input_lengths) > steps:
        return None
    alpha = (batch, steps, 2 * max(target_lengths) + 1)
    return several(fresh((batch,), desc.dtype, device), fresh(alpha, desc.dtype, device))
