"""Hugging Face and timm models and other programs, inference and one training step, compiled against eager and float64.

    python benchmarks/check_models.py                                           # tiny models on the CPU, float32
    python benchmarks/check_models.py --device cuda --dtypes float32,bfloat16 --size small --workers 8
    python benchmarks/check_models.py --only bert,timm:convnext_tiny,program:nerf --modes train

Models have random weights, made in the dtype of the run. `--size tiny` takes the configurations of capture_models.py (two
layers of 32); `small` takes, for models of text, the library's own configurations with two layers of at most 1,024 and a
longer input; `full` the library's own. timm's models are always whole; the programs of programs.py have three sizes. The measure of a tensor is the norm of its error against the
same model in float64: at most twice eager's own, with a floor of a few ulp of the norm (`allowed`). In train mode values are compared
without dropout, and another step with dropout must run and give finite gradients. Each model runs in a worker process that is started
again when it dies; graphs, breaks and fallbacks are listed.

Rounding alone makes two right results of one input differ by more in two ways: eager's error of a tensor of few elements may be next to
nothing by luck, and the gradient of a ReLU jumps where its argument rounds to the other side of zero. A model that fails is therefore
run again on five other inputs, its errors pooled and every ReLU in it replaced by a SiLU; what is right then is listed as `rounding`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import capture_models
import torch
from capture_models import ARCHITECTURES, Architecture, flat_tensors, make
from programs import PROGRAMS
from workers import caught, run_all, serve

#: twenty-five kinds of Hugging Face models
HUGGING_FACE = (
    "bert", "gpt2", "llama", "qwen3", "mixtral", "t5", "deberta-v2", "swin", "mistral", "gemma2", "bart", "roberta", "electra", "distilbert",
    "albert", "opt", "gpt_neox", "falcon", "phi", "vit", "convnext", "resnet", "clip", "wav2vec2", "whisper", "mamba", "bloom",
)  # fmt: skip
TIMM = (
    "convnext_tiny", "xcit_tiny_12_p16_224", "resnet50", "efficientnet_b0", "vit_tiny_patch16_224", "mobilenetv3_small_100", "swin_tiny_patch4_window7_224",
    "mixer_s32_224", "regnety_002", "densenet121", "deit_tiny_patch16_224", "coat_lite_tiny", "poolformer_s12", "levit_128s", "pit_ti_224", "ghostnet_100",
    "hrnet_w18_small", "repvgg_a0", "res2net50_26w_4s", "twins_svt_small", "dpn68", "cspdarknet53",
)  # fmt: skip
#: all, by the names that `build` takes
MODELS = (*HUGGING_FACE, *(f"timm:{name}" for name in TIMM), *(f"program:{name}" for name in PROGRAMS))
FLOOR_ULPS = 8.0


@dataclass
class Outcome:
    """Of one model in one mode and dtype. kind: correct, rounding, wrong, raised, died, timeout, unknown. worst: largest error over
    what is allowed; pooled: the same over five inputs, where it was asked for."""

    model: str
    mode: str
    dtype: str
    kind: str = "correct"
    text: str = ""
    worst: float = 0.0
    pooled: float = 0.0
    graphs: int = 0
    breaks: int = 0
    kernels: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    compile_seconds: float = 0.0
    eager_ms: float = 0.0
    compiled_ms: float = 0.0


@dataclass
class Errors:
    """Squared errors of one tensor against float64, summed over inputs. mine, eager: of the two; size: squared norm; count: elements."""

    mine: float = 0.0
    eager: float = 0.0
    size: float = 0.0
    count: int = 0
    ulp: float = 0.0

    def over_allowed(self, scale: float) -> float:
        """The error over what is allowed; above 1 it is wrong. scale: root mean square below which a tensor counts as noise."""
        allowed = 2 * self.eager**0.5 + FLOOR_ULPS * self.ulp * (self.size**0.5 + scale * self.count**0.5) + 1e-30
        return self.mine**0.5 / allowed

    def add(self, mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> None:
        """One more input. What has another dtype or shape, or is not finite elsewhere, is infinitely wrong; integers have to be equal."""
        if mine.dtype != eager.dtype or mine.shape != eager.shape:
            self.mine = float("inf")
        elif not eager.is_floating_point():
            self.mine += 0.0 if torch.equal(mine, eager) else float("inf")
        else:
            left, right, exact = (t.detach().double().flatten() for t in (mine, eager, truth))
            odd = ~right.isfinite()
            if not torch.equal(left[odd].nan_to_num(nan=1e300), right[odd].nan_to_num(nan=1e300)):
                self.mine = float("inf")
            left, right, exact = left[~odd], right[~odd], exact[~odd]
            self.mine += float((left - exact).square().sum())
            self.eager += float((right - exact).square().sum())
            self.size += float(exact.square().sum())
            self.count += exact.numel()
            self.ulp = torch.finfo(eager.dtype).eps


def build(name: str, size: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model in float32 and its inputs, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    if name.startswith("timm:"):
        import timm

        model = timm.create_model(name.removeprefix("timm:"), pretrained=False)
        batch = 8 if size == "full" else 2
        return model, {"x": torch.randn(batch, *model.default_cfg.get("input_size", (3, 224, 224)), generator=generator)}
    if name.startswith("program:"):
        return PROGRAMS[name.removeprefix("program:")](size)
    architecture = next(item for item in ARCHITECTURES if item.name == name)
    of_text = size != "tiny" and architecture.kind in ("causal", "masked", "seq2seq")
    capture_models.BATCH, capture_models.LENGTH = (4, 96) if of_text else (2, 12)
    if not of_text:
        return make(architecture)
    return make(Architecture(name, architecture.kind, architecture.head, library_options(architecture, size), architecture.model_type))


#: what the configurations for capture say beside sizes
_KEPT = (
    "vocab_size", "pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id", "mask_token_id",
    "relative_attention", "pos_att_type", "position_embedding_type", "attention_types", "num_layers",
)  # fmt: skip
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")


def library_options(architecture: Architecture, size: str) -> dict[str, Any]:
    """The library's own sizes; at `small` two layers that are not too wide."""
    options = {key: value for key, value in architecture.options.items() if key in _KEPT}
    if size == "full":
        return options
    options.update({key: 2 for key in _LAYERS if key in architecture.options})
    if "num_key_value_heads" in architecture.options:
        options.update(hidden_size=1024, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=2816)
    elif architecture.name in ("falcon", "gpt_neox", "phi", "opt"):
        options.update(hidden_size=1024, num_attention_heads=16, intermediate_size=2816)
    return options


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if "drop" in key and isinstance(value, float):
                setattr(module, key, 0.0)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def as_dtype(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    return value


def loss_of(outputs: Any) -> torch.Tensor:
    """The model's own loss, or the mean squares of all that it gives."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    if isinstance(loss, torch.Tensor):
        return loss
    return torch.stack([t.float().square().mean() if t.dtype != torch.float64 else t.square().mean() for t in flat_tensors(outputs) if t.requires_grad]).sum()


def results(model: torch.nn.Module, call: Callable[..., Any], inputs: dict[str, Any], train: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and, in train mode, gradients of the parameters and buffers."""
    arguments = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    positional = (arguments.pop("x"),) if "x" in arguments else ()
    torch.manual_seed(5)
    if not train:
        with torch.no_grad():
            return flat_tensors(call(*positional, **arguments)), []
    model.zero_grad(set_to_none=True)
    outputs = call(*positional, **arguments)
    loss_of(outputs).backward()
    gradients = [p.grad if p.grad is not None else torch.zeros(()) for p in model.parameters()]
    return [t.detach() for t in flat_tensors(outputs)], [*gradients, *(buffer.clone() for buffer in model.buffers())]


def timed(call: Callable[[], Any], device: str) -> float:
    """Milliseconds, the median of seven."""
    found = []
    for _ in range(7):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
    return sorted(found)[3]


def smooth(model: torch.nn.Module) -> torch.nn.Module:
    """The model with SiLU in the place of every ReLU that is a module."""
    for module in model.modules():
        for key, value in {**vars(module), **module._modules}.items():
            if type(value).__name__ in ("ReLU", "ReLUActivation", "LeakyReLU", "ReLU6"):
                setattr(module, key, torch.nn.SiLU())
    return model


def other_inputs(inputs: dict[str, Any], seed: int) -> dict[str, Any]:
    """Inputs of the same kind: other random numbers, tokens in another order."""
    generator = torch.Generator().manual_seed(seed)
    made = dict(inputs)
    order = None
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            made[key] = torch.randn(value.shape, generator=generator)
        elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype == torch.int64:
            order = torch.randperm(value.shape[1], generator=generator) if order is None or len(order) != value.shape[1] else order
            made[key] = value[:, order]
    return made


@dataclass
class Reference:
    """One input and what is right for it: outputs, and gradients and buffers, of the model in float64 (`exact`) and of eager."""

    given: dict[str, Any]
    exact: tuple[list[torch.Tensor], list[torch.Tensor]]
    eager: tuple[list[torch.Tensor], list[torch.Tensor]]


def references(
    model: torch.nn.Module, eager: Callable[..., Any], inputs: list[dict[str, Any]], train: bool, dtype: torch.dtype, device: str
) -> list[Reference]:
    """What is right for each of `inputs`. eager: the call of the model to judge by. The model's state is as before afterwards."""
    exact_model = copy.deepcopy(model).double()
    if hasattr(exact_model, "set_experts_implementation"):
        exact_model.set_experts_implementation("eager")  # grouped matrix products know no float64
    state, exact_state = copy.deepcopy(model.state_dict()), copy.deepcopy(exact_model.state_dict())
    found = []
    for case in inputs:
        given = {key: as_dtype(value, dtype, device) for key, value in case.items()}
        exact = results(exact_model, exact_model, {key: as_dtype(value, torch.float64, device) for key, value in given.items()}, train)
        plain = results(model, eager, given, train)
        found.append(Reference(given, exact, plain))
        if train:
            exact_model.load_state_dict(exact_state)
            model.load_state_dict(state)
    model.zero_grad(set_to_none=True)
    return found


def judged(model: torch.nn.Module, call: Callable[..., Any], cases: list[Reference], train: bool, ulp: float = 0.0) -> tuple[float, str, float]:
    """(largest error of a call over what is allowed, of which tensor, seconds of the first call), pooled over the cases.

    ulp: the least that an ulp counts as, for what is float32 and was computed in less. The model's state is as before afterwards."""
    state = copy.deepcopy(model.state_dict()) if train else {}
    pools: dict[tuple[str, int], tuple[Errors, tuple[int, ...]]] = {}
    scales, seconds = [], 0.0
    for case in cases:
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        mine = results(model, call, case.given, train)
        synchronize(mine[0])
        seconds = seconds or time.perf_counter() - start
        if train:
            mine = ([t.clone() for t in mine[0]], [t.clone() for t in mine[1]])
            model.load_state_dict(state)
        for what, ours, theirs, exact in zip(("output", "gradient or buffer"), mine, case.eager, case.exact, strict=True):
            if len(ours) != len(theirs):
                return float("inf"), f"{len(ours)} {what}s, eager {len(theirs)}", seconds
            if what != "output":
                scales += [float(t.double().square().mean().sqrt()) for t in exact if t.is_floating_point() and t.numel()]
            for number, parts in enumerate(zip(ours, theirs, exact, strict=True)):
                pool = pools.setdefault((what, number), (Errors(), tuple(parts[0].shape)))[0]
                pool.add(*parts)
                pool.ulp = max(pool.ulp, ulp)
    model.zero_grad(set_to_none=True)
    scale = 1e-3 * sorted(scales)[len(scales) // 2] if scales else 0.0
    found = [(pool.over_allowed(scale if what != "output" else 0.0), f"{what} {number} {shape}") for (what, number), (pool, shape) in pools.items()]
    worst, which = max(found, default=(0.0, ""))
    return worst, which, seconds


def synchronize(tensors: list[torch.Tensor]) -> None:
    if any(t.is_cuda for t in tensors):
        torch.cuda.synchronize()


def compare(
    plain: torch.nn.Module, backend: str, inputs: list[dict[str, Any]], train: bool, dtype: torch.dtype, device: str
) -> tuple[float, str, Callable[..., Any], float]:
    """(largest error over what is allowed, of which tensor, the compiled model, seconds of its first call), pooled over `inputs`."""
    import fxloom

    fxloom.reset()
    compiled = fxloom.compile(plain, backend=backend)
    worst, which, seconds = judged(plain, compiled, references(plain, plain, inputs, train, dtype, device), train)
    return worst, which, compiled, seconds


def check(name: str, mode: str, dtype_name: str, options: argparse.Namespace) -> Outcome:
    import fxloom

    record = Outcome(name, mode, dtype_name)
    train, dtype, device = mode == "train", getattr(torch, dtype_name), options.device
    model, inputs = build(name, options.size)
    model = model.to(device, dtype).train(train)
    state = copy.deepcopy(model.state_dict())
    plain = without_dropout(copy.deepcopy(model))
    given = {key: as_dtype(value, dtype, device) for key, value in inputs.items()}
    worst, which, compiled, seconds = compare(plain, options.backend, [inputs], train, dtype, device)
    record.worst, record.compile_seconds = round(worst, 3), round(seconds, 2)
    counts = fxloom.stats()
    record.graphs, record.breaks, record.fallbacks = counts.graphs, counts.graph_breaks, dict(counts.fallbacks)
    record.kernels = sum(counts.kernels.values())
    if options.time:
        record.eager_ms = round(timed(lambda: results(plain, plain, given, train), device), 3)
        record.compiled_ms = round(timed(lambda: results(plain, compiled, given, train), device), 3)
        plain.load_state_dict(state)
    if worst > 1:
        record.kind, record.text = "wrong", f"{which}: {worst:.3g} of the allowed error"
        if worst < float("inf"):
            others = [other_inputs(inputs, seed) for seed in range(5)]
            again, which, _, _ = compare(smooth(copy.deepcopy(plain)), options.backend, others, train, dtype, device)
            record.pooled = round(again, 3)
            record.kind = "rounding" if again <= 1 else "wrong"
            record.text += f"; {again:.3g} pooled over five inputs, without ReLUs" + (f" ({which})" if again > 1 else "")
    if train:
        model.load_state_dict(state)
        fxloom.reset()
        found = results(model, fxloom.compile(model, backend=options.backend), given, True)
        if record.kind in ("correct", "rounding") and not all(bool(t.isfinite().all()) for t in found[1] if t.is_floating_point()):
            if all(bool(t.isfinite().all()) for t in results(model, model, given, True)[1] if t.is_floating_point()):
                record.kind, record.text = "wrong", "with dropout: gradients that are not finite"
    return record


# ---- processes --------------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """A worker; a case is a model, a mode and a dtype."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    serve(caught(lambda name, mode, dtype: check(name, mode, dtype, options), Outcome))


def tell(record: Outcome) -> None:
    print(record.model, record.mode, record.dtype, record.kind, record.text[:500], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--modes", default="eval,train")
    parser.add_argument("--size", choices=("tiny", "small", "full"), default="tiny")
    parser.add_argument("--only", default="", help="models, joined by commas; timm's as timm:NAME, other programs as program:NAME")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no model is begun")
    parser.add_argument("--time", action="store_true", help="time a call of eager and of the compiled program as well")
    parser.add_argument("--json", help="where to write all outcomes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    names = options.only.split(",") if options.only else list(MODELS)
    cases = [(name, mode, dtype) for name in names for mode in options.modes.split(",") for dtype in options.dtypes.split(",")]
    found, left = run_all(cases, Outcome, sys.argv[1:], options, tell)
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{options.backend} on {device}, torch {torch.__version__}, size {options.size}, {left} not run: {dict(collections.Counter(r.kind for r in found))}")
    for record in sorted(found, key=lambda r: (r.kind, names.index(r.model), r.mode, r.dtype)):
        speed = f" {record.eager_ms:.2f} ms eager, {record.compiled_ms:.2f} ms" if record.eager_ms else ""
        print(
            f"{record.kind:8} {record.model:32} {record.mode:5} {record.dtype:8} worst {record.worst:<6} graphs {record.graphs} breaks {record.breaks} "
            f"kernels {record.kernels} fallbacks {sum(record.fallbacks.values())} first call {record.compile_seconds} s{speed} {record.text}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(record) for record in found], indent=1))
    return int(any(record.kind not in ("correct", "rounding") for record in found))


if __name__ == "__main__":
    sys.exit(main())
