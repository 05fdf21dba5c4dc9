"""Programs beside the libraries' models: recommendation, recurrent, graphs, detection, diffusion, speech, rendering and others.

`PROGRAMS` maps a name to a function of a size (`tiny`, `small`, `full`) that gives an `nn.Module` with random weights and its
inputs by name, float32 on the CPU; an input named `x` is handed over as the first argument. Modules are written as users write
them: plain layers, no custom operators, no randomness beside dropout. What is chosen by values (experts) is chosen with static shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T")
Inputs = dict[str, Any]
Program = Callable[[str], tuple[nn.Module, Inputs]]
PROGRAMS: dict[str, Program] = {}


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make


def pick(size: str, tiny: T, small: T, full: T) -> T:
    return {"tiny": tiny, "small": small, "full": full}[size]


# ---- recommendation -----------------------------------------------------------------------------------------------------------


class DLRM(nn.Module):
    """Dense features through an MLP, bags of sparse ones through tables, all pairs multiplied (Naumov et al. 2019)."""

    def __init__(self, tables: int, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + (tables + 1) * tables // 2, 8 * dim), nn.ReLU(), nn.Linear(8 * dim, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, x: Tensor, sparse: Tensor) -> Tensor:
        """x: (B, 13). sparse: (tables, B, bag) rows of the tables. Out: (B, 1)."""
        dense = self.bottom(x)
        features = torch.stack([dense, *[table(sparse[i]) for i, table in enumerate(self.tables)]], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))


@program
def dlrm(size: str) -> tuple[nn.Module, Inputs]:
    tables, rows, dim, batch = pick(size, (4, 100, 8, 16), (8, 10_000, 32, 256), (26, 100_000, 64, 2048))
    return DLRM(tables, rows, dim), {"x": torch.rand(batch, 13), "sparse": torch.randint(rows, (tables, batch, 4))}


class WideAndDeep(nn.Module):
    """A factorization machine beside an MLP on the same embeddings (DeepFM), trained on clicks."""

    def __init__(self, fields: int, rows: int, dim: int) -> None:
        super().__init__()
        self.embedding, self.weight = nn.Embedding(fields * rows, dim), nn.Embedding(fields * rows, 1)
        self.deep = nn.Sequential(nn.Linear(fields * dim, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))
        self.register_buffer("offsets", torch.arange(fields) * rows, persistent=False)

    def forward(self, x: Tensor, clicked: Tensor) -> dict[str, Tensor]:
        """x: (B, fields) rows. clicked: (B,), 0 or 1."""
        rows = x + self.offsets
        e = self.embedding(rows)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        logits = self.weight(rows).sum((1, 2)) + pairs + self.deep(e.flatten(1)).squeeze(1)
        return {"loss": F.binary_cross_entropy_with_logits(logits, clicked.to(logits.dtype)), "logits": logits}


@program
def deepfm(size: str) -> tuple[nn.Module, Inputs]:
    fields, rows, dim, batch = pick(size, (6, 50, 8, 16), (20, 5_000, 16, 512), (39, 25_000, 32, 4096))
    return WideAndDeep(fields, rows, dim), {"x": torch.randint(rows, (batch, fields)), "clicked": torch.randint(2, (batch,))}


# ---- recurrent and scans ------------------------------------------------------------------------------------------------------


class LanguageLSTM(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """x: (B, T) words; the loss is that of the next one."""
        hidden, _ = self.lstm(self.embedding(x))
        logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()), "logits": logits}


@program
def lstm(size: str) -> tuple[nn.Module, Inputs]:
    words, width, batch, length = pick(size, (50, 16, 2, 8), (2_000, 128, 8, 32), (10_000, 650, 20, 64))
    return LanguageLSTM(words, width), {"x": torch.randint(words, (batch, length))}


class SequenceGRU(nn.Module):
    """A bidirectional GRU, attention over its states, a class."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, width, batch_first=True, bidirectional=True)
        self.score, self.head = nn.Linear(2 * width, 1), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, features). Out: (B, 10)."""
        states, _ = self.gru(x)
        return self.head((self.score(torch.tanh(states)).softmax(1) * states).sum(1))


@program
def gru(size: str) -> tuple[nn.Module, Inputs]:
    features, width, batch, length = pick(size, (8, 16, 2, 8), (40, 64, 8, 32), (80, 512, 32, 100))
    return SequenceGRU(features, width), {"x": torch.randn(batch, length, features)}


class TimeMix(nn.Module):
    """RWKV's fourth version: decayed sums over the past, kept with their running maximum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Parameter(torch.rand(3, width))
        self.key, self.value, self.receptance, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.decay, self.first = nn.Parameter(torch.linspace(-1, 1, width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        before = F.pad(h, (0, 0, 1, -1))
        k, v, r = (layer(h * m + before * (1 - m)) for layer, m in zip((self.key, self.value, self.receptance), self.mix, strict=True))
        decay, outs = -torch.exp(self.decay), []
        top, bottom = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        largest = torch.full_like(k[:, 0], -1e4)
        for t in range(x.shape[1]):
            now = torch.maximum(largest, self.first + k[:, t])
            old, new = torch.exp(largest - now), torch.exp(self.first + k[:, t] - now)
            outs.append((old * top + new * v[:, t]) / (old * bottom + new))
            now = torch.maximum(largest + decay, k[:, t])
            old, new = torch.exp(largest + decay - now), torch.exp(k[:, t] - now)
            top, bottom, largest = old * top + new * v[:, t], old * bottom + new, now
        return x + self.out(torch.sigmoid(r) * torch.stack(outs, 1))


@program
def rwkv(size: str) -> tuple[nn.Module, Inputs]:
    layers, width, batch, length = pick(size, (1, 16, 2, 6), (2, 64, 4, 16), (4, 512, 8, 64))
    return nn.Sequential(*[TimeMix(width) for _ in range(layers)]), {"x": torch.randn(batch, length, width)}


class StateSpace(nn.Module):
    """A gated diagonal state-space layer, its recurrence as sums over the past weighted by decays."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.states = states
        self.norm, self.enter = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.parameters_of = nn.Linear(width, 2 * states + 1)
        self.rate, self.skip, self.out = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width)), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.enter(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, step = self.parameters_of(u).split([self.states, self.states, 1], -1)
        decay = (F.softplus(step + self.rate) * -0.1).cumsum(1)  # (B, T, width), of logarithms
        later = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool))[None, :, :, None]
        weight = torch.where(later, decay[:, :, None] - decay[:, None], float("-inf")).exp()  # (B, T, T, width)
        y = torch.einsum("bts,btsw,bsw->btw", c @ b.transpose(1, 2), weight, u) + self.skip * u
        return x + self.out(y * F.silu(gate))


@program
def state_space(size: str) -> tuple[nn.Module, Inputs]:
    layers, width, states, batch, length = pick(size, (1, 16, 4, 2, 8), (2, 64, 16, 4, 32), (4, 512, 16, 4, 128))
    return nn.Sequential(*[StateSpace(width, states) for _ in range(layers)]), {"x": torch.randn(batch, length, width)}


class DilatedBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.first, self.second = (nn.Conv1d(width, width, 3, dilation=dilation) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(F.relu(self.first(F.pad(x, (self.pad, 0)))))
        return F.relu(x + self.dropout(F.relu(self.second(F.pad(h, (self.pad, 0))))))


@program
def tcn(size: str) -> tuple[nn.Module, Inputs]:
    """A causal convolutional network over time."""
    width, blocks, batch, length = pick(size, (8, 2, 2, 16), (32, 4, 8, 128), (128, 8, 16, 1024))
    model = nn.Sequential(nn.Conv1d(4, width, 1), *[DilatedBlock(width, 2**i) for i in range(blocks)], nn.Conv1d(width, 4, 1))
    return model, {"x": torch.randn(batch, 4, length)}


# ---- transformers and experts -------------------------------------------------------------------------------------------------


@program
def transformer_encoder(size: str) -> tuple[nn.Module, Inputs]:
    layers, width, heads, batch, length = pick(size, (2, 32, 4, 2, 12), (2, 256, 8, 8, 64), (6, 768, 12, 16, 256))
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), {"x": torch.randn(batch, length, width)}


class Experts(nn.Module):
    """Two of the experts for each token, each expert with as many places as it can get (no token is dropped)."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x: (T, width)."""
        tokens, experts = x.shape[0], self.up.shape[0]
        h = self.norm(x)
        weights, chosen = self.router(h).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = F.one_hot(chosen.flatten(), experts)
        place = (flat.cumsum(0) - 1).gather(1, chosen.flatten()[:, None]).squeeze(1)  # which place of its expert
        slot = chosen.flatten() * tokens + place
        token = torch.arange(2 * tokens, device=x.device) // 2
        given = torch.zeros(experts * tokens, x.shape[1], device=x.device, dtype=h.dtype).index_add(0, slot, h[token])
        made = torch.bmm(F.silu(torch.bmm(given.view(experts, tokens, -1), self.up)), self.down).flatten(0, 1)
        return x + torch.zeros_like(made[:tokens]).index_add(0, token, made[slot] * weights.flatten()[:, None].to(made.dtype))


@program
def mixture_of_experts(size: str) -> tuple[nn.Module, Inputs]:
    layers, width, experts, tokens = pick(size, (1, 16, 4, 16), (2, 128, 8, 128), (4, 512, 8, 1024))
    return nn.Sequential(*[Experts(width, experts) for _ in range(layers)]), {"x": torch.randn(tokens, width)}


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, patches // 2), nn.GELU(), nn.Linear(patches // 2, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self, image: int, patch: int, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*[MixerBlock((image // patch) ** 2, width) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, image, image). Out: (B, 10)."""
        return self.head(self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1))


@program
def mlp_mixer(size: str) -> tuple[nn.Module, Inputs]:
    image, patch, width, blocks, batch = pick(size, (16, 4, 16, 2, 2), (64, 8, 128, 4, 4), (224, 16, 512, 8, 32))
    return Mixer(image, patch, width, blocks), {"x": torch.randn(batch, 3, image, image)}


class Conformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.before, self.after = (
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.depthwise = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm, self.pointwise = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(self.norms[0](x))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[1](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = F.glu(self.gate(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.pointwise(F.silu(self.batch_norm(self.depthwise(h)))).transpose(1, 2)
        return self.norms[3](x + 0.5 * self.after(x))


class Speech(nn.Module):
    """A spectrogram through two strided convolutions and conformer blocks to letters."""

    def __init__(self, mels: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(mels, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU())
        self.blocks, self.head = nn.Sequential(*[Conformer(width, heads) for _ in range(blocks)]), nn.Linear(width, 32)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, mels, T). Out: (B, T / 4, 32), log-probabilities."""
        return self.head(self.blocks(self.stem(x).transpose(1, 2))).log_softmax(-1)


@program
def speech(size: str) -> tuple[nn.Module, Inputs]:
    mels, width, heads, blocks, batch, length = pick(size, (8, 16, 2, 1, 2, 32), (40, 128, 4, 2, 4, 128), (80, 512, 8, 8, 8, 800))
    return Speech(mels, width, heads, blocks), {"x": torch.randn(batch, mels, length)}


# ---- images -------------------------------------------------------------------------------------------------------------------


def double_conv(inside: int, out: int) -> nn.Sequential:
    layers = [
        (nn.Conv2d(inside if i == 0 else out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)) for i in range(2)
    ]
    return nn.Sequential(*[layer for group in layers for layer in group])


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.join = nn.ModuleList(double_conv(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W). Out: (B, 2, H, W)."""
        kept: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.head(x)


@program
def unet(size: str) -> tuple[nn.Module, Inputs]:
    width, depth, batch, image = pick(size, (4, 3, 2, 16), (16, 4, 2, 64), (64, 5, 4, 256))
    return UNet(width, depth), {"x": torch.randn(batch, 3, image, image)}


class Detector(nn.Module):
    """SSD: boxes around anchors and their classes from three scales of one backbone, decoded."""

    def __init__(self, width: int, image: int, anchors: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.classes = classes
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())
            for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width))
        )
        self.box_heads = nn.ModuleList(nn.Conv2d(b, 4 * anchors, 3, padding=1) for b in (2 * width, 4 * width, 4 * width))
        self.class_heads = nn.ModuleList(nn.Conv2d(b, classes * anchors, 3, padding=1) for b in (2 * width, 4 * width, 4 * width))
        grids = []
        for step in (4, 8, 16):
            centre = (torch.arange(image // step) + 0.5) * step / image
            y, x = torch.meshgrid(centre, centre, indexing="ij")
            sides = torch.tensor([1.0, 2.0, 0.5, 1.4])[:anchors].sqrt() * 2 * step / image
            parts = (
                torch.stack([x, y], -1)[:, :, None].expand(-1, -1, anchors, -1),
                torch.stack([sides, 1 / sides], -1).expand(*x.shape, -1, -1),
            )
            grids.append(torch.cat(parts, -1).flatten(0, 2))
        self.register_buffer("anchors", torch.cat(grids), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (B, 3, H, W). Out: corners (B, anchors, 4) and scores (B, anchors, classes)."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        found = zip(self.box_heads, self.class_heads, maps[1:], strict=True)
        boxes, scores = zip(
            *[(box(m).permute(0, 2, 3, 1).flatten(1), kind(m).permute(0, 2, 3, 1).flatten(1)) for box, kind, m in found], strict=True
        )
        offsets = torch.cat(boxes, 1).unflatten(1, (-1, 4))
        centre = self.anchors[:, :2] + offsets[..., :2] * 0.1 * self.anchors[:, 2:]
        half = 0.5 * self.anchors[:, 2:] * torch.exp((offsets[..., 2:] * 0.2).clamp(-4, 4))
        return torch.cat([centre - half, centre + half], -1), torch.cat(scores, 1).unflatten(1, (-1, self.classes)).softmax(-1)


@program
def detection(size: str) -> tuple[nn.Module, Inputs]:
    width, image, batch = pick(size, (4, 32, 2), (16, 128, 2), (64, 512, 8))
    return Detector(width, image), {"x": torch.randn(batch, 3, image, image)}


class TimedBlock(nn.Module):
    """A residual block that adds an embedding of the time step."""

    def __init__(self, inside: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inside), nn.SiLU(), nn.Conv2d(inside, out, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, out))
        self.second = nn.Sequential(nn.GroupNorm(4, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class ImageAttention(nn.Module):
    """Attention of pixels to each other and to a text, written by hand."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.text_norm = heads, nn.GroupNorm(4, width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query, self.key_value, self.text_out = nn.Linear(width, width), nn.Linear(text, 2 * width), nn.Linear(width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.norm(x).flatten(2).transpose(1, 2)
        h = h + self.out(self.attend(*self.qkv(h).chunk(3, -1)))
        h = h + self.text_out(self.attend(self.query(self.text_norm(h)), *self.key_value(text).chunk(2, -1)))
        return x + h.transpose(1, 2).unflatten(2, x.shape[2:])


class DenoisingStep(nn.Module):
    """One step of a diffusion model: noise predicted by a small U-Net with attention at its bottom, and the step's formula."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter, self.down = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.first, self.middle, self.last = (
            TimedBlock(a, b, 4 * width) for a, b in ((width, width), (width, 2 * width), (3 * width, width))
        )
        self.attention, self.leave = (
            ImageAttention(2 * width, text, 4),
            nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)),
        )

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """x: (B, 4, H, W). time: (B,) of 0 to 1. text: (B, T, text). Out: x one step less noisy."""
        rates = torch.exp(torch.arange(self.width // 2, device=x.device, dtype=x.dtype) * (-math.log(1e4) / (self.width // 2)))
        angles = time[:, None] * 1000 * rates
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = self.first(self.enter(x), embedding)
        low = self.attention(self.middle(self.down(high), embedding), text)
        noise = self.leave(self.last(torch.cat([high, F.interpolate(low, scale_factor=2.0, mode="nearest")], 1), embedding))
        alpha = torch.cos(time * 1.5)[:, None, None, None]
        return (x - (1 - alpha * alpha).sqrt() * noise) / alpha


@program
def diffusion(size: str) -> tuple[nn.Module, Inputs]:
    width, text, batch, image = pick(size, (8, 8, 2, 8), (64, 64, 2, 16), (320, 768, 2, 64))
    # times that bfloat16 holds exactly: sines of a thousand times a rounded one would be other sines
    times = torch.arange(1, batch + 1) / 8
    return DenoisingStep(width, text), {"x": torch.randn(batch, 4, image, image), "time": times, "text": torch.randn(batch, 12, text)}


class ConvVAE(nn.Module):
    def __init__(self, width: int, latent: int, image: int) -> None:
        super().__init__()
        side = image // 4
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.moments, self.enter = nn.Linear(2 * width * side * side, 2 * latent), nn.Linear(latent, 2 * width * side * side)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (2 * width, side, side)), nn.ReLU(), nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """x: (B, 3, image, image). noise: (B, latent), what would be drawn."""
        mean, log_variance = self.moments(self.encoder(x)).chunk(2, -1)
        made = self.decoder(self.enter(mean + torch.exp(0.5 * log_variance) * noise))
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return {"loss": F.mse_loss(made, x) + 1e-3 * divergence, "made": made}


@program
def vae(size: str) -> tuple[nn.Module, Inputs]:
    width, latent, batch, image = pick(size, (4, 4, 2, 16), (32, 32, 8, 32), (64, 128, 64, 64))
    return ConvVAE(width, latent, image), {"x": torch.rand(batch, 3, image, image), "noise": torch.randn(batch, latent)}


@program
def gan_generator(size: str) -> tuple[nn.Module, Inputs]:
    """DCGAN's: noise through transposed convolutions to an image."""
    width, latent, stages, batch = pick(size, (4, 8, 2, 2), (32, 64, 3, 8), (64, 100, 4, 64))
    layers: list[nn.Module] = [nn.ConvTranspose2d(latent, width * 2 ** (stages - 1), 4, 1, 0, bias=False)]
    for i in reversed(range(stages)):
        layers += [
            nn.BatchNorm2d(width * 2**i),
            nn.ReLU(True),
            nn.ConvTranspose2d(width * 2**i, width * 2 ** (i - 1) if i else 3, 4, 2, 1, bias=False),
        ]
    return nn.Sequential(*layers, nn.Tanh()), {"x": torch.randn(batch, latent, 1, 1)}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.body(x)


@program
def super_resolution(size: str) -> tuple[nn.Module, Inputs]:
    """EDSR: residual blocks at low resolution, pixels shuffled to the high one."""
    width, blocks, batch, image = pick(size, (8, 2, 2, 12), (32, 4, 2, 48), (64, 16, 4, 96))
    tail = nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *[Residual(width) for _ in range(blocks)], *tail), {
        "x": torch.rand(batch, 3, image, image)
    }


# ---- geometry and graphs ------------------------------------------------------------------------------------------------------


class NeRF(nn.Module):
    """Colours of rays: positions encoded by sines, an MLP, what it gives composited along each ray."""

    def __init__(self, width: int, frequencies: int) -> None:
        super().__init__()
        self.frequencies, encoded = frequencies, 3 + 6 * frequencies
        self.first = nn.Sequential(nn.Linear(encoded, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(width + encoded, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid()),
        )

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        """x: (rays, points, 3). direction: (rays, 3). Out: (rays, 3)."""
        angles = torch.cat([x * 2.0**i for i in range(self.frequencies)], -1)
        encoded = torch.cat([x, angles.sin(), angles.cos()], -1)
        h = self.second(torch.cat([self.first(encoded), encoded], -1))
        colour = self.colour(torch.cat([h, F.normalize(direction, dim=-1)[:, None].expand(-1, x.shape[1], -1)], -1))
        alpha = 1 - torch.exp(-F.softplus(self.density(h).squeeze(-1)) * 0.1)
        seen = torch.cumprod(F.pad(1 - alpha + 1e-4, (1, -1), value=1.0), -1)
        return ((alpha * seen)[..., None] * colour).sum(1)


@program
def nerf(size: str) -> tuple[nn.Module, Inputs]:
    width, rays, points = pick(size, (16, 8, 8), (64, 128, 32), (256, 1024, 64))
    return NeRF(width, 6), {"x": torch.randn(rays, points, 3), "direction": torch.randn(rays, 3)}


class PointNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 9))
        self.turning, self.points = self.shared(3, width), self.shared(3, width)
        self.head = nn.Sequential(nn.Linear(4 * width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 40))

    @staticmethod
    def shared(inside: int, width: int) -> nn.Sequential:
        widths = (inside, width, 2 * width, 4 * width)
        return nn.Sequential(*[m for a, b in itertools.pairwise(widths) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())])

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, N). Out: (B, 40), log-probabilities."""
        turn = self.transform(self.turning(x).amax(2)).view(-1, 3, 3) + torch.eye(3, device=x.device, dtype=x.dtype)
        return self.head(self.points(turn @ x).amax(2)).log_softmax(-1)


@program
def pointnet(size: str) -> tuple[nn.Module, Inputs]:
    width, batch, points = pick(size, (8, 2, 32), (32, 8, 256), (64, 32, 1024))
    return PointNet(width), {"x": torch.randn(batch, 3, points)}


class GraphLayer(nn.Module):
    """Means of neighbours, and attention to them, over a list of edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others, self.score, self.norm = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(2 * width, 1),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        degree = torch.zeros_like(x[:, 0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
        mean = torch.zeros_like(x).index_add(0, target, x[source]) / degree[:, None]
        score = F.leaky_relu(self.score(torch.cat([x[source], x[target]], -1))).squeeze(-1)
        largest = torch.full_like(x[:, 0], -1e4).scatter_reduce(0, target, score.detach().to(x.dtype), "amax")
        weight = torch.exp(score - largest[target])
        total = weight.new_zeros(x.shape[0]).scatter_add(0, target, weight)
        attended = torch.zeros_like(x).index_add(0, target, (x[source] * (weight / (total[target] + 1e-6))[:, None]).to(x.dtype))
        return x + F.relu(self.norm(self.own(mean) + self.others(attended)))


class GraphNetwork(nn.Module):
    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(features, width), nn.Linear(width, 7)
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(layers))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """x: (nodes, features). edges: (2, edges), from and to. Out: (nodes, 7)."""
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h, edges)
        return self.head(h)


@program
def graph_network(size: str) -> tuple[nn.Module, Inputs]:
    features, width, layers, nodes, edges = pick(size, (8, 16, 2, 20, 60), (64, 64, 2, 500, 2_000), (500, 256, 3, 20_000, 100_000))
    return GraphNetwork(features, width, layers), {"x": torch.randn(nodes, features), "edges": torch.randint(nodes, (2, edges))}
