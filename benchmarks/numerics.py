"""How far results of kernels lie from eager's and from the exact ones, per operator and dtype, in units in the last place.

    python benchmarks/numerics.py                                    # the CPU; prints the table
    python benchmarks/numerics.py --device cuda --json out.json
    python benchmarks/numerics.py --numerics fast                    # with options={"numerics": "fast"}
    python benchmarks/numerics.py --page cpu.json cuda.json          # writes docs/numerics.md from runs

Inputs of elementwise operators: all 65,536 patterns of a float16 and bfloat16 for one argument, random patterns and normal numbers for
two and for wider types. Inputs of operators on rows: normal numbers, rows of 1000. An ulp is the distance between neighbours of the
dtype; 0 beside 0 and NaN beside NaN count as equal, and a result that is finite on one side only as `inf`. What is exact is
computed in float64 by eager on the CPU, for float64 it is not known.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import fxloom

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
#: operators in one compiled program
BATCH = 16

UNARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in ["abs", "neg", "sign", "sqrt", "rsqrt", "reciprocal", "square", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid", "logit", "lgamma", "digamma", "i0", "sinc", "floor", "ceil", "trunc", "round", "frac", "nan_to_num", "deg2rad"]
    },
    **{
        name: getattr(F, name)
        for name in ["relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink"]
    },
    "gelu(tanh)": lambda x: F.gelu(x, approximate="tanh"),
    **{f"pow({number})": lambda x, number=number: x**number for number in (2, 3, 4, -1, -2, 0.5, -0.5, 2.5)},
    "clamp(-1, 1)": lambda x: x.clamp(-1, 1),
    "add(0.1)": lambda x: x + 0.1,
    "mul(0.1)": lambda x: x * 0.1,
    "div(0.3)": lambda x: x / 0.3,
    "remainder(0.3)": lambda x: x % 0.3,
    "floor_divide(0.3)": lambda x: x // 0.3,
    "div(0.3, trunc)": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
}
BINARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2", "hypot", "maximum", "minimum", "fmax", "fmin", "copysign", "nextafter", "logaddexp", "logaddexp2", "xlogy", "heaviside"]
    },
    "div(trunc)": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add(alpha)": lambda x, y: torch.add(x, y, alpha=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "where": lambda x, y: torch.where(x < y, x, y),
}
ROWS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: (x * 0.01 + 1).prod(-1),
    "amax": lambda x: x.amax(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (1000,)),
    "rms_norm": lambda x: F.rms_norm(x, (1000,)),
    "cumsum": lambda x: x.cumsum(-1),
}
KINDS = {"one argument": (UNARY, 1), "two arguments": (BINARY, 2), "rows": (ROWS, 1)}


@dataclass
class Measured:
    """differing: part of the results that are not eager's. from_eager, eager, own: largest distances in ulp; NaN: not known."""

    kind: str
    operator: str
    dtype: str
    differing: float
    from_eager: float
    eager: float
    own: float


