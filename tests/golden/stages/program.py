"""The program whose way through the stages lies in the files beside this one; docs/walk.md follows it."""

import torch


def score(x, weight, residual):
    return torch.softmax(x @ weight + residual, dim=-1)


def make_inputs():
    torch.manual_seed(0)
    return torch.randn(4096, 256), torch.randn(256, 512), torch.randn(4096, 512)
