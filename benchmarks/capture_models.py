"""Hugging Face architectures at tiny sizes through capture alone: results equal to eager's, graphs and breaks counted.

Each model is made from a configuration (no weights are loaded) and run twice: in eval mode, and in train mode with a loss
and its gradients, both with the backend `eager`, which runs the captured graph as it stands. Every output and every
gradient has to equal eager's bit for bit under the same seed. A library that takes another branch when it is compiled
(`torch.compiler.is_compiling()`: mamba scans in a tree, not in a loop) may round otherwise; that is reported. A model counts
as whole when each mode gives one graph and no break.

    python benchmarks/capture_models.py                 # all
    python benchmarks/capture_models.py bert gpt2       # some
    python benchmarks/capture_models.py --json out.json
    python benchmarks/capture_models.py --backend aot_eager     # one training step through another backend

With another backend than `eager` only train mode runs; outputs, gradients and buffers may differ from eager's by rounding
(1e-4 of a tensor's largest element, or 1e-6 of all tensors' largest), the state of the random number generator may not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

Inputs = dict[str, Any]

BATCH, LENGTH, VOCABULARY = 2, 12, 99
#: sizes that most text configurations understand
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 8,
}  # fmt: skip
SPEECH = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    # both draw random numbers in Python and decide by them, layer by layer: a break each
    "apply_spec_augment": False, "layerdrop": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """name: for reports. kind: what is fed (a key of INPUTS). head: Auto class. options: of the configuration."""

    name: str
    kind: str
    head: str
    options: dict[str, Any] = field(default_factory=dict)
    model_type: str = ""


def _text(**extra: Any) -> dict[str, Any]:
    return {**TEXT, **extra}


def _gqa(**extra: Any) -> dict[str, Any]:
    return {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, **extra}


_SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 1}
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_stages": 4}
_CLIP = {
    "text_config": {**TEXT, "eos_token_id": 98, "pad_token_id": 1, "bos_token_id": 0}, "vision_config": VISION, "projection_dim": 16,
}  # fmt: skip

ARCHITECTURES = (
    Architecture("albert", "masked", "ForMaskedLM", _text(embedding_size=16)),
    Architecture("audio-spectrogram-transformer", "spectrogram", "ForAudioClassification",
                 {**{k: v for k, v in VISION.items() if k != "image_size"}, "num_mel_bins": 16, "max_length": 32}),
    Architecture("bart", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("beit", "image", "ForImageClassification", VISION),
    Architecture("bert", "masked", "ForMaskedLM", TEXT),
    Architecture("big_bird", "masked", "ForMaskedLM", _text(attention_type="original_full")),
    Architecture("bit", "image", "ForImageClassification", {**_STAGES, "embedding_size": 8, "num_groups": 4}),
    Architecture("blenderbot-small", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("bloom", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Architecture("camembert", "masked", "ForMaskedLM", _text(pad_token_id=1)),
    Architecture("canine", "tokens", "ForSequenceClassification", {**TEXT, "local_transformer_stride": 4, "downsampling_rate": 4, "num_hash_buckets": 64}),
    Architecture("clip", "image_text", "Model", _CLIP),
    Architecture("codegen", "causal", "ForCausalLM", {**_GPT, "rotary_dim": 4, "n_ctx": 64}),
    Architecture("cohere", "causal", "ForCausalLM", _gqa()),
    Architecture("convbert", "masked", "ForMaskedLM", _text(embedding_size=32)),
    Architecture("convnext", "image", "ForImageClassification", _STAGES),
    Architecture("convnextv2", "image", "ForImageClassification", _STAGES),
    Architecture("ctrl", "causal", "ForCausalLM", {**_GPT, "dff": 48}),
    Architecture("cvt", "image", "ForImageClassification", {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}),
    Architecture("data2vec-text", "masked", "ForMaskedLM", _text(pad_token_id=1)),
    Architecture("data2vec-vision", "image", "ForImageClassification", VISION),
    Architecture("deberta", "masked", "ForMaskedLM", _text(relative_attention=True, pos_att_type=["p2c", "c2p"])),
    Architecture("deberta-v2", "masked", "ForMaskedLM", _text(relative_attention=True, pos_att_type=["p2c", "c2p"])),
    Architecture("deit", "pixels", "Model", VISION),
    Architecture("dinov2", "image", "ForImageClassification", VISION),
    Architecture("distilbert", "masked", "ForMaskedLM",
                 {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64}),
    Architecture("dpt", "pixels", "ForDepthEstimation",
                 {**VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8,
                  "is_hybrid": False}),
    Architecture("efficientnet", "image", "ForImageClassification",
                 {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "image_size": 32}),
    Architecture("electra", "masked", "ForMaskedLM", _text(embedding_size=32)),
    Architecture("ernie", "masked", "ForMaskedLM", TEXT),
    Architecture("esm", "masked", "ForMaskedLM", _text(pad_token_id=1, mask_token_id=4, position_embedding_type="rotary")),
    Architecture("falcon", "causal", "ForCausalLM", _text(bos_token_id=0, eos_token_id=1)),
    Architecture("flaubert", "masked", "ForMaskedLM", {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": VOCABULARY}),
    Architecture("fnet", "masked", "ForMaskedLM", _text(pad_token_id=3)),
    Architecture("focalnet", "image", "ForImageClassification", {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2],
                                                                 "focal_windows": [3, 3], "image_size": 32}),
    Architecture("funnel", "masked", "ForMaskedLM",
                 {"vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1], "num_decoder_layers": 1}),
    Architecture("gemma", "causal", "ForCausalLM", _gqa()),
    Architecture("gemma2", "causal", "ForCausalLM", _gqa(query_pre_attn_scalar=8)),
    Architecture("glm", "causal", "ForCausalLM", _gqa()),
    Architecture("gpt2", "causal", "ForCausalLM", _GPT),
    Architecture("gpt_bigcode", "causal", "ForCausalLM", _GPT),
    Architecture("gpt_neo", "causal", "ForCausalLM",
                 {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                  "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}),
    Architecture("gpt_neox", "causal", "ForCausalLM", TEXT),
    Architecture("gptj", "causal", "ForCausalLM", {**_GPT, "rotary_dim": 4}),
    Architecture("granite", "causal", "ForCausalLM", _gqa()),
    Architecture("hiera", "image", "ForImageClassification", {"embed_dim": 8, "image_size": [32, 32], "patch_kernel": [7, 7], "depths": [1, 1, 1, 1],
                                                              "num_heads": [1, 2, 4, 8], "masked_unit_size": [8, 8]}),
    Architecture("hubert", "speech", "ForAudioClassification", SPEECH),
    Architecture("ibert", "masked", "ForMaskedLM", _text(pad_token_id=1, quant_mode=False)),
    Architecture("layoutlm", "layout", "ForMaskedLM", TEXT),
    Architecture("led", "seq2seq", "ForSeq2SeqLM", {**{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"}, "attention_window": 4,
                                                    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}),
    Architecture("llama", "causal", "ForCausalLM", _gqa()),
    Architecture("longformer", "masked", "ForMaskedLM", _text(pad_token_id=1, attention_window=4)),
    Architecture("longt5", "seq2seq", "ForSeq2SeqLM", {**_T5, "local_radius": 3, "global_block_size": 4}),
    Architecture("m2m_100", "seq2seq", "ForSeq2SeqLM", {**_SEQ2SEQ, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}),
    Architecture("mamba", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    Architecture("marian", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("mbart", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("megatron-bert", "masked", "ForMaskedLM", TEXT),
    Architecture("mistral", "causal", "ForCausalLM", _gqa(sliding_window=4)),
    Architecture("mixtral", "causal", "ForCausalLM", _gqa(num_local_experts=4, sliding_window=None)),
    Architecture("mobilebert", "masked", "ForMaskedLM", _text(embedding_size=32, intra_bottleneck_size=32, num_feedforward_networks=1)),
    Architecture("mobilenet_v2", "image", "ForImageClassification", {"image_size": 32, "depth_multiplier": 0.35}),
    Architecture("mobilevit", "image", "ForImageClassification", {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                                                                  "num_attention_heads": 2}),
    Architecture("modernbert", "masked", "ForMaskedLM", _text(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
                                                              attn_implementation="sdpa")),
    Architecture("mpnet", "masked", "ForMaskedLM", _text(pad_token_id=1)),
    Architecture("mpt", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    Architecture("mvp", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("nystromformer", "masked", "ForMaskedLM", _text(num_landmarks=LENGTH, segment_means_seq_len=LENGTH)),
    Architecture("olmo", "causal", "ForCausalLM", _gqa()),
    Architecture("olmo2", "causal", "ForCausalLM", _gqa()),
    Architecture("opt", "causal", "ForCausalLM",
                 {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32,
                  "max_position_embeddings": 64}),
    Architecture("pegasus", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("persimmon", "causal", "ForCausalLM", TEXT),
    Architecture("phi", "causal", "ForCausalLM", _text()),
    Architecture("phi3", "causal", "ForCausalLM", _text(pad_token_id=0)),
    Architecture("plbart", "seq2seq", "ForSeq2SeqLM", _SEQ2SEQ),
    Architecture("poolformer", "image", "ForImageClassification", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}),
    Architecture("pvt", "image", "ForImageClassification", {"image_size": 32, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
                                                            "num_attention_heads": [1, 2, 3, 4]}),
    Architecture("qwen2", "causal", "ForCausalLM", _gqa()),
    Architecture("qwen2_moe", "causal", "ForCausalLM", _gqa(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    Architecture("qwen3", "causal", "ForCausalLM", _gqa()),
    Architecture("reformer", "masked", "ForMaskedLM",
                 {"vocab_size": VOCABULARY, "hidden_size": 32, "attn_layers": ["local"], "num_attention_heads": 2, "attention_head_size": 16, "feed_forward_size": 48,
                  "axial_pos_shape": [3, 4], "axial_pos_embds_dim": [16, 16], "local_attn_chunk_length": 4, "max_position_embeddings": 12, "is_decoder": False,
                  "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0}),
    Architecture("regnet", "image", "ForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "groups_width": 8}),
    Architecture("rembert", "masked", "ForMaskedLM", _text(input_embedding_size=16, output_embedding_size=16)),
    Architecture("resnet", "image", "ForImageClassification", {**{k: v for k, v in _STAGES.items() if k != "num_stages"}, "embedding_size": 8}),
    Architecture("roberta", "masked", "ForMaskedLM", _text(pad_token_id=1)),
    Architecture("roformer", "masked", "ForMaskedLM", _text(embedding_size=32)),
    Architecture("rwkv", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}),
    Architecture("segformer", "image", "ForImageClassification", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4],
                                                                  "decoder_hidden_size": 16}),
    Architecture("siglip", "image_text", "Model", _CLIP),
    Architecture("speech_to_text", "speech2text", "ForSpeechSeq2Seq", {**_SEQ2SEQ, "max_source_positions": 64, "max_target_positions": 64, "input_feat_per_channel": 16,
                                                                       "num_conv_layers": 1, "conv_channels": 16, "conv_kernel_sizes": [3]}),
    Architecture("splinter", "tokens", "Model", TEXT),
    Architecture("squeezebert", "masked", "ForMaskedLM", _text(embedding_size=32, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2,
                                                               output_groups=2)),
    Architecture("stablelm", "causal", "ForCausalLM", _gqa()),
    Architecture("starcoder2", "causal", "ForCausalLM", _gqa()),
    Architecture("swin", "image", "ForImageClassification", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}),
    Architecture("swinv2", "image", "ForImageClassification", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}),
    Architecture("switch_transformers", "seq2seq", "ForSeq2SeqLM", {**_T5, "num_experts": 2, "expert_capacity": 8, "num_sparse_encoder_layers": 1,
                                                                    "num_sparse_decoder_layers": 1}),
    Architecture("t5", "seq2seq", "ForSeq2SeqLM", _T5),
    Architecture("umt5", "seq2seq", "ForSeq2SeqLM", _T5),
    Architecture("unispeech", "speech", "ForAudioClassification", SPEECH),
    Architecture("vit", "image", "ForImageClassification", VISION),
    Architecture("vit_mae", "pixels_noise", "Model", VISION),
    Architecture("wav2vec2", "speech", "ForAudioClassification", SPEECH),
    Architecture("wavlm", "speech", "ForAudioClassification", SPEECH),
    Architecture("whisper", "whisper", "ForSpeechSeq2Seq", {**_SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 64}),
    Architecture("xglm", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
                                                   "max_position_embeddings": 64}),
    Architecture("xlm", "masked", "ForMaskedLM", {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": VOCABULARY}),
    Architecture("xlm-roberta", "masked", "ForMaskedLM", _text(pad_token_id=1)),
    Architecture("xlnet", "causal", "ForCausalLM", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    Architecture("yolos", "pixels", "ForObjectDetection", {**VISION, "image_size": [32, 32], "num_detection_tokens": 5}),
)  # fmt: skip


def _ids(generator: torch.Generator, length: int | None = None) -> torch.Tensor:
    return torch.randint(5, VOCABULARY - 2, (BATCH, length or LENGTH), generator=generator)


def _mask() -> torch.Tensor:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -3:] = 0
    return mask


def _labelled(generator: torch.Generator) -> Inputs:
    ids = _ids(generator)
    return {"input_ids": ids, "attention_mask": _mask(), "labels": ids.clone()}


def _pixels(generator: torch.Generator, size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size, generator=generator)


def _image_text(generator: torch.Generator) -> Inputs:
    ids = _ids(generator)
    ids[:, -1] = VOCABULARY - 1
    return {"input_ids": ids, "pixel_values": _pixels(generator), "return_loss": True}


def _speech(generator: torch.Generator) -> Inputs:
    return {"input_values": torch.randn(BATCH, 400, generator=generator), "labels": torch.tensor([0, 1])}


def _layout(generator: torch.Generator) -> Inputs:
    boxes = torch.tensor([10, 20, 30, 40]).expand(BATCH, LENGTH, 4).contiguous()
    return {**_labelled(generator), "bbox": boxes}


#: kind -> what the model is fed
INPUTS: dict[str, Callable[[torch.Generator], Inputs]] = {
    "causal": _labelled,
    "masked": _labelled,
    "seq2seq": _labelled,
    "tokens": lambda generator: {"input_ids": _ids(generator), "attention_mask": _mask()},
    "layout": _layout,
    "image": lambda generator: {"pixel_values": _pixels(generator), "labels": torch.tensor([0, 1])},
    "pixels": lambda generator: {"pixel_values": _pixels(generator)},
    "pixels_noise": lambda generator: {"pixel_values": _pixels(generator), "noise": torch.rand(BATCH, 16, generator=generator)},
    "image_text": _image_text,
    "speech": _speech,
    "spectrogram": lambda generator: {"input_values": torch.randn(BATCH, 32, 16, generator=generator), "labels": torch.tensor([0, 1])},
    "speech2text": lambda generator: {"input_features": torch.randn(BATCH, 24, 16, generator=generator), "labels": _ids(generator, 6)},
    "whisper": lambda generator: {"input_features": torch.randn(BATCH, 16, 32, generator=generator), "labels": _ids(generator, 6)},
}


@dataclass
class Outcome:
    """What became of one model. correct: outputs and gradients equal eager's. breaks: key, details and place, by mode."""

    name: str
    correct: bool = False
    graphs: dict[str, int] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    ops: int = 0
    seconds: float = 0.0
    error: str = ""
    rounds: str = ""  # what equals eager's only up to rounding

    @property
    def whole(self) -> bool:
        return self.correct and not self.breaks and all(count == 1 for count in self.graphs.values())


