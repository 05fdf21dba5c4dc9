"""What flows back through bags of embeddings, to the table and to the weights of samples, in terms of index and index_put.

Forward, bags are as long as the data says; eager's kernels walk them, and are called (`library_calls` of inductor-core).

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxloom_decomp.axes import number_like, part
from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten
_SUM, _MEAN, _MAX = 0, 1, 2


def _bags(indices: Tensor, offsets: Tensor, bags: Tensor) -> Tensor:
    """The bag of each index; `bags` has them, unless eager's kernel did without."""
    if indices.shape[0] == bags.shape[0]:
        return bags
    count = indices.shape[0]
    if type(offsets.shape[0]) is int:
        line = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
        return torch.bucketize(line, offsets, right=True) - 1
    none = torch.full([count + 1], 0, dtype=torch.int64, device=offsets.device)  # of a search the number of steps has to be known
    begun = aten.index_put.default(none, [offsets], torch.full([], 1, dtype=torch.int64, device=offsets.device), True)
    return torch.cumsum(part(begun, 0, 0, count), 0) - 1


@decomposition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, bag_size: Tensor, maxima: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    if sparse or scale_grad_by_freq or not grad.numel() or not indices.numel():
        return NotImplemented  # eager's kernel for the CPU scales by other frequencies than those of the indices
    wide, width = widen(grad), grad.shape[1]
    total = torch.full([num_weights, width], 0, dtype=wide.dtype, device=grad.device)
    if mode == _MAX:
        full = torch.unsqueeze(bag_size != 0, 1)
        rows = torch.where(full, maxima, number_like(0, maxima))
        columns = torch.arange(width, dtype=torch.int64, device=grad.device)
        share = torch.where(full, wide, number_like(0, wide))
        return cast(aten.index_put.default(total, [cast(rows, torch.int64), columns], share, True), grad.dtype)
    bag = _bags(indices, offsets, bags)
    rows = aten.index.Tensor(wide, [bag])
    if mode == _MEAN:
        rows = rows / torch.unsqueeze(cast(aten.index.Tensor(bag_size, [bag]), wide.dtype), 1)
    if per_sample_weights is not None:
        rows = rows * torch.unsqueeze(cast(per_sample_weights, wide.dtype), 1)
    if padding_idx >= 0:
        rows = torch.where(torch.unsqueeze(indices == padding_idx, 1), number_like(0, rows), rows)
    return cast(aten.index_put.default(total, [indices], rows, True), grad.dtype)


@decomposition(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    if mode != _SUM or not grad.numel() or not indices.numel():
        return NotImplemented
    rows = aten.index.Tensor(widen(grad), [_bags(indices, offsets, bags)])
    shares = torch.sum(rows * aten.index.Tensor(widen(weight), [indices]), [1])
    if padding_idx >= 0:
        shares = torch.where(indices == padding_idx, number_like(0, shares), shares)
    return cast(shares, grad.dtype)
