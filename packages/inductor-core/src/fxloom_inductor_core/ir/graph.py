"""The graph between lowering and scheduling: loops and calls in program order, over buffers with layouts.

In: what lowering adds. Out: `LoweredGraph`, which the scheduler reads and which is not changed after that. Invariant: a loop or
call reads buffers that inputs, constants, or loops and calls before it define; a buffer is defined once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sympy
import torch
import torch.fx

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.loops import Loop
from fxloom_interfaces.loop_ir import Layout
from fxloom_interfaces.loop_ir import Node as LoopNode
from fxloom_interfaces.program import ProgramInput, SizeRef, TorchRef

#: target of the call that copies a number (a tensor without axes) to another device: of the tensor and the device
NUMBER_COPY = "torch.Tensor.to"


@dataclass(frozen=True, slots=True)
class Operand:
    """A stored tensor as an argument of a call: a buffer seen with a layout."""

    buffer: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A call of a library or eager kernel, in program order.

    writes: buffers allocated by the program and filled by the call. results: names of what it returns (None: not used).
    aliases: results may share memory with operands. binds: (symbol, result, dim) of sizes that only the results tell; where the
    result is a number, its name is the symbol. check: of numbers; raises where something does not hold. effect: called for what
    it does (raise, print), so that it is never dropped and all such calls stay in the program's order.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    writes: tuple[str, ...]
    results: tuple[str | None, ...]
    unpack: bool
    library: bool
    op: str
    device: str
    origins: tuple[str, ...] = ()
    aliases: bool = False
    binds: tuple[tuple[str, str, int], ...] = ()
    check: bool = False
    effect: bool = False

    def operands(self) -> list[Operand]:
        """All tensors among the arguments."""
        return [leaf for leaf in leaves((self.args, tuple(v for _, v in self.kwargs))) if isinstance(leaf, Operand)]

    def reads(self) -> list[str]:
        return [o.buffer for o in self.operands() if o.buffer not in self.writes]

    def symbols(self, layouts: Mapping[str, Layout]) -> list[str]:
        """Names of the numbers that the call takes: in its arguments, and for the memory that it fills."""
        found: dict[str, None] = {}
        for leaf in leaves((self.args, tuple(v for _, v in self.kwargs))):
            if isinstance(leaf, TorchRef):
                found.update(dict.fromkeys(_NAME.findall(leaf.text)))
            elif isinstance(leaf, Operand):
                found.update(_symbols_of((*leaf.layout.size, *leaf.layout.stride, leaf.layout.offset)))
            else:
                found.update(_symbols_of((leaf.expr if isinstance(leaf, SizeRef) else leaf,)))
        for name in self.writes:
            found.update(_symbols_of((*layouts[name].size, *layouts[name].stride)))
        return list(found)


_NAME = re.compile(r"\b[a-z]\d+\b")


def _symbols_of(exprs: Sequence[Any]) -> dict[str, None]:
    return {s.name: None for e in exprs if isinstance(e, sympy.Basic) for s in sorted(e.free_symbols, key=str)}


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


Work: TypeAlias = Loop | ExternCall


@dataclass(slots=True)
class LoweredGraph:
    """Loops and calls in program order. layouts: of every buffer; inputs come first. outputs: Operands, SizeRefs or None.

    sizes: symbol -> (input, dim) that it is read from. templates: name -> (device, kind, parameters) of the plugins' own
    kernels that are called. op_names: graph node -> name of its operator, for kernel names. unbacked: symbols that calls make.
    """

    inputs: list[ProgramInput] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    nodes: list[LoopNode] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    sizes: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    fallback_reasons: dict[str, str] = field(default_factory=dict)
    op_names: dict[str, str] = field(default_factory=dict)
    templates: dict[str, tuple[str, str, Mapping[str, Any]]] = field(default_factory=dict)
    unbacked: dict[str, None] = field(default_factory=dict)


def with_strides_of(operand: Operand, fake: Any) -> Operand:
    """The same memory with the fake's strides, also where they don't matter: along axes of one element or none."""
    exact = tuple(as_expr(s) for s in fake.stride())
    return operand if exact == operand.layout.stride else Operand(operand.buffer, replace(operand.layout, stride=exact))
