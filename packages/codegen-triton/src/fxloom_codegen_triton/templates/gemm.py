"""The GEMM template: `out = a @ b`, with an optional bias along the columns and ReLU, rendered from `gemm.py.jinja`.

In: the type of the operands and whether there is a bias. Out: one source with a variant for each tile size, and its callable, which
measures variants and library at the first call. What a GEMM does that a library call can't is to apply an epilogue (operators on the
result) before the result leaves the registers.
"""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from fxloom_codegen_triton.compiler_options import options_here
from fxloom_codegen_triton.modules import load_module
from fxloom_codegen_triton.templates.template import Template
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.errors import UserError

if TYPE_CHECKING:
    import jinja2
    import torch

    from fxloom_interfaces.artifacts import ArtifactStore


log = logging.getLogger("fxloom.autotune")


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """Tile sizes and launch parameters; all tile sizes are powers of two of at least 16."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 8
    num_stages: int = 3


#: Tried in this order where a choice is measured; the first is the default.
CONFIGS = (
    MatmulConfig(),
    MatmulConfig(128, 256, 64, 8, 8, 3),
    MatmulConfig(64, 128, 64, 8, 4, 4),
    MatmulConfig(64, 64, 32, 8, 4, 4),
    MatmulConfig(32, 64, 32, 8, 4, 4),
)


@functools.cache
def _template() -> jinja2.Template:
    import jinja2

    text = (files("fxloom_codegen_triton") / "templates" / "gemm.py.jinja").read_text()
    return jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(text)


def matmul_source(
    name: str,
    *,
    dtype: str,
    bias: bool = False,
    activation: Literal["relu"] | None = None,
    config: MatmulConfig = CONFIGS[0],
    allow_tf32: bool = False,
) -> KernelSource:
    """The template filled in. dtype: of a and b ("float16", "bfloat16", "float32"); sums are float32."""
    steps = [*(["add bias"] if bias else []), *([activation] if activation else [])]
    text = _template().render(
        name=name,
        dtype=dtype,
        epilogue=", ".join(steps),
        epilogue_pointer="bias_ptr" if bias else "",
        activation=activation or "",
        input_precision="tf32" if allow_tf32 else "ieee",
        block_m=config.block_m,
        block_n=config.block_n,
        block_k=config.block_k,
        group_m=config.group_m,
    )
    return KernelSource(name, "triton", text, {"helpers": (), "config": config})


def build_matmul(source: KernelSource, store: ArtifactStore) -> Callable[..., None]:
    """`matmul(a, b, [bias,] out)`: a (M, K), b (K, N), bias (N,), out (M, N), any strides; writes out."""
    function = getattr(load_module([source], store)[0], source.name)
    return functools.partial(_launch, function, source.details["config"])


def _launch(function: Any, config: MatmulConfig, a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> None:
    out = rest[-1]
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k or tuple(out.shape) != (m, n):
        raise UserError(f"matmul of {tuple(a.shape)} and {tuple(b.shape)} into {tuple(out.shape)}")
    grid = (max(-(-m // config.block_m) * -(-n // config.block_n), 1), 1, 1)
    strides = (*a.stride(), *b.stride(), *out.stride())
    launch: Any = function[grid]
    launch(a, b, *rest, m, n, k, *strides, num_warps=config.num_warps, num_stages=config.num_stages, **options_here())


# ---- one function that takes the fastest of the library and the template's tile sizes -------------------------------


def tuned_source(name: str, *, dtype: str, bias: bool) -> KernelSource:
    """The template under all of CONFIGS, as one source; `TunedMatmul` is its callable."""
    variants = [matmul_source(f"{name}_{number}", dtype=dtype, bias=bias, config=config) for number, config in enumerate(CONFIGS)]
    return KernelSource(
        name, "triton", "\n\n".join(v.text.rstrip() for v in variants) + "\n", {"helpers": (), "configs": CONFIGS, "bias": bias}
    )


def _render(name: str, parameters: Mapping[str, Any]) -> KernelSource:
    return tuned_source(name, dtype=parameters["dtype"], bias=parameters["bias"])


class TunedMatmul:
    """`matmul(a, b, [bias,] out=)`: the library or the template, whichever was faster when these shapes came first.

    Measuring runs the candidates on the very operands; a candidate that fails (too much shared memory) drops out. Where
    nothing can be measured (Triton's interpreter, while a CUDA graph is being recorded) new shapes take the library.
    """

    def __init__(self, module: Any, source: KernelSource) -> None:
        names = [(f"{source.name}_{number}", config) for number, config in enumerate(source.details["configs"])]
        self.name = source.name
        self.candidates: dict[str, Callable[..., None]] = {"library": _library}
        for name, config in names:
            self.candidates[name] = functools.partial(_launch, getattr(module, name), config)
        self.chosen: dict[Any, Callable[..., None]] = {}
        self.milliseconds: dict[Any, dict[str, float]] = {}

    def __call__(self, *operands: torch.Tensor, out: torch.Tensor) -> None:
        from fxloom_codegen_triton.launch import run_on  # it imports torch

        run_on(out.get_device(), self._run, operands, out)

    def _run(self, operands: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        key = tuple((operand.shape, operand.stride(), operand.data_ptr() % 16 == 0) for operand in operands)
        run = self.chosen.get(key)
        if run is None:
            run = self._choose(key, (*operands, out))
        run(*operands, out)

    def _choose(self, key: Any, arguments: tuple[torch.Tensor, ...]) -> Callable[..., None]:
        import torch

        if not arguments[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return _library
        times: dict[str, float] = {}
        for name, candidate in self.candidates.items():
            try:
                times[name] = _milliseconds(functools.partial(candidate, *arguments))
            except Exception as error:
                log.info("template %s is out for %s: %s", name, key, error)
        best = min(times, key=lambda name: times[name])
        log.info("%s for %s: %s of %s", self.name, key, best, {name: f"{time:.3f} ms" for name, time in times.items()})
        self.milliseconds[key] = times
        self.chosen[key] = self.candidates[best]
        return self.chosen[key]


def _library(*arguments: torch.Tensor) -> None:
    import torch

    if len(arguments) == 3:
        a, b, out = arguments
        torch.mm(a, b, out=out)
    else:
        a, b, bias, out = arguments
        torch.addmm(bias, a, b, out=out)


def _milliseconds(run: Callable[[], None], repeats: int = 10) -> float:
    """Median GPU time of a run, after two to warm up."""
    import torch

    for _ in range(2):
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


GEMM = Template(_render, TunedMatmul)
