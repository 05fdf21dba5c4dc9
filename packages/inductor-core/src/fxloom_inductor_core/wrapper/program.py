"""From groups to a `Program`: kernels, calls and memory as one line of steps.

In: groups in the order in which they run. Out: the program, its kernels deduplicated by content. A buffer is allocated right
before the step that fills it and freed after its last reader; outputs may be yielded as soon as nothing reads them any more.
Invariant: every number that a step takes was bound by a step before it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fxloom_inductor_core.ir.graph import LoweredGraph, Operand
from fxloom_inductor_core.memory.liveness import dying_buffers, last_uses, settled_outputs
from fxloom_inductor_core.memory.overwrites import new_values, overwrites
from fxloom_inductor_core.memory.reuse import MemoryPlan
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.scheduler.grouping import Batch, General, batches, written_over
from fxloom_inductor_core.scheduler.groups import Group
from fxloom_inductor_core.scheduler.kernels import FusedKernel, make_kernel
from fxloom_inductor_core.scheduler.offsets import share_offsets
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.expr import normalize, symbol
from fxloom_interfaces.loop_ir import Layout
from fxloom_interfaces.program import (
    Allocate,
    AllocateNumbers,
    BindSize,
    Call,
    GroupedLaunch,
    Kernel,
    Launch,
    Program,
    Ref,
    Return,
    SizeRef,
    Step,
    View,
    YieldOutputs,
)
from fxloom_interfaces.signature import GraphSignature

#: bytes of a buffer up to which it may be made before its turn
_SMALL_NBYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Planned:
    """The program, and how often each library and each fallback is called per run. kernel_names: by the number of their group."""

    program: Program
    library_calls: tuple[tuple[str, int], ...]
    fallbacks: tuple[tuple[str, int], ...]
    kernel_names: Mapping[int, str]


def plan(
    graph: LoweredGraph,
    groups: Sequence[Group],
    codegens: Mapping[str, Codegen],
    options: InductorOptions,
    signature: GraphSignature | None = None,
    donated: Container[str] = (),
    yield_nbytes: int = 0,
) -> Planned:
    """The program that runs `groups` in their order, save for grouped launches.

    signature: which outputs are new values of inputs. donated: inputs that nobody else holds, so that they are freed after their last
    reader. yield_nbytes: outputs are given away when so many bytes of them are made; 0: all at the end.
    """
    return _Planner(graph, groups, codegens, options, signature, donated, yield_nbytes).run()


class _Planner:
    def __init__(
        self,
        graph: LoweredGraph,
        groups: Sequence[Group],
        codegens: Mapping[str, Codegen],
        options: InductorOptions,
        signature: GraphSignature | None,
        donated: Container[str],
        yield_nbytes: int,
    ) -> None:
        self.graph = graph
        self.options = options
        self.new_values = new_values(graph, signature) if options.reuse_memory else {}
        self.overwrites: dict[str, str] = {}
        self.groups = groups
        self.codegens = codegens
        self.steps: list[Step] = []
        self.kernels: dict[str, tuple[str, Kernel]] = {}
        self.digests: dict[int, str] = {}  # number of a group that is launched alone -> digest of its kernel
        self.sharing: dict[str, dict[str, General]] = {}  # device -> digest of a kernel -> what is launched in its place
        self.devices: dict[str, str] = {}
        self.kernel_names: dict[int, str] = {}  # number of a group -> kernel
        self.views: dict[tuple[str, Layout], str] = {}
        self.memory = MemoryPlan(graph.layouts, options.reuse_memory, donated)
        self.outputs = {o.buffer for o in graph.outputs if isinstance(o, Operand)}
        self.donated = donated
        self.yield_nbytes = yield_nbytes
        self.ready: dict[int, None] = {}  # outputs that are made and not yet yielded
        self.yielded: set[int] = set()
        self.settled: dict[int, list[int]] = {}  # step number -> outputs that nothing reads after it
        self.reading_groups = Counter(buffer for group in groups for buffer in group.reads)
        self.scattered_to = {base for group in groups for base in group.bases().values()}  # their memory goes on under another name

    def run(self) -> Planned:
        for name, (source, dim) in sorted(self.graph.sizes.items()):
            self.steps.append(BindSize(name, source, dim))
        fused = [None if g.call is not None else self._fuse(g) for g in self.groups]
        # a group may turn out to compute nothing that anyone reads
        wanted = [kernel is None or bool(kernel.kernel.stages) for kernel in fused]
        self.groups = list(itertools.compress(self.groups, wanted))
        fused = list(itertools.compress(fused, wanted))
        steps = batches(self.groups, fused, self.codegens, self._may_come_early, self.outputs)
        self.overwrites = overwrites(self.graph, self.new_values, steps)
        self._share_offsets(steps)
        touched = [
            [name for group, kernel in zip(step.groups, step.fused, strict=True) for name in self._touched(group, kernel)] for step in steps
        ]
        last = last_uses(touched)
        dying = dying_buffers(self.graph, last, self.donated)
        self.settled = settled_outputs(self.graph, last)
        for step in steps:
            for group, kernel in zip(step.groups, step.fused, strict=True):
                for buffer in self._allocated(group, kernel):
                    self.memory.expect(buffer)
                if group.call is not None and group.call.aliases:
                    self.memory.share(group.call.reads())
        for number, step in enumerate(steps):
            dead = dict.fromkeys(dying.get(number, ()))
            if step.general is not None:
                self._grouped_launch(step, dead)
            elif step.fused[0] is not None:
                self._launch(step.groups[0], step.fused[0], dead)
            elif len(step.groups) > 1:
                self._move_numbers(step.groups)
            else:
                self._call(step.groups[0])
            free = self.memory.release(dead)
            if free is not None:
                self.steps.append(free)
            if self.yield_nbytes:
                self._yield(step.groups, number)
        self.steps.append(Return(tuple(None if n in self.yielded else self._returned(o) for n, o in enumerate(self.graph.outputs))))
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
            self.kernel_names,
        )

    def _fuse(self, group: Group) -> FusedKernel:
        capabilities = self.codegens[group.device.split(":")[0]].capabilities

        def is_live(buffer: str) -> bool:
            return buffer in self.outputs or self.reading_groups[buffer] > (buffer in group.reads)

        return make_kernel(group, is_live, self._dtype, capabilities, self.graph.op_names)

    def _dtype(self, buffer: str) -> str:
        return self.graph.layouts[buffer].dtype

    def _touched(self, group: Group, kernel: FusedKernel | None) -> Sequence[str]:
        """Buffers that the group's step reads or writes."""
        return [*group.reads, *group.writes] if kernel is None else [*kernel.buffers, *group.bases().values()]

    def _may_come_early(self, kernel: FusedKernel) -> bool:
        """Whether a kernel writes little, or only what lives to the end, so that it may run before its turn."""
        for buffer, described in zip(kernel.buffers, kernel.kernel.arguments, strict=True):
            if described.role != "in" and buffer not in self.new_values:
                nbytes = self.memory.memory(buffer)[1]
                if not isinstance(nbytes, int) or nbytes > _SMALL_NBYTES:
                    return False
        return True

    def _yield(self, groups: Sequence[Group], number: int) -> None:
        """Give away the outputs that are made and that nothing reads any more, when they are `yield_nbytes` or more."""
        if number not in self.settled:
            return
        for position in self.settled[number]:
            output = self.graph.outputs[position]
            # what may share memory with something that is read later stays: who gets it may write there
            call = groups[0].call
            own = self.memory.is_own(output.buffer)
            if own or (call is not None and output.buffer in call.results and not call.aliases):
                self.ready[position] = None
        given = {position: self.graph.outputs[position] for position in self.ready}
        names = dict.fromkeys(output.buffer for output in given.values())
        nbytes = [self.memory.memory(name)[1] for name in names]
        if not all(isinstance(size, int) for size in nbytes) or sum(nbytes) < self.yield_nbytes:
            return
        values = tuple(self._returned(output) for output in given.values())
        held = dict.fromkeys(name for buffer in names for name in self.memory.names(buffer))
        self.steps.append(YieldOutputs(tuple(given), values, tuple(held)))
        self.yielded.update(given)
        self.ready.clear()

    def _allocated(self, group: Group, kernel: FusedKernel | None) -> list[str]:
        if kernel is None:
            return list(group.call.writes) if group.call is not None else []
        return [b for b in kernel.buffers if b in group.writes and b not in group.bases() and b not in self.overwrites]

    # ---------------------------------------------------------------------------------------------------- steps

    def _launch(self, group: Group, fused: FusedKernel, dying: dict[str, None]) -> None:
        if not self._allocate(group, fused, dying):
            return
        digest = self.digests[group.number]
        general = self.sharing[group.device].get(digest)
        if general is None:
            general = General(fused.kernel, tuple(symbol(s) for s in fused.kernel.sizes))
        else:
            digest = general.kernel.digest()
        name = self._kernel_name(general.kernel, group.device, digest)
        for size in fused.kernel.sizes:
            if size not in self.graph.sizes and size not in self.graph.unbacked:
                raise InternalError("inductor.plan", f"kernel {name} takes the size {size}, which nothing tells")
        self.kernel_names[group.number] = name
        self.steps.append(Launch(name, fused.buffers, general.sizes))

    def _share_offsets(self, steps: Sequence[Batch]) -> None:
        """Find the kernels that differ in offsets alone, of those that are launched one by one."""
        kernels: dict[str, dict[str, Kernel]] = {}
        for step in steps:
            for group, fused in zip(step.groups, step.fused, strict=True):
                if step.general is None and fused is not None:
                    digest = self.digests[group.number] = fused.kernel.digest()
                    kernels.setdefault(group.device, {}).setdefault(digest, fused.kernel)
        for device, found in kernels.items():
            self.sharing[device] = share_offsets(found, self.codegens[device.split(":")[0]].capabilities.max_arguments)

    def _grouped_launch(self, step: Batch, dying: dict[str, None]) -> None:
        if step.general is None:
            raise AssertionError("a batch of one is launched as it is")
        reads = Counter(buffer for fused in step.fused if fused is not None for buffer in fused.buffers)
        alone = {buffer: None for buffer in dying if reads[buffer] == 1}  # nobody may write to what others read
        mine = list(alone)
        sets = []
        first = len(self.steps)
        for group, fused, general in zip(step.groups, step.fused, step.general, strict=True):
            if fused is not None and self._allocate(group, fused, alone):
                sets.append((fused.buffers, general.sizes))
        kernel = step.general[0].kernel
        taken = {s.name: s.reuse for s in self.steps[first:] if isinstance(s, Allocate) and s.reuse is not None}
        pairs = [_same_memory(kernel, names, taken) for names, _ in sets]
        if pairs and pairs[0] and all(one == pairs[0] for one in pairs):  # each set writes over what it reads: one argument for both
            kernel, gone = written_over(kernel, pairs[0]), set(pairs[0].values())
            sets = [(tuple(b for at, b in enumerate(names) if at not in gone), sizes) for names, sizes in sets]
        self.steps[first:] = self._numbers_at_once(self.steps[first:])
        for buffer in mine:
            if buffer not in alone:
                del dying[buffer]
        if sets:
            name = self._kernel_name(kernel, step.groups[0].device, kernel.digest(), grouped=True)
            self.kernel_names.update((group.number, name) for group in step.groups)
            self.steps.append(GroupedLaunch(name, tuple(sets)))

    def _numbers_at_once(self, steps: Sequence[Step]) -> list[Step]:
        """These allocations, with all new numbers of a dtype that don't leave the program as elements of one tensor."""
        numbers: dict[tuple[str, str], list[str]] = {}
        for step in steps:
            kept = isinstance(step, Allocate) and (step.name in self.outputs or step.name in self.scattered_to)
            if isinstance(step, Allocate) and step.reuse is None and step.size == () and not kept:
                numbers.setdefault((step.device, step.dtype), []).append(step.name)
        several = {kind: names for kind, names in numbers.items() if len(names) > 1}
        gone = {name for names in several.values() for name in names}
        self.memory.share(gone)  # with one another: no later buffer, which may be an output, takes their memory over
        made: list[Step] = [AllocateNumbers(tuple(names), device, dtype) for (device, dtype), names in several.items()]
        return [*made, *(step for step in steps if not (isinstance(step, Allocate) and step.name in gone))]

    def _allocate(self, group: Group, fused: FusedKernel, dying: dict[str, None]) -> bool:
        """Memory for what a kernel writes; False where it would only copy memory to itself."""
        for buffer in fused.buffers:
            if buffer in group.bases():
                self.steps.append(self.memory.go_on(buffer, group.bases()[buffer], dying))
            elif buffer in self.overwrites:
                self.steps.append(self.memory.over(buffer, self.overwrites[buffer]))
            elif buffer in group.writes:
                source = self.memory.in_place(buffer, fused.in_place, dying)
                self.steps.append(self.memory.allocate(buffer, source))
                if source is not None and fused.is_copy:
                    return False
        return True

    def _kernel_name(self, kernel: Kernel, device: str, digest: str, *, grouped: bool = False) -> str:
        key = f"{device} {digest}{' grouped' if grouped else ''}"
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
            self.steps.append(self.memory.allocate(buffer))
        args = tuple(self._argument(a) for a in call.args)
        kwargs = tuple((k, self._argument(v)) for k, v in call.kwargs)
        results = tuple(r if r is not None else "_" for r in call.results)
        self.memory.results.update(results)
        strides = tuple(self.graph.layouts[r].stride if r in self.graph.layouts else None for r in call.results)
        if not call.binds:
            self.steps.append(Call(call.target, args, kwargs, results, call.unpack, () if call.check else strides))
            return
        # the results tell sizes that their strides are computed from
        self.steps.append(Call(call.target, args, kwargs, results, call.unpack))
        self.steps += [BindSize(name, result, dim) for name, result, dim in call.binds]
        for result, stride in zip(results, strides, strict=True):
            if stride is not None:
                self.steps.append(Call("with_strides", (Ref(result), tuple(map(SizeRef, stride))), results=(result,)))

    def _move_numbers(self, groups: Sequence[Group]) -> None:
        """Copies of numbers to a device, by one call."""
        calls = [group.call for group in groups if group.call is not None]
        numbers = [self._argument(call.args[0]) for call in calls]
        results = tuple(result for call in calls for result in call.results if result is not None)
        self.memory.results.update(results)
        self.memory.share(results)
        self.steps.append(Call("move_numbers", (numbers, self._argument(calls[0].args[1])), results=results, unpack=True))

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
            name = self.views[key] = self.memory.add_name(operand.buffer)
            self.steps.append(View(name, operand.buffer, layout.size, layout.stride, layout.offset))
        return self.views[key]

    def _returned(self, value: Any) -> Any:
        return Ref(self._seen_as(value, exact=True)) if isinstance(value, Operand) else value


def _same_memory(kernel: Kernel, names: Sequence[str], taken: Mapping[str, str]) -> dict[int, int]:
    """Places of arguments that are read -> those that are written, as the same type, over them. taken: buffer -> whose memory it got."""
    dtypes = [buffer.dtype for buffer in kernel.arguments]
    places = {name: place for place, name in enumerate(names)}
    pairs = ((places.get(taken.get(name, "")), written) for written, name in enumerate(names))
    return {read: written for read, written in pairs if read is not None and dtypes[read] == dtypes[written]}


def _same(a: Layout, b: Layout) -> bool:
    if a.size != b.size or a.offset != b.offset:
        return False
    return all(x == y or e in (0, 1) for x, y, e in zip(a.stride, b.stride, a.size, strict=True))
