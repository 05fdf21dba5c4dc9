"""Hugging Face architectures whose batch and length change at every call: ten, and three that shift or cut their input.

python benchmarks/dynamic_shapes.py [--backend inductor] [--dynamic] [names...]

Per architecture: compilations over 14 sizes, a length of 2 among them (wanted: at most 2, 1 with --dynamic), whether all results
are eager's, guards on sizes, and the time of a call of the dynamic code over that of code compiled for this very size (wanted: at
most 1.05).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import fxloom

SIZES = [(2, 8), (3, 11), (4, 17), (5, 33), (2, 5), (7, 64), (6, 21), (9, 40), (8, 3), (3, 100), (12, 16), (5, 77), (2, 2), (3, 4)]
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 128}


def _config(name: str) -> tuple[str, dict[str, Any]]:
    return {
        "bert": ("BertConfig", {**SMALL, "max_position_embeddings": 128}),
        "roberta": ("RobertaConfig", {**SMALL, "max_position_embeddings": 132}),
        "distilbert": (
            "DistilBertConfig",
            {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 128, "max_position_embeddings": 128},
        ),
        "albert": ("AlbertConfig", {**SMALL, "embedding_size": 32, "max_position_embeddings": 128}),
        "electra": ("ElectraConfig", {**SMALL, "embedding_size": 32, "max_position_embeddings": 128}),
        "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 128}),
        "opt": (
            "OPTConfig",
            {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 128, "dropout": 0.0},
        ),
        "gpt_neox": ("GPTNeoXConfig", {**SMALL, "max_position_embeddings": 128}),
        "llama": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}),
        "mistral": ("MistralConfig", {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}),
        "mistral_window": ("MistralConfig", {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": 4}),
        "t5": (
            "T5Config",
            {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 128, "decoder_start_token_id": 0},
        ),
        "bart": (
            "BartConfig",
            {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 128, "max_position_embeddings": 128},
        ),
    }[name]


NAMES = ("bert", "roberta", "distilbert", "albert", "electra", "gpt2", "opt", "gpt_neox", "llama", "mistral")
MORE = ("mistral_window", "t5", "bart")


def make_model(name: str) -> torch.nn.Module:
    """A small model of the architecture, in eval mode."""
    import transformers

    torch.manual_seed(0)
    kind, fields = _config(name)
    config = getattr(transformers, kind)(**fields)
    config.use_cache = False
    if name == "t5":
        return transformers.T5ForConditionalGeneration(config).eval()  # type: ignore[no-any-return]  # untyped
    return transformers.AutoModel.from_config(config).eval()  # type: ignore[no-any-return]  # untyped


def arguments(name: str, given: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the model is called with; T5 makes its decoder's input of labels."""
    return {"input_ids": given, "labels": given} if name == "t5" else {"input_ids": given}


def output(result: Any) -> torch.Tensor:
    return result.logits if hasattr(result, "logits") else result.last_hidden_state  # type: ignore[no-any-return]  # untyped


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 120, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))


def ratio(one: Callable[[], Any], other: Callable[[], Any], rounds: int = 25) -> float:
    """CPU seconds of a call of `one` over those of `other`: least of rounds in turn, since other work on the machine only adds."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, call in enumerate((one, other)):
            start = time.process_time()
            call()
            best[place] = min(best[place], time.process_time() - start)
    return best[0] / best[1]


def run(name: str, backend: str, dynamic: bool | None, timing: bool) -> dict[str, Any]:
    fxloom.reset()
    model = make_model(name)
    compiled = fxloom.compile(model, backend=backend, dynamic=dynamic)
    worst = 0.0
    with torch.no_grad():
        for size in SIZES:
            given = arguments(name, ids(*size))
            expected, got = output(model(**given)), output(compiled(**given))
            worst = max(worst, (expected - got).abs().max().item())
        stats = fxloom.stats()
        result = {
            "compiles": stats.compiles,
            "graphs": stats.graphs,
            "breaks": len(stats.break_reasons),
            "error": worst,
            "why": stats.recompile_reasons[1:],
        }
        if timing:
            ratios = []
            for size in ((4, 64), (8, 128 if name not in ("roberta",) else 120)):
                given = arguments(name, ids(*size))
                static = fxloom.compile(model, backend=backend, dynamic=False)
                ratios.append(ratio(lambda given=given: compiled(**given), lambda given=given, f=static: f(**given)))  # type: ignore[misc]  # bound now
            result["ratio"] = statistics.geometric_mean(ratios)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    ratios = []
    for name in options.names or (*NAMES, *MORE):
        result = run(name, options.backend, True if options.dynamic else None, options.time)
        ratio = result.get("ratio")
        ratios += [ratio] if ratio is not None else []
        print(
            f"{name:12s} compiles {result['compiles']}  graphs {result['graphs']}  breaks {result['breaks']}  "
            f"largest difference {result['error']:.1e}" + (f"  dynamic / static {ratio:.3f}" if ratio is not None else ""),
            *result["why"][:2],
            flush=True,
        )
    if ratios:
        print(f"geometric mean of dynamic / static: {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
