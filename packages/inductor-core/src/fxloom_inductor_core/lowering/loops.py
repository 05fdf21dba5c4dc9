"""Tensors and loops during lowering: values that are not computed yet, and what stores them in buffers.

In: bodies (functions of an op handler and an index), from lowering rules. Out: `Tensor`s, and traced loops in the lowered graph.
Invariant: every stored intermediate is dense, and no loop takes more arguments than a kernel of its device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from fxloom_inductor_core.ir.cost import BodyCost
from fxloom_inductor_core.ir.graph import LoweredGraph
from fxloom_inductor_core.ir.layouts import CHANNELS_LAST, is_channels_last, order_or_plain
from fxloom_inductor_core.ir.loops import Loop, drop_dead
from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.ir.recorder import Recorder, new_recorder
from fxloom_inductor_core.ir.tensors import (
    AnyTensor,
    Index,
    Tensor,
    contiguous_strides,
    cost_of,
    dim_order,
    flat_index,
    nbytes,
    strides_in_order,
)
from fxloom_inductor_core.options import InductorOptions
from fxloom_interfaces import meta
from fxloom_interfaces.codegen import Capabilities, Codegen
from fxloom_interfaces.dtypes import is_float
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.expr import Expr, free_symbols, symbol
from fxloom_interfaces.loop_ir import Body, Buffer, Layout, Pointwise, Reduction, Scatter
from fxloom_interfaces.ops import ReductionKind, StoreMode

#: Operations that are hidden behind the reading of their operands.
_CHEAP_OPS = 3

#: What a tensor is computed from is next to nothing where it is so much smaller.
_LITTLE = 64


class TooManyArguments(GraphRejected):
    """A loop takes more buffers and sizes than a kernel of its device has arguments."""


class LoopBuilder(ABC):
    """The loops of the graph that is being lowered. node: the graph node being lowered."""

    options: InductorOptions

    def __init__(self, codegens: Mapping[str, Codegen], keep_ir: bool) -> None:
        self.codegens = codegens
        self.keep_ir = keep_ir
        self.out = LoweredGraph()
        self.node: torch.fx.Node | None = None
        self._count = 0

    @abstractmethod
    def float_tensor(self, value: Float, device: str) -> Tensor:
        """A float as a tensor without axes, for kernels to read."""

    @property
    def current(self) -> torch.fx.Node:
        if self.node is None:
            raise AssertionError("no node is being lowered")
        return self.node

    @property
    def fake(self) -> Any:
        """The fake value of the current node."""
        return meta.get_fake(self.current)

    def compute(
        self,
        size: Index,
        dtype: str,
        device: str,
        body: Body,
        inputs: Sequence[AnyTensor] = (),
        *,
        ops: int = 1,
        heavy: bool = False,
    ) -> Tensor:
        """A tensor given by a body that loads `inputs`. TooManyArguments where a kernel can't take them, even stored."""
        self._check_arguments(self._arguments_of(size, inputs), device)
        cost = BodyCost(ops, heavy)
        order = None
        origins: dict[str, None] = {}
        for tensor in inputs:
            cost = cost + cost_of(tensor)
            if tensor.base.body is not None:
                origins.update(dict.fromkeys(tensor.base.origins))
            if order is None and len(tensor.size) == len(size) == 4 and tensor.size == size and is_channels_last(tensor):
                order = CHANNELS_LAST
        origins.update(dict.fromkeys(self.origins_of_current()))
        return Tensor(size, dtype, device, body=body, cost=cost, order=order, origins=tuple(origins), inputs=tuple(inputs))

    def _arguments_of(self, size: Index, inputs: Sequence[AnyTensor]) -> int:
        """Launch arguments of a loop over `size` that reads each input out of one buffer."""
        bases = {id(tensor.base): tensor.base for tensor in inputs if cost_of(tensor).reads}
        buffers = {base.buffer or number for number, base in bases.items()}
        sizes = {s for extents in (size, *(base.size for base in bases.values())) for e in extents for s in free_symbols(e)}
        return len(buffers) + 1 + len(sizes)

    def _check_arguments(self, count: int, device: str) -> None:
        most = self.most_arguments(device)
        if count > most:
            raise TooManyArguments(self.current, f"a kernel with {count} arguments; those of {device} take {most}")

    def most_arguments(self, device: str) -> int:
        """Launch arguments of a kernel on `device` at most."""
        plugin = self.codegens.get(device.split(":")[0])
        return Capabilities().max_arguments if plugin is None else plugin.capabilities.max_arguments

    def realize(self, tensor: AnyTensor, order: tuple[int, ...] | None = None) -> None:
        """Store the tensor (a view's base) in a buffer, unless it is stored."""
        base = tensor.base
        if base.is_stored or base.body is None:
            return
        wanted = order or base.order
        stride = contiguous_strides(base.size) if wanted is None else strides_in_order(base.size, wanted)
        layout = Layout(base.device, base.dtype, base.size, stride)
        name = self.new_buffer(layout)
        node = Pointwise(Buffer(name, layout), base.body, origins=base.origins or self.origins_of_current())
        self.add(node, lambda: self._store_an_input(base))
        base.store_at(name, layout)
        base.cost = BodyCost(reads=frozenset([name]))

    def is_dear(self, tensor: AnyTensor, uses: int) -> bool:
        """Whether to compute a tensor at each of its uses takes longer than to store it once and to read it back."""
        cost = tensor.base.cost
        stored = nbytes(tensor.base.size, tensor.dtype)
        reads = [nbytes(layout.size, layout.dtype) for layout in map(self.out.layouts.__getitem__, cost.reads)]
        known = [read for read in reads if read is not None]
        if stored is None or len(known) < len(reads):
            return cost.ops > _CHEAP_OPS or len(reads) > 1
        read = sum(known)
        if read * _LITTLE <= stored:
            return False
        return cost.ops > _CHEAP_OPS or (len(reads) > 1 and uses * read > (1 + uses) * stored)

    def new_buffer(self, layout: Layout) -> str:
        """The name of a new buffer, which nothing fills yet."""
        name = f"buf{self._count}"
        self._count += 1
        self.out.layouts[name] = layout
        return name

    def stored(self, name: str) -> Tensor:
        """The tensor that a buffer holds."""
        layout = self.out.layouts[name]
        return Tensor(
            layout.size,
            layout.dtype,
            layout.device,
            buffer=name,
            layout=layout,
            cost=BodyCost(reads=frozenset([name])),
            order=dim_order(layout),
        )

    def reduce(
        self,
        kind: ReductionKind,
        size: Index,
        reduction_size: Index,
        dtype: str,
        acc_dtype: str,
        device: str,
        body: Body,
        *,
        result: int = 0,
        order: tuple[int, ...] | None = None,
    ) -> Tensor:
        """out[i] = fold over r of body(i + r), stored."""
        stride = contiguous_strides(size) if order is None else strides_in_order(size, order)
        layout = Layout(device, dtype, size, stride)
        name = self.new_buffer(layout)
        node = Reduction(Buffer(name, layout), kind, size, reduction_size, acc_dtype, body, result, origins=self.origins_of_current())
        self.add(node)
        return self.stored(name)

    def scatter(
        self,
        x: AnyTensor,
        ranges: Index,
        index_of: Callable[[Any, Index], Index],
        body: Body,
        mode: StoreMode = None,
        order: tuple[int, ...] | None = None,
    ) -> Any:
        """x with out[index_of(i)] = body(i) for i in `ranges`, stored; NotImplemented where the device can't, or not in any fixed
        order where the program asks for that.

        mode: combined with what is there. index_of: a position for each axis of x. order: of the result's dims; that of the graph's
        fake tensor where it is not given.
        """
        plugin = self.codegens.get(x.device.split(":")[0])
        able = Capabilities() if plugin is None else plugin.capabilities
        exact = mode in ("min", "max") or (mode in ("add", "mul") and not is_float(x.dtype))
        if f"{mode or 'assign'} {x.dtype}" not in able.scatters:
            return NotImplemented
        if torch.are_deterministic_algorithms_enabled() and not (able.ordered_scatters or exact):
            return NotImplemented
        base = self.copy_of(x)
        self.realize(base, order or order_or_plain(self.fake))
        if base.buffer is None or base.layout is None:
            raise AssertionError("a realized tensor has a buffer")
        name = self.new_buffer(base.layout)
        out, origins = Buffer(name, base.layout), self.origins_of_current()
        self.add(Scatter(out, Buffer(base.buffer, base.layout), ranges, index_of, body, mode, origins=origins))
        return self.stored(name)

    def origins_of_current(self) -> tuple[str, ...]:
        """What a loop or call made now is made for: the current node."""
        return (str(self.current.name),)

    def _store_an_input(self, tensor: Tensor) -> bool:
        """Store the input that a tensor's body computes from most buffers; False where it computes none."""
        lazy = [value.base for value in tensor.inputs if value.base.body is not None and value.base.cost.reads]
        if not lazy:
            return False
        self.realize(max(lazy, key=lambda base: len(base.cost.reads)))
        return True

    def add(self, node: Pointwise | Reduction | Scatter, relieve: Callable[[], bool] = lambda: False) -> None:
        """Add a loop. relieve: has the body read fewer buffers, if it can, for when they are too many."""
        loop = self._trace(node)
        while loop.arguments() > self.most_arguments(loop.device) and relieve():
            loop = self._trace(node)
        if self.keep_ir:
            self.out.nodes.append(node)
        self.add_loop(loop)

    def _trace(self, node: Pointwise | Reduction | Scatter) -> Loop:
        layout = node.out.layout
        outer = [(symbol(f"d{i}"), extent) for i, extent in enumerate(node.ranges)]
        inner: list[tuple[sympy.Symbol, Expr]] = []
        index: Index = tuple(0 if extent == 1 else s for s, extent in outer)
        if isinstance(node, Reduction):
            inner = [(symbol(f"q{i}"), extent) for i, extent in enumerate(node.reduction_ranges)]
        recorder = self.recorder(dict([*outer, *inner]), layout.device)
        where = flat_index(index, layout.stride, layout.offset) if not isinstance(node, Scatter) else 0
        inner_index: Index = tuple(0 if extent == 1 else s for s, extent in inner)
        never_runs = any(extent == 0 for _, extent in (*outer, *inner))

        def value_at(at: Index, dtype: str) -> Any:
            try:
                return node.body(recorder, at)
            except ZeroDivisionError:  # places in a tensor of nothing
                if not never_runs:
                    raise
                return recorder.constant(0, dtype)

        ordered = False
        if isinstance(node, Reduction):
            value = value_at((*index, *inner_index), node.acc_dtype)
            results = recorder.reduction(node.kind, node.acc_dtype, value)
            recorder.store_reduction(node.out.name, where, results[node.result])
            ordered = node.kind in ("argmax", "argmin")
        elif isinstance(node, Scatter):
            where = flat_index(node.index_of(recorder, index), layout.stride, layout.offset)
            recorder.store(node.out.name, where, node.body(recorder, index), node.mode)
        else:
            recorder.store(node.out.name, where, value_at(index, layout.dtype))
        return Loop(
            node.out.name,
            tuple((s, e) for s, e in outer if e != 1),
            tuple((s, e) for s, e in inner if e != 1) or tuple(inner[:1]),
            drop_dead(recorder.instructions),
            layout.device,
            node.origins,
            ordered,
            node.base.name if isinstance(node, Scatter) else None,
        )

    def recorder(self, extents: Mapping[sympy.Symbol, Expr], device: str) -> Recorder:
        """A handler that records a loop of the graph on `device`."""
        fast = self.options.numerics == "fast"
        floats = lambda value: str(self.float_tensor(value, device).buffer)  # noqa: E731  # as short as its name
        return new_recorder(lambda name: self.out.layouts[name].dtype, extents, floats, keep_wide=fast)

    def add_loop(self, loop: Loop) -> None:
        """A loop that is traced (by a rule itself: scans)."""
        self._check_arguments(loop.arguments(), loop.device)
        self.out.work.append(loop)

    def copy_of(self, tensor: AnyTensor) -> Tensor:
        """A new tensor with the same values, not stored yet."""
        return self.compute(tensor.size, tensor.dtype, tensor.device, tensor.load, [tensor], ops=0)
