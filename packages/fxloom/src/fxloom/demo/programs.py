"""The demo's programs: BERT-base, GPT-2 small, ResNet-50 and one of plain Python.

In: device, dtype, and whether it is to be small. Out: a callable with random weights and its inputs. Each program says how many
graphs and breaks capture may need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxloom.demo.resnet import ResNet50, randomize_statistics


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compile. make: (device, dtype, small) -> (callable, inputs), after seeding; small: few layers, for tests.

    graphs: the fewest graphs that the program's meaning allows over the calls of the demo. breaks: likewise.
    """

    name: str
    make: Callable[[torch.device, torch.dtype, bool], tuple[Callable[..., Any], tuple[Any, ...]]]
    graphs: int = 1
    breaks: int = 0


def tokens(device: torch.device, vocabulary: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), device=device)


def bert(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """BERT-base: 12 layers, hidden 768, with an attention mask; batch 4 of 128 tokens, on a GPU 32 of 512."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2 if small else 12)
    model = BertModel(config).eval().to(device, dtype)
    batch, length = (2, 32) if small else (32, 512) if device.type == "cuda" else (4, 128)
    ids = tokens(device, config.vocab_size, batch, length)
    mask = torch.ones(batch, length, dtype=torch.long, device=device)
    mask[1:, -length // 4 :] = 0

    def program(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return program, (ids, mask)


def gpt2(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """GPT-2 small: 12 layers, hidden 768, causal mask, logits over the vocabulary; batch 2 of 256 tokens, on a GPU 16 of 512."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2 if small else 12)
    model = GPT2LMHeadModel(config).eval().to(device, dtype)
    batch, length = (2, 32) if small else (16, 512) if device.type == "cuda" else (2, 256)
    ids = tokens(device, config.vocab_size, batch, length)

    def program(input_ids: Tensor) -> Tensor:
        return model(input_ids=input_ids, use_cache=False).logits

    return program, (ids,)


def resnet(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """ResNet-50, batch norm in eval mode, images of 224 x 224: 4 at a time, on a GPU 128."""
    model = ResNet50().eval()
    randomize_statistics(model)
    model.to(device, dtype)
    batch = 128 if device.type == "cuda" else 4
    images = torch.randn((1, 3, 64, 64) if small else (batch, 3, 224, 224), device=device, dtype=dtype)
    return model, (images,)


def python(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Plain Python: a list of modules, a dict of tensors, a closure, and one `if` that depends on data."""
    width = 64 if small else 512
    layers = [nn.Linear(width, width).eval().to(device, dtype) for _ in range(4)]
    table = {
        "scale": torch.rand(width, device=device, dtype=dtype) + 0.5,
        "shift": torch.randn(width, device=device, dtype=dtype),
    }

    def rescale(h: Tensor) -> Tensor:
        for key, value in table.items():
            h = h * value if key == "scale" else h + value
        return h

    def program(x: Tensor) -> dict[str, Tensor]:
        h = x
        for layer in layers:
            h = torch.nn.functional.gelu(layer(rescale(h)))
        if h.mean() > 0:
            h = torch.softmax(h, dim=-1)
        else:
            h = torch.tanh(h) - 1
        return {"hidden": h, "norm": h.square().sum(-1).sqrt()}

    return program, (torch.randn(256 if small else 1024, width, device=device, dtype=dtype),)


PROGRAMS = (
    Program("BERT-base", bert),
    Program("GPT-2 small", gpt2),
    Program("ResNet-50", resnet),
    # the `if` splits the function: what comes before it, and the branch that is taken
    Program("plain Python", python, graphs=2, breaks=1),
)
