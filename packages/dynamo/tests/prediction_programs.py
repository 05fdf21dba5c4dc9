"""Programs that raise, or not, by the values of their tensors. Not in a test's file, whose `assert`s pytest rewrites."""

from __future__ import annotations

import torch


def compares_item(x: torch.Tensor, limit: int) -> torch.Tensor:
    assert x.max().item() <= limit, f"{x.max()} is above {limit}"
    return x + 1


def raises_if(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if torch.isnan(y).any():
        raise FloatingPointError(f"{int(torch.isnan(y).sum())} nan")
    return y * 2


def two_conditions(x: torch.Tensor) -> torch.Tensor:
    assert x.isnan().sum() == 0 and x.min() >= 0
    return x.sqrt()


def dropout_before(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.dropout(x)
    assert (x >= 0).all(), "negative"
    return y + torch.rand(4)


def conversions(x: torch.Tensor) -> torch.Tensor:
    assert float(x.min()) > -5
    assert bool((x < 9).all())
    assert 9 > int(x.long().max())
    assert torch.equal(x, x.clone()) and torch.allclose(x, x)
    torch._assert(x.sum() > -20, "small")
    return x + 1


def equals_item(x: torch.Tensor, limit: float) -> torch.Tensor:
    assert x.item() == limit
    return x + 1


def catches(log: list[str], x: torch.Tensor) -> torch.Tensor:
    log.append("before")
    try:
        assert (x > 0).all()
    except AssertionError:
        log.append("caught")
        return x - 1
    log.append("after")
    return x + 1


def writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    assert x.max() < 9
    return x.mul_(2)
