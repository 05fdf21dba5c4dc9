"""Models trained through the whole stack: the loss and every gradient as near to float64 as eager's, in one graph each way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxloom
from fxloom.demo.accuracy import compare
from fxloom.demo.memory import kept_bytes
from fxloom.demo.resnet import ResNet50

Step = Callable[..., Tensor]


def bert() -> tuple[nn.Module, Step, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=96, num_attention_heads=4, intermediate_size=160, vocab_size=211, pad_token_id=0
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    ids = torch.randint(0, 211, (2, 24))
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1:, -6:] = 0

    def step(model: nn.Module, input_ids: Tensor, attention_mask: Tensor, target: Tensor) -> Tensor:
        hidden = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return nn.functional.mse_loss(hidden, target)

    return transformers.BertModel(config, add_pooling_layer=False), step, (ids, mask, torch.randn(2, 24, 96))


def gpt2() -> tuple[nn.Module, Step, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=96, n_head=4, vocab_size=211, n_positions=64, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    ids = torch.randint(0, 211, (2, 24))

    def step(model: nn.Module, input_ids: Tensor) -> Tensor:
        logits = model(input_ids=input_ids, use_cache=False).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())

    return transformers.GPT2LMHeadModel(config), step, (ids,)


def resnet(whole: bool = False) -> tuple[nn.Module, Step, tuple[Any, ...]]:
    def step(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(images), labels)

    model = ResNet50(classes=10)
    if not whole:
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            setattr(model, stage, getattr(model, stage)[:1])
    return model, step, (torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,)))


def trained(model: nn.Module, step: Step, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
    """Loss, gradients and buffers after one step forward and backward."""
    loss = step(model, *inputs)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients, **{name: b.detach().clone() for name, b in model.named_buffers()}}


def widened(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(i.double() if i.is_floating_point() else i for i in inputs)


@pytest.mark.parametrize("make", [bert, gpt2, resnet])
def test_gradients_are_as_near_to_float64_as_eagers(make: Callable[[], tuple[nn.Module, Step, tuple[Any, ...]]]) -> None:
    torch.manual_seed(0)
    model, step, inputs = make()
    model.train()
    other, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    fxloom.reset()
    mine = trained(model, fxloom.compile(step), inputs)
    theirs = trained(other, step, inputs)
    exact = trained(wide, step, widened(inputs))
    assert list(mine) == list(theirs)
    checks = {name: compare(mine[name], theirs[name], exact[name]) for name in mine}
    assert not {name: check.reason for name, check in checks.items() if not check.correct}
    counts = fxloom.stats()
    assert (counts.graphs, counts.graph_breaks) == (1, 0), counts.break_reasons
    assert not counts.fallbacks
    assert counts.kernels.total() > 0


@pytest.mark.parametrize("make", [bert, gpt2, resnet])
def test_keeps_fewer_bytes_than_eager(make: Callable[[], tuple[nn.Module, Step, tuple[Any, ...]]]) -> None:
    torch.manual_seed(0)
    model, step, inputs = make()
    model.train()
    theirs = kept_bytes(model, lambda: step(model, *inputs))
    fxloom.reset()
    compiled = fxloom.compile(step)
    mine = kept_bytes(model, lambda: compiled(model, *inputs))
    assert fxloom.stats().graphs == 1
    assert 0 < mine < 0.75 * theirs


@pytest.mark.slow
def test_resnet50_in_float64() -> None:
    """Whole, where float32 says little: a sign that differs at one ReLU changes gradients by percents."""
    torch.manual_seed(0)
    model, step, inputs = resnet(whole=True)
    model.double().train()
    other = copy.deepcopy(model)
    mine, theirs = trained(model, fxloom.compile(step), widened(inputs)), trained(other, step, widened(inputs))
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-7, atol=1e-9 * float(theirs[name].abs().max()), msg=name)


def test_a_loss_that_is_no_number_has_such_a_gradient():
    """NaN goes on through the gradients of all losses with a bend but `l1_loss`, whose sign of it is zero."""
    for name in ("smooth_l1_loss", "huber_loss", "mse_loss", "l1_loss"):
        loss = getattr(torch.nn.functional, name)
        gradients = []
        for run in (loss, fxloom.compile(loss)):
            x = torch.tensor([float("nan"), 1.0, float("inf"), -0.5], requires_grad=True)
            run(x, torch.zeros(4)).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True, rtol=1e-6, atol=0)