def inputs(kind: str, dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    if kind == "rows":
        return [torch.randn(200, 1000, generator=random).to(dtype)]
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    if kind == "one argument" and dtype.itemsize == 2:
        return [_quiet(torch.arange(-(2**15), 2**15, dtype=torch.int32).to(integer).view(dtype))]

    def some() -> torch.Tensor:
        low, high = torch.iinfo(integer).min, torch.iinfo(integer).max
        patterns = torch.randint(low, high, (2**18,), dtype=integer, generator=random).view(dtype)
        return _quiet(torch.cat([patterns, *(torch.randn(2**17, generator=random, dtype=torch.float64).mul(scale).to(dtype) for scale in (1, 30))]))

    return [some() for _ in range(KINDS[kind][1])]


def _quiet(values: torch.Tensor) -> torch.Tensor:
    """Without signaling NaNs, of which C's own functions make other results than of quiet ones."""
    return torch.where(values.isnan(), math.nan, values)


def ulps(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of two float64 tensors, elementwise, in ulps of `dtype` at `right`; results of `dtype` are given widened."""
    info = torch.finfo(dtype)
    size = torch.maximum(right.abs(), torch.tensor(info.tiny, dtype=torch.float64))
    unit = torch.exp2(torch.floor(torch.log2(size))) * info.eps
    same = (left == right) | (left.isnan() & right.isnan())
    overflow = right.isfinite() & (right.abs() > info.max)  # exact, and beyond the dtype
    distance = torch.where(left.isfinite() & right.isfinite(), (left - right).abs() / unit, math.inf)
    return torch.where(same | overflow, 0.0, distance)


def measure(kind: str, dtype: str, options: argparse.Namespace) -> Iterator[Measured]:
    functions, _ = KINDS[kind]
    given = inputs(kind, DTYPES[dtype])
    here = [value.to(options.device) for value in given]
    names = list(functions)
    chosen = {"numerics": options.numerics} if options.numerics else None
    for start in range(0, len(names), BATCH):
        batch = [(name, functions[name]) for name in names[start : start + BATCH]]
        eager = dict(_results(batch, here))
        batch = [(name, function) for name, function in batch if name in eager]

        def program(*args: torch.Tensor, batch: Any = batch) -> list[torch.Tensor]:
            return [function(*args) for _, function in batch]

        results = fxloom.compile(program, fullgraph=True, options=chosen)(*here)
        exact = dict(_results(batch, [value.double() for value in given])) if dtype != "float64" else {}
        for (name, _), own in zip(batch, results, strict=True):
            wide, mine = eager[name].double().cpu(), own.double().cpu()
            distance = ulps(mine, wide, DTYPES[dtype])
            known = exact.get(name)
            errors = (math.nan, math.nan) if known is None else (_largest(wide, known, dtype), _largest(mine, known, dtype))
            differing = float((distance != 0).double().mean())
            yield Measured(kind, name, dtype, differing, float(distance.max()), *errors)


def _largest(result: torch.Tensor, exact: torch.Tensor, dtype: str) -> float:
    distance = ulps(result, exact, DTYPES[dtype])
    return float(distance[distance.isfinite()].max())


def _results(batch: list[tuple[str, Callable[..., Any]]], args: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """By name, without the operators that eager has no kernel for."""
    for name, function in batch:
        try:
            yield name, function(*args)
        except (RuntimeError, NotImplementedError):
            continue


def page(runs: list[dict[str, Any]]) -> str:
    """The table of docs/numerics.md."""
    lines = [
        "# Numerics",
        "",
        "Written by `benchmarks/numerics.py --page`, from runs on the machines named below; what is measured stands at its top.",
        "`a / b / c`: largest distance of our result from eager's, of eager's from the exact one, and of ours from the exact one, in units",
        "in the last place; `=` where all results are eager's, bit by bit. `exact` means `options={\"numerics\": \"exact\"}`, under which",
        "every row measured on a CPU is `=`, and all but `rms_norm` on a GPU; `fast` differs from the default between fused operators of",
        "half precision only.",
    ]
    for run in runs:
        rows: dict[tuple[str, str], dict[str, Measured]] = {}
        for entry in run["measured"]:
            found = Measured(**entry)
            rows.setdefault((found.kind, found.operator), {})[found.dtype] = found
        lines += ["", f"## {run['machine']}", ""]
        lines += ["| operator | " + " | ".join(DTYPES) + " |", "|---" * (1 + len(DTYPES)) + "|"]
        for (_, name), by_dtype in rows.items():
            lines.append(f"| {name} | " + " | ".join(_cell(by_dtype.get(dtype)) for dtype in DTYPES) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: Measured | None) -> str:
    if found is None:
        return ""
    if not found.differing:
        return "="
    numbers = (found.from_eager, found.eager, found.own)
    return " / ".join("?" if math.isnan(number) else f"{number:.2g}" for number in numbers)


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.backends.cpu.get_cpu_capability()}"
    return f"{name}, torch {torch.__version__.split('+')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--numerics", default="")
    parser.add_argument("--json", help="file for the numbers")
    parser.add_argument("--page", nargs="+", help="files with the numbers of runs; write docs/numerics.md")
    options = parser.parse_args()
    if options.page:
        text = page([json.loads(Path(path).read_text()) for path in options.page])
        Path(__file__).parent.parent.joinpath("docs", "numerics.md").write_text(text)
        return
    measured = [found for dtype in options.dtypes.split(",") for kind in KINDS for found in measure(kind, dtype, options)]
    run = {"machine": machine(options.device), "numerics": options.numerics, "measured": [asdict(found) for found in measured]}
    if options.json:
        Path(options.json).write_text(json.dumps(run, indent=1))
    print(page([run]))


if __name__ == "__main__":
    main()
