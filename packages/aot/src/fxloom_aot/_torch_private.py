"""Every private torch name that this package uses. A new torch release is this file's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "TorchDispatchMode",
    "any_autocast",
    "autocast_devices",
    "batch_level",
    "below_autograd",
    "current_autograd_name",
    "current_autograd_number",
    "current_pass",
    "disable_torch_dispatch",
    "in_dual_level",
    "is_plain_backward",
    "next_autograd_number",
    "no_autocast",
    "pass_keeps_graph",
    "plain_batch_norm",
    "rebatched",
    "run_autograd_engine",
    "saved_without_check",
    "set_grad_enabled",
    "transforms_active",
    "unbatched",
    "version_kept",
]

#: context manager: below, operators go past autograd and its bookkeeping of views, which insists that a view is a new tensor
below_autograd = torch._C._AutoDispatchBelowADInplaceOrView

#: context manager: below, changing the tensor in place doesn't count as a new version of it, which autograd would refuse
version_kept = _unsafe_preserve_version_counter

#: sets grad mode at once; the public name is an object with more to it
set_grad_enabled = torch._C._set_grad_enabled

#: whether the running backward pass is of the kind that a reentrant checkpoint can be part of
is_plain_backward = torch.autograd._is_checkpoint_valid

#: whether autocast is on for some type of device; faster than asking for each
any_autocast = torch._C._is_any_autocast_enabled

#: names of the device types that have autocast; a device of a plugin by the name that it gave itself
autocast_devices = torch._C._autocast_supported_devices

#: number of the running backward pass
current_pass = torch._C._current_graph_task_id

#: whether nodes keep what they saved after the running backward pass (`retain_graph`)
pass_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

#: context manager: below, operators go past autocast; its state stays
no_autocast = torch._C._DisableAutocast

#: whether a transform of `torch.func` is at work, so that tensors may stand for many
transforms_active = torch._C._are_functorch_transforms_active


def in_dual_level() -> bool:
    """Whether tensors may carry tangents of forward-mode differentiation."""
    return forward_ad._current_level >= 0


#: context manager: below, neither dispatch modes nor tensor subclasses see operators
disable_torch_dispatch = torch._C._DisableTorchDispatch


@contextmanager
def plain_batch_norm() -> Iterator[None]:
    """Within, `batch_norm` and RNNs take ATen's own operators whatever the device, not cuDNN's.

    cuDNN's write their running statistics without saying so in the schema.
    """
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)


def saved_without_check(ctx: Any) -> list[torch.Tensor] | None:
    """What a Python function saved, written over or not; None where this torch doesn't tell, or hooks packed it."""
    saved = ctx._raw_saved_tensors
    if not all(hasattr(item, "data") for item in saved):
        return None
    try:
        return [item.data for item in saved]
    except RuntimeError:
        return None


def run_autograd_engine(roots: Sequence[Any], gradients: Sequence[torch.Tensor], ends: Sequence[Any]) -> Sequence[Any]:
    """The gradients of `ends`, or None; roots, ends: tensors or edges. Nothing is freed.

    `torch.autograd.grad` would compare the shape of what is behind an edge, which it can't where sizes are symbolic.
    """
    keep_graph, create_graph, allow_unused = True, False, True
    run = torch.autograd.graph._engine_run_backward
    return run(tuple(roots), tuple(gradients), keep_graph, create_graph, tuple(ends), allow_unused, accumulate_grad=False)


#: more levels of `is_grads_batched` than anybody nests
_MOST_LEVELS = 8


def batch_level(gradients: Sequence[torch.Tensor | None]) -> int:
    """How many nested `is_grads_batched` the running backward pass is part of; its gradients stand for many at that level."""
    level = int(torch._C._vmapmode_increment_nesting()) - 1
    torch._C._vmapmode_decrement_nesting()
    if level:
        return level
    # autograd's own thread for a device does not know how deep the caller is nested
    stands_for_many = torch._C._functorch.is_legacy_batchedtensor
    for gradient in gradients:
        if gradient is not None and stands_for_many(gradient):
            return next(level for level in range(1, _MOST_LEVELS) if not stands_for_many(unbatched(gradient, level)))
    return 0


def unbatched(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """What a tensor stands for at a level, stacked; one row where it is a single one."""
    return torch._remove_batch_dim(tensor, level, 1, 0)  # type: ignore[no-any-return]  # a tensor


def rebatched(rows: torch.Tensor, level: int) -> torch.Tensor:
    """The tensor that stands for `rows` at a level."""
    return torch._add_batch_dim(rows, 0, level)  # type: ignore[no-any-return]  # a tensor


def next_autograd_number() -> int:
    """The sequence number that the next recorded autograd node of this thread gets."""
    return int(torch._C._autograd._get_sequence_nr())


def current_autograd_name() -> str:
    """What the engine is running in this thread (`MmBackward0`); empty for nothing."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def current_autograd_number() -> int | None:
    """Sequence number of the autograd node that the engine is running in this thread."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
