"""A kernel as a NumPy function: every axis is an array dimension, every value an array that broadcasts.

Outer points don't depend on each other, so all of them are computed at once, stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fxloom_codegen_common.writer import SourceWriter
from fxloom_interfaces.artifacts import ArtifactStore, artifact_key
from fxloom_interfaces.codegen import BuiltKernels, KernelSource
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import Expr, print_expr
from fxloom_interfaces.program import Compute, Constant, IndexValue, Indirect, Instruction, Kernel, Load, Reduce, Store

_FUNCTIONS = {"FloorDiv": "({0}) // ({1})", "Mod": "({0}) % ({1})", "Min": "np.minimum({0}, {1})", "Max": "np.maximum({0}, {1})"}

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"logical_and": "&", "logical_or": "|", "logical_xor": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_INFIX |= {"floor_div": "//"}

_CALL = {name: f"np.{name}" for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sqrt")}
_CALL |= {name: f"np.{name}" for name in ("floor", "ceil", "trunc", "maximum", "minimum", "isnan", "isinf", "fmod", "sign", "abs")}
_CALL |= {"round": "np.rint", "logical_not": "~", "bitwise_not": "~", "neg": "-", "pow": "np.power", "erf": "erf"}
_CALL |= {"rsqrt": "1 / np.sqrt", "reciprocal": "1 / ", "sigmoid": "sigmoid", "where": "np.where", "remainder": "np.remainder"}

#: Functions that NumPy lacks. A vendor would have better ones.
_PRELUDE = '''import numpy as np
from math import erf as scalar_erf

erf = np.vectorize(scalar_erf, otypes=[float])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
'''


def emit_kernel(kernel: Kernel, name: str) -> KernelSource:
    """The kernel as a Python function of flat arrays and sizes."""
    writer = SourceWriter()
    arguments = [*(buffer.name for buffer in kernel.arguments), *kernel.sizes]
    with writer.block(f"def {name}({', '.join(arguments)}):", end=""):
        writer.comment(" ".join(kernel.title) or "kernel")
        axes = (*kernel.outer, *kernel.inner)
        for position, axis in enumerate(axes):
            shape = ", ".join("-1" if other == position else "1" for other in range(len(axes)))
            writer.line(f"{axis.name} = np.arange({_index(axis.size)}).reshape({shape})")
        extents = ", ".join(_index(axis.size) for axis in axes)
        writer.line(f"points = ({extents}{',' if len(axes) == 1 else ''})")
        folded = tuple(range(len(kernel.outer), len(axes)))
        for stage in kernel.stages:
            for instruction in stage.body:
                for line in _lines(instruction, folded, stage.inner, len(kernel.outer)):
                    writer.line(line)
        writer.line("return None")
    return KernelSource(name, "numpy", writer.text(), {"buffers": len(kernel.arguments)})


def _lines(instruction: Instruction, folded: tuple[int, ...], inner: bool, outer: int) -> list[str]:
    match instruction:
        case Load(result, buffer, index, dtype, mask):
            at = _index(index) if mask is None else f"np.where(v{mask}, {_index(index)}, 0)"
            return [f"v{result} = {buffer}[{at}]"]
        case Constant(result, value, dtype):
            literal = f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
            return [f"v{result} = np.{_dtype(dtype)}({literal})"]
        case IndexValue(result, expr, dtype):
            return [f"v{result} = np.asarray({_index(expr)}).astype(np.{_dtype(dtype)})"]
        case Indirect(symbol, value, size, check, wrap, mask):
            lines = [f"{symbol} = v{value}.astype(np.int64)"]
            if wrap:
                lines.append(f"{symbol} = np.where({symbol} < 0, {symbol} + {_index(size)}, {symbol})")
            if check:
                inside = f"({symbol} >= 0) & ({symbol} < {_index(size)})"
                inside = inside if mask is None else f"{inside} | ~v{mask}"
                lines += [f"if not np.all({inside}):", "    raise IndexError('index out of range')"]
            return lines
        case Compute(result, op, args, dtype):
            return [f"v{result} = {_compute(op, [f'v{a}' for a in args], dtype)}"]
        case Reduce((result,), kind, value, dtype):
            function = {"sum": "np.sum", "max": "np.max", "min": "np.min"}[kind]
            return [f"v{result} = {function}(np.broadcast_to(v{value}, points), axis={folded}, keepdims=True).astype(np.{_dtype(dtype)})"]
        case Store(buffer, index, value, None):
            shape = "points" if inner else f"(*points[:{outer}], *(1,) * {len(folded)})"
            where = f"np.broadcast_to({_index(index)}, {shape})" if folded or outer else _index(index)
            return [f"{buffer}[{where}] = v{value}"]
    raise PluginError("toy", f"does not do {instruction}")


def _compute(op: str, args: list[str], dtype: str) -> str:
    if op == "to_dtype":
        return f"np.asarray({args[0]}).astype(np.{_dtype(dtype)})"
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op not in _CALL:
        raise PluginError("toy", f"has no spelling for {op}")
    text = f"{_CALL[op]}({', '.join(args)})"
    return f"{text}.astype(np.{_dtype(dtype)})" if op == "erf" else text


def _index(expr: Expr) -> str:
    return print_expr(expr, _FUNCTIONS)


def _dtype(name: str) -> str:
    return "bool_" if name == "bool" else name


def build_kernels(sources: Sequence[KernelSource], store: ArtifactStore) -> BuiltKernels:
    """Run the sources and hand out their functions."""
    text = "\n\n".join([_PRELUDE, *(source.text for source in sources)])
    key = artifact_key("toy", source=text)
    path = store.get(key)
    cached = path is not None
    if path is None:
        with store.lock(key):
            path = store.get(key) or store.put(key, lambda target: _write(target, text), ".py")
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    callables = {source.name: _launcher(scope[source.name], source.details["buffers"]) for source in sources}
    return BuiltKernels(callables, compiler_runs=0, cached=cached, source=text)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _launcher(function: Callable[..., None], buffers: int) -> Callable[..., None]:
    def launch(*args: Any) -> None:
        with np.errstate(all="ignore"):
            function(*(_flat(tensor) for tensor in args[:buffers]), *args[buffers:])

    return launch


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """The memory from the tensor's first element on, as one flat array that shares it."""
    offset = tensor.storage_offset()
    numel = tensor.untyped_storage().nbytes() // tensor.element_size() - offset
    return torch.as_strided(tensor.detach(), (numel,), (1,), offset).numpy()
