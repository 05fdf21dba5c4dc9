"""Compiled graph. `call(inputs)` returns the outputs; it empties the list to free inputs early."""

import math

import torch
from torch import as_strided, empty_strided

cpu = torch.device("cpu")


def with_strides(tensor, stride):
    """`tensor` itself where it has these strides, as libraries usually give them; a copy that has them otherwise."""
    if tensor is None or tensor.stride() == tuple(stride):  # None: not asked for, as attention's log-sum-exp in inference
        return tensor
    if tensor.dim() != len(stride) and tensor.numel() == 0:  # not asked for either, as places in what `unique` is given
        return tensor
    return empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def move_numbers(numbers, device):
    """Tensors without axes on another device, by one copy for each dtype; as far from one another as kernels like addresses to be."""
    moved = {}
    for dtype in {number.dtype: None for number in numbers}:
        stacked = torch.stack([number for number in numbers if number.dtype == dtype])
        spaced = empty_strided(stacked.size(), (max(16 // stacked.element_size(), 1),), dtype=dtype, device=device)
        moved[dtype] = iter(spaced.copy_(stacked).unbind())
    return [next(moved[number.dtype]) for number in numbers]


def check_sizes(tensor, size, op):
    """Raise unless a result has the size that the program asserts of it, in what follows or in so many words."""
    if list(tensor.shape) != size:
        raise RuntimeError(f"the result of {op} has size {list(tensor.shape)}, the program asserts {size}")


def check(truth, message, error=RuntimeError, *numbers):
    """Raise unless what the program asserts of its numbers holds."""
    if not truth:
        raise error(message.format(*numbers) if numbers else message)


def call(inputs):
    arg0, arg1, arg2 = inputs
    inputs.clear()
    buf0 = empty_strided((4096, 512), (512, 1), dtype=torch.float32, device=cpu)
    torch.mm(arg0, arg1, out=buf0)
    buf5 = buf0  # f32[4096, 512], reuses memory
    fused_add_amax_sub_exp_sum_div_0(buf0.data_ptr(), arg2.data_ptr(), buf5.data_ptr())
    return [buf5]
