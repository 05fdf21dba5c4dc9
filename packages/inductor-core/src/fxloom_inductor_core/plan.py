"""From groups to a `Program`: kernels deduplicated by content, memory planned, one step after the other.

A buffer is allocated right before the step that fills it and freed after its last reader. The memory of a dead buffer is
taken over by a later one of the same size, or in place by an output of the very kernel that reads it last. Inputs, constants
and what a call returned are never taken over. Outputs may be given away as soon as nothing reads them any more.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fxloom_inductor_core.graph import LoweredGraph, Operand
from fxloom_inductor_core.kernelize import FusedKernel, make_kernel
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.schedule import Group
from fxloom_inductor_core.tensors import span
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.expr import Expr, normalize, symbol
from fxloom_interfaces.loop_ir import Layout
from fxloom_interfaces.program import (
    Allocate,
    BindSize,
    Call,
    Free,
    HandOver,
    Kernel,
    Launch,
    Program,
    Ref,
    Return,
    SizeRef,
    Step,
    View,
)

#: device and bytes
Memory: TypeAlias = "tuple[str, Expr]"


@dataclass(frozen=True, slots=True)
class Planned:
    """The program, and how often each library and each fallback is called per run."""

    program: Program
    library_calls: tuple[tuple[str, int], ...]
    fallbacks: tuple[tuple[str, int], ...]


def plan(
    graph: LoweredGraph,
    groups: Sequence[Group],
    codegens: Mapping[str, Codegen],
    options: InductorOptions,
    let_go: Container[str] = (),
    hand_over: int = 0,
) -> Planned:
    """The program that runs `groups` in their order.

    let_go: inputs that nobody else holds, so that they are freed after their last reader. hand_over: outputs are given away
    when so many bytes of them are made; 0: all at the end.
    """
    return _Planner(graph, groups, codegens, options, let_go, hand_over).run()


class _Planner:
    def __init__(
        self,
        graph: LoweredGraph,
        groups: Sequence[Group],
        codegens: Mapping[str, Codegen],
        options: InductorOptions,
        let_go: Container[str],
        hand_over: int,
    ) -> None:
        self.graph = graph
        self.groups = groups
        self.codegens = codegens
        self.options = options
        self.steps: list[Step] = []
        self.kernels: dict[str, tuple[str, Kernel]] = {}
        self.devices: dict[str, str] = {}
        self.views: dict[tuple[str, Layout], str] = {}
        self.views_of: dict[str, list[str]] = {}  # buffer -> other names of its memory
        self.owned: dict[str, None] = {}
        self.pinned: set[str] = set()
        self.pool: dict[Memory, list[str]] = {}
        self.future: Counter[Memory] = Counter()
        self.outputs = {o.buffer for o in graph.outputs if isinstance(o, Operand)}
        self.let_go = let_go
        self.hand_over = hand_over
        self.ready: dict[int, None] = {}  # outputs that are made and not yet given away
        self.given: set[int] = set()
        self.used_last: dict[int, list[int]] = {}  # step number -> outputs that nothing reads after it
        self.reading_groups = Counter(buffer for group in groups for buffer in group.reads)
        self.results: set[str] = set()  # what calls returned

    def run(self) -> Planned:
        for name, (source, dim) in sorted(self.graph.sizes.items()):
            self.steps.append(BindSize(name, source, dim))
        fused = [None if g.call is not None else self._fuse(g) for g in self.groups]
        # a group may turn out to compute nothing that anyone reads
        wanted = [kernel is None or bool(kernel.kernel.stages) for kernel in fused]
        self.groups = list(itertools.compress(self.groups, wanted))
        fused = list(itertools.compress(fused, wanted))
        last = self._last_uses(fused)
        for group, kernel in zip(self.groups, fused, strict=True):
            for buffer in self._allocated(group, kernel):
                self.future[self._memory(buffer)] += 1
            if group.call is not None and group.call.aliases:
                self.pinned.update(group.call.reads())
        for number, (group, kernel) in enumerate(zip(self.groups, fused, strict=True)):
            dying = last.get(number, [])
            if kernel is not None:
                self._launch(group, kernel, dying)
            else:
                self._call(group)
            self._release(dying)
            if self.hand_over:
                self._give(group, number)
        self.steps.append(Return(tuple(None if n in self.given else self._returned(o) for n, o in enumerate(self.graph.outputs))))
        program = Program(
            tuple(self.graph.inputs),
            tuple(self.kernels.values()),
            tuple(self.devices.items()),
            tuple(self.steps),
        )
        calls = [g.call for g in self.groups if g.call is not None]
        return Planned(
            program,
            tuple(sorted(Counter(c.op for c in calls if c.library and not c.check).items())),
            tuple(sorted(Counter(c.op for c in calls if not c.library).items())),
        )

    # ------------------------------------------------------------------------------------------------- liveness

    def _fuse(self, group: Group) -> FusedKernel:
        capabilities = self.codegens[group.device.split(":")[0]].capabilities

        def is_live(buffer: str) -> bool:
            return buffer in self.outputs or self.reading_groups[buffer] > (buffer in group.reads)

        return make_kernel(group, is_live, self._dtype, capabilities, self.graph.op_names)

    def _dtype(self, buffer: str) -> str:
        return self.graph.layouts[buffer].dtype

    def _last_uses(self, fused: Sequence[FusedKernel | None]) -> dict[int, list[str]]:
        """Step number -> buffers that die there, in order of their making."""
        last: dict[str, int] = {}
        for number, (group, kernel) in enumerate(zip(self.groups, fused, strict=True)):
            names = [*group.reads, *group.writes] if kernel is None else kernel.buffers
            for name in names:
                last[name] = number
        result: dict[int, list[str]] = {}
        for name, number in last.items():
            if name not in self.outputs and (name.startswith("buf") or name in self.let_go):
                result.setdefault(number, []).append(name)
        for position, output in enumerate(self.graph.outputs):
            if isinstance(output, Operand) and output.buffer in last:
                self.used_last.setdefault(last[output.buffer], []).append(position)
        return result

    def _give(self, group: Group, number: int) -> None:
        """Give away the outputs that are made and that nothing reads any more, when they are `hand_over` bytes or more."""
        if number not in self.used_last:
            return
        for position in self.used_last[number]:
            output = self.graph.outputs[position]
            # what may share memory with something that is read later stays: who gets it may write there
            own = output.buffer in self.owned and output.buffer not in self.pinned
            if own or (group.call is not None and output.buffer in group.call.results and not group.call.aliases):
                self.ready[position] = None
        given = {position: self.graph.outputs[position] for position in self.ready}
        nbytes = [self._memory(name)[1] for name in dict.fromkeys(output.buffer for output in given.values())]
        if not all(isinstance(size, int) for size in nbytes) or sum(nbytes) < self.hand_over:
            return
        values = tuple(self._returned(output) for output in given.values())
        names = dict.fromkeys(output.buffer for output in given.values())
        held = dict.fromkeys(name for buffer in names for name in (buffer, *self.views_of.get(buffer, [])))
        self.steps.append(HandOver(tuple(given), values, tuple(held)))
        self.given.update(given)
        self.ready.clear()

    def _allocated(self, group: Group, kernel: FusedKernel | None) -> list[str]:
        if kernel is None:
            return list(group.call.writes) if group.call is not None else []
        return [b for b in kernel.buffers if b in group.writes]

    def _memory(self, buffer: str) -> Memory:
        """(device, bytes) of a buffer. Symbolic bytes are equal where their expressions are, which holds for every size."""
        layout = self.graph.layouts[buffer]
        elements = span(layout.size, layout.stride)
        return layout.device, normalize(elements * dtype_info(layout.dtype).nbytes)

    def _allocate(self, buffer: str, take_over: str | None = None) -> None:
        layout = self.graph.layouts[buffer]
        memory = self._memory(buffer)
        self.future[memory] -= 1
        reuse = take_over
        if reuse is None and self.options.reuse_memory and self.pool.get(memory):
            reuse = self.pool[memory].pop()
        if reuse is not None:  # the old names hold the memory as well: they go when the new one does
            self.views_of[buffer] = [reuse, *self.views_of.pop(reuse, [])]
        self.owned[buffer] = None
        self.steps.append(Allocate(buffer, layout.device, layout.dtype, layout.size, layout.stride, reuse))

    def _release(self, dying: Sequence[str]) -> None:
        gone: list[str] = []
        for buffer in dying:
            if buffer in self.let_go:
                gone.extend([buffer, *self.views_of.get(buffer, [])])
                continue
            if buffer not in self.owned and buffer not in self.results:
                continue
            memory = self._memory(buffer)
            waiting = len(self.pool.get(memory, ()))
            reusable = buffer in self.owned and buffer not in self.pinned and memory[1] != 0 and self.options.reuse_memory
            if reusable and self.future[memory] > waiting:
                self.pool.setdefault(memory, []).append(buffer)
            else:
                gone.extend([buffer, *self.views_of.get(buffer, [])])
        if gone:
            self.steps.append(Free(tuple(gone)))

    # ---------------------------------------------------------------------------------------------------- steps

    def _launch(self, group: Group, fused: FusedKernel, dying: list[str]) -> None:
        name = self._kernel_name(fused.kernel, group.device)
        for buffer in fused.buffers:
            if buffer in group.writes:
                self._allocate(buffer, self._in_place(buffer, fused, dying))
        for size in fused.kernel.sizes:
            if size not in self.graph.sizes and size not in self.graph.late:
                raise InternalError("inductor.plan", f"kernel {name} takes the size {size}, which nothing tells")
        self.steps.append(Launch(name, fused.buffers, tuple(symbol(s) for s in fused.kernel.sizes)))

    def _in_place(self, buffer: str, fused: FusedKernel, dying: list[str]) -> str | None:
        if not self.options.reuse_memory:
            return None
        for read, written in fused.in_place:
            if written != buffer or read not in dying or read not in self.owned or read in self.pinned:
                continue
            memory = self._memory(read)
            if memory == self._memory(buffer) and memory[1] != 0:
                dying.remove(read)
                return read
        return None

    def _kernel_name(self, kernel: Kernel, device: str) -> str:
        key = f"{device} {kernel.digest()}"
        if key not in self.kernels:
            words = "_".join(kernel.title)[:48].rstrip("_")
            name = f"fused_{words}_{len(self.kernels)}"
            self.kernels[key] = (name, kernel)
            self.devices[name] = device
        return self.kernels[key][0]

    def _call(self, group: Group) -> None:
        call = group.call
        if call is None:
            raise AssertionError("a group is a kernel or a call")
        for buffer in call.writes:
            self._allocate(buffer)
        args = tuple(self._argument(a) for a in call.args)
        kwargs = tuple((k, self._argument(v)) for k, v in call.kwargs)
        results = tuple(r if r is not None else "_" for r in call.results)
        self.results.update(results)
        strides = tuple(self.graph.layouts[r].stride if r in self.graph.layouts else None for r in call.results)
        if not call.binds:
            self.steps.append(Call(call.target, args, kwargs, results, call.unpack, () if call.check else strides))
            return
        # the results tell sizes that their strides are made of
        self.steps.append(Call(call.target, args, kwargs, results, call.unpack))
        self.steps += [BindSize(name, result, dim) for name, result, dim in call.binds]
        for result, stride in zip(results, strides, strict=True):
            if stride is not None:
                self.steps.append(Call("with_strides", (Ref(result), tuple(map(SizeRef, stride))), results=(result,)))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            return Ref(self._seen_as(value))
        if isinstance(value, (list, tuple)):
            return type(value)(self._argument(v) for v in value)
        if not isinstance(value, (bool, int, float, str, type(None))) and hasattr(value, "free_symbols"):
            return SizeRef(value)
        return value

    def _seen_as(self, operand: Operand, exact: bool = False) -> str:
        """The name of a buffer seen with the operand's layout; exact: strides of axes with one element count too."""
        own = self.graph.layouts[operand.buffer]
        layout = replace(operand.layout, offset=normalize(operand.layout.offset))
        if own == layout if exact else _same(own, layout):
            return operand.buffer
        key = (operand.buffer, layout)
        if key not in self.views:
            name = f"{operand.buffer}_view{len(self.views_of.get(operand.buffer, []))}"
            self.views[key] = name
            self.views_of.setdefault(operand.buffer, []).append(name)
            self.steps.append(View(name, operand.buffer, layout.size, layout.stride, layout.offset))
        return self.views[key]

    def _returned(self, value: Any) -> Any:
        return Ref(self._seen_as(value, exact=True)) if isinstance(value, Operand) else value


def _same(a: Layout, b: Layout) -> bool:
    if a.size != b.size or a.offset != b.offset:
        return False
    return all(x == y or e in (0, 1) for x, y, e in zip(a.stride, b.stride, a.size, strict=True))