def make(architecture: Architecture) -> tuple[torch.nn.Module, Inputs]:
    """The model with random weights, and its inputs."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture.model_type or architecture.name, **architecture.options)
    model = getattr(transformers, f"AutoModel{'' if architecture.head == 'Model' else architecture.head}").from_config(config)
    inputs = INPUTS[architecture.kind](torch.Generator().manual_seed(1))
    return model, inputs


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flat_tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flat_tensors(item)]
    if hasattr(value, "layers") and hasattr(value, "get_seq_length"):  # a cache of keys and values
        return [tensor for layer in value.layers for tensor in flat_tensors([getattr(layer, "keys", None), getattr(layer, "values", None)])]
    return []


def _loss(outputs: Any) -> torch.Tensor:
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    if isinstance(loss, torch.Tensor):
        return loss
    parts = [tensor.double().square().mean() for tensor in flat_tensors(outputs) if tensor.requires_grad]
    return torch.stack(parts).sum()


def run_mode(model: torch.nn.Module, call: Callable[..., Any], inputs: Inputs, train: bool) -> tuple[Any, list[torch.Tensor | None]]:
    """The outputs and, in train mode, the gradients of all parameters, the buffers, and the state of the random generator."""
    import numpy

    model.train(train)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    numpy.random.seed(7)
    if not train:
        with torch.no_grad():
            return call(**inputs), []
    outputs = call(**inputs)
    _loss(outputs).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return outputs, [*gradients, *model.buffers(), torch.get_rng_state()]


def _same(left: torch.Tensor | None, right: torch.Tensor | None, exactly: bool, scale: float) -> bool:
    if left is None or right is None:
        return left is right
    if not exactly and left.dtype == right.dtype and left.is_floating_point() and left.shape == right.shape and left.numel():
        left, right = left.detach().nan_to_num(), right.detach().nan_to_num()
        return bool((left - right).abs().max() <= max(1e-4 * float(left.abs().max()), 1e-6 * scale))
    same_layout = left.dtype == right.dtype and left.shape == right.shape and left.stride() == right.stride()
    return same_layout and torch.equal(left.nan_to_num(), right.nan_to_num()) and torch.equal(left.isnan(), right.isnan())


def _difference(expected: tuple[Any, list[Any]], got: tuple[Any, list[Any]], exactly: bool) -> str:
    if type(expected[0]) is not type(got[0]):
        return f"a {type(got[0]).__name__} for a {type(expected[0]).__name__}"
    for what, left, right in (("output", flat_tensors(expected[0]), flat_tensors(got[0])), ("gradient or state", expected[1], got[1])):
        if len(left) != len(right):
            return f"{len(right)} {what}s, eager gives {len(left)}"
        sizes = [float(one.detach().abs().max()) for one in left if one is not None and one.is_floating_point() and one.numel()]
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            if not _same(one, other, exactly, max([1e-3, *sizes])):
                return f"{what} {number} differs"
    return ""


def check(architecture: Architecture, backend: str = "eager") -> Outcome:
    """Run one architecture in both modes, compiled and eager; only in train mode for another backend than `eager`."""
    from fxloom_dynamo import optimize

    outcome = Outcome(architecture.name)
    start = time.perf_counter()
    try:
        for train in (False, True) if backend == "eager" else (True,):
            mode = "train" if train else "eval"
            model, inputs = make(architecture)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            expected = run_mode(model, model, inputs, train)
            expected = (expected[0], [None if grad is None else grad.clone() for grad in expected[1]])
            model.load_state_dict(state)
            frames: list[Any] = []
            compiled = optimize(None if backend == "eager" else backend, on_capture=frames.append)(model)
            got = run_mode(model, compiled, inputs, train)
            graphs = [frame.info.graph for frame in frames if frame.info.graph is not None]
            outcome.graphs[mode] = len(graphs)
            outcome.ops += sum(node.op.startswith("call") for graph in graphs for node in graph.graph.nodes)
            for frame in frames:
                broke = frame.info.broke
                if broke is not None and broke.key != "raises":
                    outcome.breaks.append(f"{mode}: {broke.key}: {broke.details} [{broke.site}]")
            difference = _difference(expected, got, exactly=backend == "eager")
            if difference and backend == "eager" and not _difference(expected, got, exactly=False):
                outcome.rounds, difference = f"{mode}: {difference} by rounding", ""
            if difference:
                outcome.error = f"{mode}: {difference}"
                break
        else:
            outcome.correct = True
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome.error = f"{type(error).__name__}: {str(error)[:300]} ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})"
    outcome.seconds = time.perf_counter() - start
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="architectures; all when left out")
    parser.add_argument("--json", default="")
    parser.add_argument("--backend", default="eager", help="eager, aot_eager, ...")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [item for item in ARCHITECTURES if not options.names or item.name in options.names]
    outcomes = []
    for item in chosen:
        outcome = check(item, options.backend)
        outcomes.append(outcome)
        state = "whole" if outcome.whole else "correct" if outcome.correct else "WRONG"
        print(f"{item.name:32} {state:8} graphs {outcome.graphs} ops {outcome.ops} {outcome.seconds:.1f} s {outcome.error}{outcome.rounds}", flush=True)
        for broke in dict.fromkeys(outcome.breaks):
            print(f"    {broke}", flush=True)
    correct, whole = sum(item.correct for item in outcomes), sum(item.whole for item in outcomes)
    rounded = sum(bool(item.rounds) for item in outcomes)
    print(f"{len(outcomes)} architectures: {correct} correct ({rounded} of them up to rounding), {whole} in one graph without a break ({whole / max(1, len(outcomes)):.0%})")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(item) for item in outcomes], file, indent=1)
    return 0 if correct == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
