"""The Python wrapper: a program printed as the source of `call(inputs)`, readable and able to run by itself.

In: a `Program` and the plugins that build its kernels. Out: Python source. Invariant: the same program gives the same bytes.
Within a process the text is executed with the built kernels put in its namespace. As a file (`output_code.py`) it builds the
kernels with the plugins it names, makes inputs of the right layouts, runs, and prints a time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxloom_inductor_core.ir.tensors import span
from fxloom_inductor_core.wrapper.arena import plan_arena
from fxloom_interfaces.codegen import Codegen, KernelSource
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.expr import Expr, print_expr
from fxloom_interfaces.program import (
    Allocate,
    AllocateNumbers,
    BindSize,
    Call,
    Free,
    GroupedLaunch,
    Item,
    Launch,
    Program,
    ProgramInput,
    Ref,
    Return,
    SizeRef,
    Step,
    TorchRef,
    View,
    YieldOutputs,
)
from fxloom_ops.script_definitions import definitions

_HEAD = '''\
"""Compiled graph. `call(inputs)` returns the outputs; it empties the list to free inputs early."""

import math

import torch
from torch import as_strided, empty_strided

cpu = torch.device("cpu")


def with_strides(tensor, stride):
    """`tensor` itself where it has these strides, as libraries usually give them; a copy that has them otherwise."""
    if tensor is None or tensor.stride() == tuple(stride):  # None: not asked for, as attention's log-sum-exp in inference
        return tensor
    if tensor.dim() != len(stride) and tensor.numel() == 0:  # not asked for either, as places in what `unique` is given
        return tensor
    return empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def move_numbers(numbers, device):
    """Tensors without axes on another device, by one copy for each dtype; as far from one another as kernels like addresses to be."""
    moved = {}
    for dtype in {number.dtype: None for number in numbers}:
        stacked = torch.stack([number for number in numbers if number.dtype == dtype])
        spaced = empty_strided(stacked.size(), (max(16 // stacked.element_size(), 1),), dtype=dtype, device=device)
        moved[dtype] = iter(spaced.copy_(stacked).unbind())
    return [next(moved[number.dtype]) for number in numbers]


def check_sizes(tensor, size, op):
    """Raise unless a result has the size that the program asserts of it, in what follows or in so many words."""
    if list(tensor.shape) != size:
        raise RuntimeError(f"the result of {op} has size {list(tensor.shape)}, the program asserts {size}")


def check(truth, message, error=RuntimeError, *numbers):
    """Raise unless what the program asserts of its numbers holds."""
    if not truth:
        raise error(message.format(*numbers) if numbers else message)
'''


def print_wrapper(program: Program, codegens: Mapping[str, Codegen], constants: Sequence[str]) -> str:
    """Source of `call`, which expects the kernels and the constants as globals."""
    printer = _Printer(program, codegens)
    others = {step.device for step in program.steps if isinstance(step, (Allocate, AllocateNumbers))} - {"cpu"}
    devices = [f"{_device_name(device)} = torch.device({device!r})" for device in sorted(others)]
    lines = [_HEAD, *([*devices, ""] if devices else []), "", f"def {'parts' if printer.in_parts else 'call'}(inputs):"]
    names = [i.name for i in program.inputs]
    body: list[str] = []
    if names:
        unpack = ", ".join(names) + ("," if len(names) == 1 else "")
        body += [f"{unpack} = inputs", "inputs.clear()"]
    for device, nbytes in printer.arena.sizes.items():
        name = _device_name(device)
        body.append(f"{name}_arena = empty_strided(({nbytes},), (1,), dtype=torch.uint8, device={name})")
        body.append(f"{name}_small = {name}_arena.data_ptr()  # of buffers that only kernels see")
    for step in program.steps:
        body += printer.step(step)
    if printer.in_parts:
        body += ["", "", *_COLLECT.format(positions=parts_of(program)).splitlines()]
    return "\n".join([*lines, *(f"    {line}" if line and not line.startswith("|") else line[1:] for line in body)]) + "\n"


def parts_of(program: Program) -> tuple[tuple[int, ...], ...]:
    """Positions of the outputs in the order in which they are given away; one part where all are returned at the end."""
    early = [step.positions for step in program.steps if isinstance(step, YieldOutputs)]
    last = program.steps[-1]
    assert isinstance(last, Return)
    given = {position for positions in early for position in positions}
    rest = tuple(position for position in range(len(last.values)) if position not in given)
    return (*early, rest) if rest or not early else tuple(early)


#: ends a wrapper that gives outputs away in parts (lists that the caller empties)
_COLLECT = """\
|PARTS = {positions}
|
|
|def call(inputs):
|    outputs = [None] * sum(map(len, PARTS))
|    for positions, part in zip(PARTS, parts(inputs)):
|        for position, value in zip(positions, part):
|            outputs[position] = value
|        part.clear()
|    return outputs
"""


class _Printer:
    def __init__(self, program: Program, codegens: Mapping[str, Codegen]) -> None:
        self.program = program
        self.codegens = codegens
        self.devices = dict(program.devices)
        self.arena = plan_arena(program, codegens)
        self.shapes: dict[str, tuple[Any, ...]] = {i.name: (i.size, i.stride, i.dtype) for i in program.inputs}
        self.in_parts = any(isinstance(step, YieldOutputs) for step in program.steps)

    def step(self, step: Step) -> list[str]:
        match step:
            case BindSize(symbol, source, dim):
                return [f"{symbol} = {source}" if dim is None else f"{symbol} = {source}.size({dim})"]
            case Allocate():
                return [self.allocate(step)] if step.name not in self.arena.places else []
            case AllocateNumbers(names, device, dtype):
                self.shapes.update((name, ((), (), dtype)) for name in names)
                where = _device_name(device)
                spacing = max(16 // dtype_info(dtype).nbytes, 1)  # kernels are compiled for addresses that are multiples of 16
                tensor = f"empty_strided(({len(names)},), ({spacing},), dtype=torch.{dtype}, device={where})"
                return [f"{', '.join(names)} = {tensor}.unbind()"]
            case View(name, base, size, stride, offset):
                where = "" if offset == 0 else f", {base}.storage_offset() + {print_expr(offset)}"
                return [f"{name} = as_strided({base}, {_tuple(size)}, {_tuple(stride)}{where})"]
            case Launch(kernel, buffers, sizes):
                arguments = self.arguments(kernel, buffers)
                return [f"{kernel}({', '.join([*arguments, *(print_expr(s) for s in sizes)])})"]
            case GroupedLaunch(kernel, sets):
                lines = [", ".join([*self.arguments(kernel, buffers), *map(print_expr, sizes)]) for buffers, sizes in sets]
                return [f"{kernel}([", *(f"    {line}," for line in lines), "])"]
            case Call(target, args, kwargs, results, unpack, strides):
                arguments = [_argument(a) for a in args] + [f"{k}={_argument(v)}" for k, v in kwargs]
                call = f"{target}({', '.join(arguments)})"
                if not results:
                    return [call]
                left = ", ".join(results) + ("," if unpack and len(results) == 1 else "")
                if not unpack and strides and strides[0] is not None:
                    return [f"{left} = with_strides({call}, {_tuple(strides[0])})"]
                checks = [
                    f"{name} = with_strides({name}, {_tuple(stride)})"
                    for name, stride in zip(results, strides or (None,) * len(results), strict=True)
                    if stride is not None
                ]
                return [f"{left} = {call}", *checks]
            case Item(name, base, index):
                return [f"{name} = {base}[{index}]"]
            case Free(names):
                return self.forget(names)
            case YieldOutputs(_, values, names):
                return [f"part = [{', '.join(map(str, values))}]", *self.forget(names), "yield part"]
            case Return(values):
                if self.in_parts:
                    early = {position for step in self.program.steps if isinstance(step, YieldOutputs) for position in step.positions}
                    rest = [_argument(value) for position, value in enumerate(values) if position not in early]
                    return [f"yield [{', '.join(rest)}]"] if rest else []
                return [f"return [{', '.join(_argument(v) for v in values)}]"]
        raise InternalError("inductor.wrapper", f"unknown step {step}")

    def arguments(self, kernel: str, buffers: Sequence[str]) -> list[str]:
        """Buffers as a kernel takes them: by address or as tensors."""
        by_address = self.codegens[self.devices[kernel].split(":")[0]].capabilities.arguments == "address"
        return [self.argument(buffer, by_address) for buffer in buffers]

    def argument(self, buffer: str, by_address: bool) -> str:
        place = self.arena.places.get(buffer)
        if place is not None:
            device, offset = place
            return f"{_device_name(device)}_small + {offset}" if offset else f"{_device_name(device)}_small"
        return f"{buffer}.data_ptr()" if by_address else buffer

    def forget(self, names: Sequence[str]) -> list[str]:
        own = [name for name in names if name not in self.arena.places]
        return [f"del {', '.join(own)}"] if own else []

    def allocate(self, step: Allocate) -> str:
        layout = (step.size, step.stride, step.dtype)
        self.shapes[step.name] = layout
        comment = f"  # {dtype_info(step.dtype).short}{list(step.size)}"
        if step.reuse is None:
            arguments = f"{_tuple(step.size)}, {_tuple(step.stride)}, dtype=torch.{step.dtype}"
            # never the default device, which the program may set
            return f"{step.name} = empty_strided({arguments}, device={_device_name(step.device)})"
        old = self.shapes[step.reuse]
        if old == layout:
            return f"{step.name} = {step.reuse}{comment}, reuses memory"
        source = step.reuse
        if old[2] != step.dtype:
            # strides may forbid to see elements of another size: flat first
            source = f"as_strided({step.reuse}, ({print_expr(span(old[0], old[1]))},), (1,)).view(torch.{step.dtype})"
        return f"{step.name} = as_strided({source}, {_tuple(step.size)}, {_tuple(step.stride)}){comment}, reuses memory"


def _device_name(device: str) -> str:
    """The name under which a wrapper has a device, made once: a string would be parsed at each call."""
    return device.replace(":", "_")


def _tuple(values: Sequence[Expr]) -> str:
    inside = ", ".join(print_expr(v) for v in values)
    return f"({inside},)" if len(values) == 1 else f"({inside})"


def _argument(value: Any) -> str:
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, SizeRef):
        return print_expr(value.expr)
    if isinstance(value, TorchRef):
        return value.text
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(v) for v in value)}]"
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value)


# ------------------------------------------------------------------------------------------------- the file that runs


def _literal(value: torch.Tensor) -> str:
    """A tensor as an expression that gives it, with its strides."""
    size, stride = tuple(value.shape), tuple(value.stride())
    flat = f"torch.tensor({value.flatten().tolist()}, dtype={value.dtype})"
    return f"torch.empty_strided({size}, {stride}, dtype={value.dtype}).copy_({flat}.view({size}))"


def print_runnable(
    program: Program,
    wrapper: str,
    codegens: Mapping[str, Codegen],
    sources: Mapping[str, Sequence[KernelSource]],
    size_hints: Mapping[str, int],
    constants: Mapping[str, torch.Tensor],
) -> str:
    """`output_code.py`: the wrapper, the constants, the kernels' sources, and a main that runs them on made-up inputs."""
    lines = [wrapper, ""]
    if constants:
        lines += ["", "from math import inf, nan", "", *[f"{name} = {_literal(value)}" for name, value in constants.items()], "", ""]
    lines.append("# The kernels as loop IR:")
    for name, kernel in program.kernels:
        lines += [f"# {name}", *(f"#   {line}" for line in kernel.text().splitlines())]
    lines += ["", "SOURCES = {"]
    for device, batch in sources.items():
        lines.append(f"    {device!r}: [")
        for source in batch:
            lines.append(f"        ({source.name!r}, {source.language!r}, {dict(source.details)!r}, r'''\n{source.text}'''),")
        lines.append("    ],")
    lines += ["}", "", "", "def build_kernels():"]
    lines.append('    """Build every kernel into this module."""')
    lines += [
        "    import tempfile",
        "    from pathlib import Path",
        "",
        "    from fxloom_interfaces.artifacts import FileStore",
        "    from fxloom_interfaces.codegen import KernelSource",
        "",
    ]
    own = definitions(step.target for step in program.steps if isinstance(step, Call))
    lines += [*(f"    {line}" for line in own), *([""] if own else [])]
    lines.append("    store = FileStore(Path(tempfile.mkdtemp()))")
    for device in sources:
        plugin = codegens[device]
        module, attribute = _where(plugin)
        lines += [
            f"    from {module} import {attribute} as plugin",
            "",
            f"    batch = [KernelSource(n, lang, text, details) for n, lang, details, text in SOURCES[{device!r}]]",
            "    globals().update(plugin.build(batch, store).callables)",
        ]
    lines += [
        "",
        "",
        "def make_inputs():",
        '    """Inputs with the layouts this graph was compiled for."""',
        "    torch.manual_seed(0)",
    ]
    for name, value in sorted(size_hints.items()):
        lines.append(f"    {name} = {value}")
    lines.append("    return [")
    lines += [f"        {_made_up(i)}," for i in program.inputs]
    lines += ["    ]", "", "", 'if __name__ == "__main__":', "    import time", "", "    build_kernels()"]
    lines += [
        "    with torch.no_grad():",
        "        call(make_inputs())",
        "        inputs = make_inputs()",
        "        start = time.perf_counter()",
        "        call(inputs)",
        '        print(f"{(time.perf_counter() - start) * 1e3:.3f} ms")',
    ]
    return "\n".join(lines) + "\n"


def _where(plugin: Codegen) -> tuple[str, str]:
    """(module, attribute) under which a plugin's object can be imported."""
    module = type(plugin).__module__
    for attribute, value in vars(sys.modules[module]).items():
        if value is plugin:
            return module, attribute
    return module, "PLUGIN"


def _made_up(given: ProgramInput) -> str:
    if given.size is None or given.stride is None or given.dtype is None:
        return "2"
    last = " + ".join(f"({print_expr(e)} - 1) * {print_expr(s)}" for e, s in zip(given.size, given.stride, strict=True)) or "0"
    kind = dtype_info(given.dtype).kind
    numel = f"max({last} + 1, 1)"
    device = f", device={given.device!r}"
    values = (
        f"torch.randn({numel}{device}).to(torch.{given.dtype})"
        if kind == "float"
        else f"torch.zeros({numel}, dtype=torch.{given.dtype}{device})"
    )
    return f"as_strided({values}, {_tuple(given.size)}, {_tuple(given.stride)})"
