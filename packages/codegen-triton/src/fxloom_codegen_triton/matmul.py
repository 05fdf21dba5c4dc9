"""The GEMM template: `out = a @ b`, with an optional bias along the columns and ReLU, rendered from `templates/mm.py.jinja`.

What a GEMM does that a library call can't is to apply an epilogue before the result leaves the registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.errors import UserError

if TYPE_CHECKING:
    import jinja2
    import torch

    from fxloom_interfaces.artifacts import ArtifactStore


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


@cache
def _template() -> jinja2.Template:
    import jinja2

    text = (files("fxloom_codegen_triton") / "templates" / "mm.py.jinja").read_text()
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
    from fxloom_codegen_triton.build import load_module

    function = getattr(load_module([source], store)[0], source.name)
    config: MatmulConfig = source.details["config"]

    def matmul(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> None:
        out = rest[-1]
        (m, k), n = a.shape, b.shape[1]
        if b.shape[0] != k or tuple(out.shape) != (m, n):
            raise UserError(f"matmul of {tuple(a.shape)} and {tuple(b.shape)} into {tuple(out.shape)}")
        grid = (max(-(-m // config.block_m) * -(-n // config.block_n), 1), 1, 1)
        strides = (*a.stride(), *b.stride(), *out.stride())
        launch: Any = function[grid]
        launch(a, b, *rest, m, n, k, *strides, num_warps=config.num_warps, num_stages=config.num_stages)

    return matmul
