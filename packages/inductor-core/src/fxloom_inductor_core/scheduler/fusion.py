"""Fusion: which loops become one kernel, and in which order kernels and calls run.

In: a `LoweredGraph`. Out: groups in an order that keeps every dependency. Two groups may merge when their spaces have a common
refinement, every value one takes from the other is read at the very index at which it was written, no path leads from one to the
other through a third, and the rules of `fusion_vetoes` agree. Merges that cost least come first: of a loop with what it reads from, the
nearest first; then with what reads the same memory; and when all these are made, those for which loops run in another order.
Invariant: program order decides all ties, so the same graph gives the same groups.

Programs have tens of thousands of loops, so no step walks all groups. Sets of groups are ints, a bit for each number: what a
group depends on (`ancestors`), and who reads a buffer in loops of one shape (`_readers`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TypeAlias

import sympy

from fxloom_inductor_core.ir.graph import ExternCall, LoweredGraph, Work
from fxloom_inductor_core.ir.loops import Loop, exprs_of, map_exprs
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.scheduler.fusion_vetoes import FUSION_VETOES, Merge, reason_of
from fxloom_inductor_core.scheduler.groups import Group, Member, Space, Traits
from fxloom_inductor_core.scheduler.reorder import in_order_of
from fxloom_inductor_core.scheduler.spaces import Axes, collapse, linear_parts, refine
from fxloom_interfaces.codegen import Capabilities, Codegen
from fxloom_interfaces.expr import Expr, free_symbols, product, simplify, substitute
from fxloom_interfaces.program import Load, Store

IndexTable: TypeAlias = "dict[str, list[Expr]]"
#: says in words why two groups are no kernel; made only when somebody asks
Refusal: TypeAlias = "Callable[[], str]"


def normalize_loop(loop: Loop) -> Loop:
    """The same loop with outer axes in the order of its writes, inner ones in that of its widest read, merged where possible."""
    outer, inner = list(loop.outer), list(loop.inner)
    symbols = frozenset(s for s, _ in (*outer, *inner))
    stores = [i for i in loop.instructions if isinstance(i, Store)]
    if stores and len(outer) > 1 and loop.base is None:  # a scatter's points keep their order
        strides, tangled = linear_parts(stores[0].index, symbols)
        keys = [strides.get(s, 0) for s, _ in outer]
        if not tangled and all(isinstance(k, int) for k in keys):
            outer = [axis for _, _, axis in sorted((-k, n, axis) for n, (k, axis) in enumerate(zip(keys, outer, strict=True)))]  # type: ignore[operator]  # ints
    if len(inner) > 1 and not loop.ordered:
        inner = _by_widest_read(loop, inner, symbols)
    exprs = [e for i in loop.instructions for e in exprs_of(i)]
    new_outer, outer_map = collapse(tuple(outer), exprs)
    new_inner, inner_map = collapse(tuple(inner), exprs)
    mapping = {**outer_map, **inner_map}
    extents = dict([*new_outer, *new_inner])
    instructions = loop.instructions
    if mapping:
        instructions = tuple(map_exprs(i, mapping, extents) for i in instructions)
    return replace(loop, outer=new_outer, inner=new_inner, instructions=instructions)


def _by_widest_read(
    loop: Loop, inner: list[tuple[sympy.Symbol, Expr]], symbols: frozenset[sympy.Symbol]
) -> list[tuple[sympy.Symbol, Expr]]:
    best: list[Expr] | None = None
    for _, index in loop.reads():
        strides, tangled = linear_parts(index, symbols)
        keys = [strides.get(s, 0) for s, _ in inner]
        if tangled or not all(isinstance(k, int) for k in keys):
            continue
        if best is None or sum(1 for k in keys if k) > sum(1 for k in best if k):
            best = keys
    if best is None:
        return inner
    return [axis for _, _, axis in sorted((-k, n, axis) for n, (k, axis) in enumerate(zip(best, inner, strict=True)))]  # type: ignore[operator]  # ints


#: loops that may read a number and merge because of that
_FEW_LOOPS = 4

#: groups that read the same memory and refused are so many, then no more are asked: the nearest ones gain most
_REFUSALS = 16


class Scheduler:
    """Groups the work of one lowered graph. attempts: pairs of groups that were looked at."""

    def __init__(self, graph: LoweredGraph, codegens: Mapping[str, Codegen], options: InductorOptions) -> None:
        self.graph = graph
        self.options = options
        self.codegens = codegens
        self.groups: dict[int, Group] = {}
        self.group_of_buffer: dict[str, int] = {}
        self.attempts = 0
        self.turns = False  # long axes are cut and reordered to fit a fold: when all that fits without has merged, since it takes
        # elementwise loops away from folds that run in their order (the gradient of a norm's input from its rows for that of its weight)
        self.ancestors: dict[int, int] = {}  # bits of groups that were merged away stay, and mean nothing
        self._readers: dict[str, dict[Hashable, int]] = {}  # buffer -> shape -> loops that read it
        self.readings = Counter(buffer for work in graph.work if isinstance(work, Loop) for buffer in {b for b, _ in work.reads()})
        self.makers: dict[str, list[int]] = {}  # unbacked symbol -> calls that make or check it
        self._last_effect: int | None = None
        self._indices: dict[tuple[int, Space, bool, Axes], tuple[IndexTable, IndexTable]] = {}

    def run(self) -> list[Group]:
        """The groups in a runnable order."""
        for position, work in enumerate(self.graph.work):
            group = self._single(position, work)
            self._register(group)
            if group.call is None and self.options.fuse:
                self._grow(group, self._partners)
        self.turns = True
        if self.options.fuse:
            for group in list(self.groups.values()):
                if group.number in self.groups and group.call is None:
                    self._grow(group, self._producers)
        return self._sorted()

    def _single(self, position: int, work: Work) -> Group:
        if isinstance(work, ExternCall):
            group = Group(position, work.device, call=work)
            group.reads = dict.fromkeys(work.reads())
            group.writes = dict.fromkeys([*work.writes, *(r for r in work.results if r is not None)])
            group.needs = self._late_symbols(work.symbols(self.graph.layouts))
            return group
        loop = normalize_loop(work)
        group = Group(position, loop.device, [Member(position, loop, bool(loop.inner), Traits.of(loop))])
        inner = tuple(e for _, e in loop.inner) if loop.inner else None
        group.space = Space(tuple(e for _, e in loop.outer), inner)
        group.reads = dict.fromkeys(b for b, _ in loop.reads())
        if loop.base is not None:
            group.reads[loop.base] = None
        group.writes = dict.fromkeys(loop.writes())
        group.sizes = loop.size_names()
        group.needs = self._late_symbols(loop.symbols())
        return group

    def _late_symbols(self, names: Iterable[str]) -> dict[str, None]:
        return {name: None for name in names if name in self.graph.unbacked} if self.graph.unbacked else {}

    def _register(self, group: Group) -> None:
        self.groups[group.number] = group
        for buffer in group.writes:
            self.group_of_buffer[buffer] = group.number
        for buffer in group.reads:
            producer = self.group_of_buffer.get(buffer)
            if producer is not None and producer != group.number:
                group.before[producer] = None
        for name in group.needs:
            group.before.update(dict.fromkeys(self.makers.get(name, ())))
        if group.call is not None and group.call.effect:
            if self._last_effect is not None:
                group.before[self._last_effect] = None
            self._last_effect = group.number
        ancestors = 0
        for number in group.before:
            ancestors |= self.ancestors[number] | 1 << number
            self.groups[number].after[group.number] = None
        self.ancestors[group.number] = ancestors
        self._list_as_reader(group)
        if group.call is not None:
            made = {*(name for name, _, _ in group.call.binds), *(r for r in group.call.results if r in self.graph.unbacked)}
            # what takes a number runs after it was checked
            for name in (*sorted(made - {None}), *(group.needs if group.call.check else ())):
                self.makers.setdefault(name, []).append(group.number)

    def _capabilities(self, device: str) -> Capabilities:
        return self.codegens[device.split(":")[0]].capabilities

    def _list_as_reader(self, group: Group, listed: bool = True) -> None:
        """Enter a group of loops among the readers of its buffers, or strike it off. One that is full is never entered."""
        if group.call is not None or self._is_full(group):
            return
        shape, bit = group.shape(), 1 << group.number
        for buffer in group.reads:
            readers = self._readers.setdefault(buffer, {})
            readers[shape] = readers.get(shape, 0) | bit if listed else readers[shape] ^ bit

    def _is_full(self, group: Group) -> bool:
        """True when nothing that stores something else can join."""
        arguments = len(group.reads.keys() | group.writes) + len(group.sizes)
        most = self._capabilities(group.device).max_arguments
        return len(group.members) >= self.options.max_fused_nodes or arguments >= most

    # ------------------------------------------------------------------------------------------------- merging

    def _grow(self, group: Group, partners: Callable[[Group], Iterator[Group]]) -> None:
        """Merge `group` into its partners for as long as that works."""
        merged = True
        while merged:
            merged = False
            for other in partners(group):
                if self._try_merge(other, group):
                    group, merged = other, True
                    break

    def _producers(self, group: Group) -> Iterator[Group]:
        """Groups of loops that `group` reads from, and depends on through no third one; the latest first."""
        apart = self._behind(group)
        for number in sorted(group.before, reverse=True):
            if not apart >> number & 1 and self.groups[number].call is None:
                yield self.groups[number]

    def _behind(self, group: Group) -> int:
        """The groups that `group` depends on through others."""
        behind = 0
        for number in group.before:
            behind |= self.ancestors[number]
        return behind

    def _partners(self, group: Group) -> Iterator[Group]:
        """Of `group`, which nothing depends on yet: those it reads from, then those that read what it reads; the latest first.

        A fold goes together with others of its shape too that read what the same kernel wrote, as the second halves of split folds.
        """
        yield from self._producers(group)
        apart = self._behind(group)
        fusions = self._capabilities(group.device).fusions
        if "horizontal" not in fusions:
            return
        shape, sharers = group.shape(), 0
        for buffer in group.reads:
            if "grouped" in fusions and self._is_number_of_many(buffer):
                continue
            sharers |= self._readers.get(buffer, {}).get(shape, 0)
        if group.space is not None and group.space.inner is not None:
            for writer in group.before:
                for buffer in self.groups[writer].writes:
                    sharers |= self._readers.get(buffer, {}).get(shape, 0)
        for number in (group.number, *group.before):
            apart |= 1 << number
        sharers &= ~apart
        for _ in range(_REFUSALS):
            if not sharers:
                return
            number = sharers.bit_length() - 1
            sharers ^= 1 << number
            yield self.groups[number]

    def _is_number_of_many(self, buffer: str) -> bool:
        """True for a number that many loops read, as a learning rate. To read it again costs nothing, and what merged because of it
        would be kernels of several sizes, each with a body of its own, where one grouped launch would do."""
        return self.readings[buffer] > _FEW_LOOPS and product(self.graph.layouts[buffer].size) == 1

    def _try_merge(self, first: Group, second: Group) -> bool:
        """Merge `second` into `first`, one of its partners, if they can be one kernel."""
        self.attempts += 1
        found = self._one_kernel(first, second)
        if not isinstance(found, Merge):
            return False
        self._merge(found)
        return True

    def _one_kernel(self, first: Group, second: Group) -> Merge | Refusal:
        """How `second` can run in the loops of `first`; else why it can't."""
        if first.device != second.device:
            return lambda: f"one runs on {first.device}, the other on {second.device}"
        if len(first.members) + len(second.members) > self.options.max_fused_nodes:
            return lambda: f"together they have more than {self.options.max_fused_nodes} loops (the option max_fused_nodes)"
        between = self._between(second, first)
        if between is not None:
            return lambda: f"{self._described(between)} runs between them"
        capabilities = self._capabilities(first.device)
        depends = first.number in second.before
        refusal: Refusal | None = None
        for space, members in self._candidates(first, second, depends):
            merge = Merge(first, second, space, members, depends, capabilities)
            refused = self._refused(merge)
            if refused is None:
                return merge
            refusal = refusal or refused
        return refusal or (lambda: f"one loops over {first.space}, the other over {second.space}: no loop nest is both")

    def _refused(self, merge: Merge) -> Refusal | None:
        for rule in FUSION_VETOES:
            if not rule(merge):
                return partial(reason_of, rule)
        return self._misread(merge.space, merge.members, {**merge.first.writes, **merge.second.writes})

    def _between(self, first: Group, second: Group) -> Group | None:
        """A third group by way of which `second` depends on `first`."""
        bit = first.number
        if self.ancestors[second.number] >> bit & 1:
            for number in second.before:
                if number != bit and self.ancestors[number] >> bit & 1:
                    return self.groups[number]
        return None

    def _described(self, group: Group) -> str:
        if group.call is not None:
            return group.call.op
        names = dict.fromkeys(self.graph.op_names.get(origin, origin) for member in group.members for origin in member.loop.origins)
        return f"the kernel of {', '.join(names)}"

    def why_apart(self, first: Group, second: Group) -> str:
        """After `run`: why two groups of loops are not one kernel, in words. first: the one that runs first."""
        if not self.options.fuse:
            return "nothing is fused (the option fuse)"
        between = self._between(first, second)
        if between is not None:
            return f"{self._described(between)} runs between them"
        if first.number not in second.before:
            fusions, both = self._capabilities(first.device).fusions, [buffer for buffer in second.reads if buffer in first.reads]
            if "horizontal" not in fusions:
                return "neither reads the other, and the target fuses only what does"
            if "grouped" in fusions and all(map(self._is_number_of_many, both)):
                return "all that they share is a number"
        found = self._one_kernel(first, second)
        return found() if not isinstance(found, Merge) else f"there were {_REFUSALS} groups in between that read the same memory"

    def _candidates(self, first: Group, second: Group, depends: bool) -> Iterator[tuple[Space, list[Member]]]:
        """Ways to run both groups in one loop: as they are, then with elementwise loops in the order of the fold that they depend on
        or feed."""
        found = self._joint(first, second)
        if found is not None:
            yield found
        a, b = first.space, second.space
        if not depends or a is None or b is None or (a.inner is None) == (b.inner is None):
            return
        plain, fold = (first, second) if a.inner is None else (second, first)
        for other in in_order_of(plain, fold) if self.turns else ():
            found = self._joint(other, second) if plain is first else self._joint(first, other)
            if found is not None:
                yield found
        if len(plain.members) != 1 or not 2 <= len(plain.members[0].loop.outer) <= 4:
            return
        member = plain.members[0]
        for axes in permutations(member.loop.outer):
            if axes == member.loop.outer:
                continue
            turned = replace(member, loop=replace(member.loop, outer=axes))
            space = Space(tuple(e for _, e in axes), None)
            other = replace(plain, members=[turned], space=space)
            found = self._joint(other, second) if plain is first else self._joint(first, other)
            if found is not None:
                yield found

    def _joint(self, first: Group, second: Group) -> tuple[Space, list[Member]] | None:
        a, b = first.space, second.space
        if a is None or b is None:
            return None
        if a.inner is None and b.inner is None:
            outer = refine(a.outer, b.outer)
            return None if outer is None else (Space(outer, None), [*first.members, *second.members])
        if a.inner is not None and b.inner is not None:
            outer, inner = refine(a.outer, b.outer), refine(a.inner, b.inner)
            if outer is None or inner is None:
                return None
            return Space(outer, inner), [*first.members, *second.members]
        folding, plain = (first, second) if a.inner is not None else (second, first)
        rows, columns = (a, b) if a.inner is not None else (b, a)
        if rows.inner is None:
            raise AssertionError("one of the spaces folds")
        whole = refine((*rows.outer, *rows.inner), columns.outer)
        if whole is not None:
            parts = _cut(whole, rows.inner)
            if parts is not None:
                return Space(*parts), [*folding.members, *(replace(m, inside=True) for m in plain.members)]
        outer = refine(rows.outer, columns.outer)
        if outer is None:
            return None
        return Space(outer, rows.inner), [*folding.members, *plain.members]

    def _tables(self, member: Member, space: Space) -> tuple[IndexTable, IndexTable]:
        """(reads, writes) of a member by buffer, in the symbols of `space`."""
        key = (member.position, space, member.inside, member.loop.outer)
        if key not in self._indices:
            mapping = member.mapping(space)
            extents = dict(axis for axes in space.axes() for axis in axes)
            reads: IndexTable = {}
            writes: IndexTable = {}
            for instruction in member.loop.instructions:
                if isinstance(instruction, (Load, Store)):
                    table = reads if isinstance(instruction, Load) else writes
                    table.setdefault(instruction.buffer, []).append(simplify(substitute(instruction.index, mapping), extents))
            self._indices[key] = (reads, writes)
        return self._indices[key]

    def _misread(self, space: Space, members: Sequence[Member], made: Container[str]) -> Refusal | None:
        """None when what members read of the buffers that they make is read where it was written. made: those buffers."""
        readers = [(member, buffer) for member in members for buffer in sorted(member.traits.reads) if buffer in made]
        if not readers:
            return None
        taken = {buffer for _, buffer in readers}
        written: dict[str, tuple[Expr, Member]] = {}
        for member in members:
            for buffer in member.traits.writes & taken:
                written[buffer] = (self._tables(member, space)[1][buffer][0], member)
        inner = frozenset(s for s, _ in space.axes()[1])
        for member, buffer in readers:
            index, writer = written[buffer]
            if buffer in member.traits.masked or any(read != index for read in self._tables(member, space)[0][buffer]):
                return partial("{} is read at other places than where it is written".format, buffer)
            at_inner_points = writer.inside and not writer.traits.is_reduction
            varies = not isinstance(index, int) and bool(free_symbols(index) & inner)
            if (at_inner_points and not member.inside) or (varies and not at_inner_points):
                return partial("one has a {} for each element of a row, the other one for the whole row".format, buffer)
        return None

    def _merge(self, merge: Merge) -> None:
        """Let the first group take over the second."""
        first, second, space, members = merge.first, merge.second, merge.space, merge.members
        for group in (first, second):
            self._list_as_reader(group, listed=False)
        both = (first.number, second.number)
        first.members = sorted(members, key=lambda m: m.position)
        first.space = space
        first.writes = {**first.writes, **second.writes}
        first.reads = {**first.reads, **second.reads}
        first.needs = {**first.needs, **second.needs}
        first.sizes |= second.sizes
        first.before = {n: None for n in (*first.before, *second.before) if n not in both}
        first.after = {n: None for n in (*first.after, *second.after) if n not in both}
        del self.groups[second.number]
        for number in second.before:
            if number not in both:
                del self.groups[number].after[second.number]
                self.groups[number].after[first.number] = None
        for number in second.after:
            if number not in both:
                del self.groups[number].before[second.number]
                self.groups[number].before[first.number] = None
        for buffer in second.writes:
            self.group_of_buffer[buffer] = first.number
        self._list_as_reader(first)
        ancestors = self.ancestors[first.number] | self.ancestors.pop(second.number)
        self.ancestors[first.number] = ancestors & ~(1 << first.number | 1 << second.number)
        self._pass_on(first)

    def _pass_on(self, group: Group) -> None:
        """Tell the groups that depend on `group` that they depend on what it depends on."""
        gained = self.ancestors[group.number] | 1 << group.number
        pending = list(group.after)
        while pending:
            number = pending.pop()
            known = self.ancestors[number]
            if known | gained != known:
                self.ancestors[number] = known | gained
                pending.extend(self.groups[number].after)

    def _sorted(self) -> list[Group]:
        """Groups so that producers come first; among the ready ones, the earliest in program order."""
        waiting = {number: len(group.before) for number, group in self.groups.items()}
        ready = [number for number, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        result: list[Group] = []
        while ready:
            group = self.groups[heapq.heappop(ready)]
            result.append(group)
            for number in group.after:
                waiting[number] -= 1
                if waiting[number] == 0:
                    heapq.heappush(ready, number)
        if len(result) != len(self.groups):
            raise AssertionError("fusion made a cycle")
        return result


def _cut(whole: tuple[Expr, ...], inner: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]] | None:
    """`whole` cut where the product of its tail is that of `inner`."""
    wanted = product(inner)
    for position in range(len(whole) + 1):
        if product(whole[position:]) == wanted:
            return whole[:position], whole[position:]
    return None
