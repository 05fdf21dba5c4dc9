"""A graph that gives a loss and other results does in a training step what eager does, and does it once.

Where only the loss is differentiated, no call of a library runs more often than in eager, each of the graph's stages runs the backward
graph that was compiled for it, and what is kept and allocated is what the loss alone would need.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxloom
from fxloom.demo.memory import kept_bytes
from fxloom_aot.runtime import backward_graphs

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from training import peak_bytes

Made = tuple[nn.Module, dict[str, Tensor]]
#: operators that count as one kind: a compiler may add a bias or choose a batch of one by itself
KINDS = {
    "aten::mm": "product", "aten::addmm": "product", "aten::bmm": "product", "aten::baddbmm": "product", "aten::mkldnn_linear": "product",
    "aten::convolution": "convolution", "aten::convolution_backward": "convolution backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention backward",
}  # fmt: skip


class VAE(nn.Module):
    """The loss is made of the picture and of what the encoder gave, past the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 4, 4, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.moments, self.enter = nn.Linear(128, 8), nn.Linear(4, 128)
        self.decode = nn.Sequential(
            nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.moments(self.encode(x)).chunk(2, -1)
        made = self.decode(self.enter(mean + torch.exp(0.5 * log_variance) * noise))
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return {"loss": F.mse_loss(made, x) + 1e-3 * divergence, "made": made}


def vae() -> Made:
    return VAE(), {"x": torch.rand(2, 3, 16, 16), "noise": torch.randn(2, 4)}


def tokens() -> dict[str, Tensor]:
    ids = torch.randint(0, 96, (2, 8))
    return {"input_ids": ids, "labels": ids}


def llama() -> Made:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    return transformers.LlamaForCausalLM(config), tokens()


def gpt2() -> Made:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), tokens()


def bert() -> Made:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config), {**tokens(), "labels": torch.tensor([0, 1])}


def t5() -> Made:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0, decoder_start_token_id=0, pad_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), tokens()


def stepping(run: Callable[..., Any], model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(**inputs)["loss"].backward()

    return step


def work(step: Callable[[], None]) -> Counter[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    return Counter(KINDS[event.name] for event in profile.events() if event.name in KINDS)


def nodes_of(loss: Tensor) -> int:
    """How many nodes of autograd are behind it, leaves aside."""
    seen: set[Any] = set()
    todo: list[Any] = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            todo += [below for below, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize(
    ("make", "nodes", "backend"),
    [
        (vae, 2, "aot_eager"), (llama, 4, "aot_eager"), (gpt2, 4, "aot_eager"), (bert, 2, "aot_eager"), (t5, 5, "aot_eager"),
        (vae, 2, "inductor"), (llama, 4, "inductor"),
        *[pytest.param(make, nodes, "inductor", marks=pytest.mark.slow) for make, nodes in [(gpt2, 4), (bert, 2), (t5, 5)]],
    ],
)  # fmt: skip
def test_a_step_does_what_eagers_does(
    make: Callable[[], Made], nodes: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node for each layer whose keys and values are given, and one for the loss."""
    fxloom.reset()
    torch.manual_seed(0)
    model, inputs = make()
    others: list[Any] = []
    compile_one = backward_graphs.Variants._made
    monkeypatch.setattr(backward_graphs.Variants, "_made", lambda self, given: (others.append(given), compile_one(self, given))[1])
    compiled = fxloom.compile(model, backend=backend)
    eager, step = stepping(model, model, inputs), stepping(compiled, model, inputs)
    step()
    assert fxloom.stats().graphs == 1
    step()  # some models write to their configuration at the first call
    mine = [p.grad for p in model.parameters()]
    assert not others, "a backward graph was compiled that could have been expected"
    counted = work(step)
    eager()
    torch.testing.assert_close(mine, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)
    assert counted == work(eager)
    assert nodes_of(compiled(**inputs)["loss"]) == nodes


def test_other_results_cost_no_memory_but_their_own() -> None:
    fxloom.reset()
    torch.manual_seed(0)
    model, inputs = vae()
    both, alone = fxloom.compile(model), fxloom.compile(lambda **given: {"loss": model(**given)["loss"]})
    kept, peaks = [], []
    for run in (both, alone):
        step = stepping(run, model, inputs)
        step()
        gc.collect()
        kept.append(kept_bytes(model, lambda run=run: run(**inputs)["loss"]))
        peaks.append(min(peak_bytes(step) for _ in range(3)))  # only a later one knows the sizes of all that is freed in it
    shown = both(**inputs)["made"].nbytes
    assert kept[0] <= kept[1]
    assert peaks[0] <= peaks[1] + 1.25 * shown
