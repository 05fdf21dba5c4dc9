"""Functionalize a raw log: from operators that alias and mutate to calls that do neither.

In: the raw log and the fakes of the inputs. Out: a functional log, and for any fake of the program the value that it had at
a point of the log. Every memory of the program (a `FakeStorage`) has a current value of its whole; every fake is a chain of
view steps on a memory. Reading a fake replays the chain if the memory was written since; writing one puts the new value
back through the chain. Inputs that share memory which is written become views of one flat storage.
Invariant: after entry k, `read(fake)` is what the program's tensor would hold after k operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fxloom_aot.functional.checkpoints import touched_storages
from fxloom_aot.functional.functional_log import Decompositions, FunctionalLog
from fxloom_aot.functional.memory import Memory, Placeholder, ProgramInput, View
from fxloom_aot.functional.views import (
    Step,
    UnsupportedView,
    is_contiguous,
    is_dense,
    memory_order,
    overlap_in_part,
    overlaps_itself,
    replay,
    same_memory,
    with_gaps_of,
    with_strides_of,
    write_back,
)
from fxloom_aot.nests import values_of
from fxloom_aot.recording.recorder import Entry
from fxloom_interfaces.errors import OPERATOR_ERRORS, GraphRejected, InternalError, refused
from fxloom_interfaces.signature import ViewStep
from fxloom_ops.functional_variants import (
    GENERATED,
    RANDOM_FROM_,
    UNDECLARED_WRITES,
    UNSUPPORTED,
    functional_variant,
    own_results,
)
from fxloom_ops.schema import Op, schema_info
from fxloom_ops.value_checks import may_raise
from fxloom_shapes import Descriptor, FakeMode, FakeTensor, describe
from fxloom_shapes.fake.descriptor import extent_of, is_empty
from fxloom_shapes.fake.size_nodes import symbols_made
from fxloom_shapes.fake.sizes import same_size

aten = torch.ops.aten

#: by type of a number, that of a tensor which holds any such number
_WIDEST = {
    bool: torch.bool, torch.SymBool: torch.bool, int: torch.int64, torch.SymInt: torch.int64,
    float: torch.float64, torch.SymFloat: torch.float64, complex: torch.complex128,
}  # fmt: skip

#: write elements in another order than that in which they read: of one memory read and written, eager refuses it or what has been
#: written is read again
_IN_ANOTHER_ORDER = frozenset(
    "aten::" + name
    for name in (
        "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put", "_index_put_impl", "index_reduce", "put",
        "masked_scatter", "index_select", "take", "gather", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm",
    )
)  # fmt: skip


class RejectedInBackward(InternalError):
    """An operator of the backward part can't be functionalized, and no node of the program is known that it belongs to."""


class UnknownTensor(InternalError):
    """A fake that is neither an input, nor a constant, nor the result of a logged operator."""


@dataclass(slots=True)
class Functionalizer:
    """State of the pass. `start` once, then `run` over stretches of the log, `read` in between.

    made: for fakes whose metadata changes in place later, by id, what it was when they were made.
    """

    fake_mode: FakeMode
    decompositions: Decompositions
    inputs: list[ProgramInput]
    constants: dict[int, tuple[FakeTensor, torch.Tensor]]
    made: dict[int, Descriptor]
    log: FunctionalLog = field(init=False)
    placeholders: list[Placeholder] = field(default_factory=list)
    views: dict[int, View] = field(default_factory=dict)
    memories: dict[int, Memory] = field(default_factory=dict)
    metadata_changed: dict[int, FakeTensor] = field(default_factory=dict)
    #: numbers of inputs whose place in their storage the graph relies on
    offset_sensitive: set[int] = field(default_factory=set)
    keep: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = FunctionalLog(self.fake_mode, self.decompositions)

    # --- inputs ---

    def start(self, entries: list[Entry]) -> None:
        """Make the placeholders. entries: the whole raw log, to know which memories need a flat storage."""
        written, strided = touched_storages(entries)
        groups: dict[int, list[int]] = {}
        for number, given in enumerate(self.inputs):
            if given.fake is not None:
                assert given.storage is not None
                groups.setdefault(given.storage.ident, []).append(number)
        for number, given in enumerate(self.inputs):
            if given.fake is None or id(given.fake) in self.views:
                continue
            assert given.storage is not None and given.initial is not None
            group = groups[given.storage.ident]
            fakes = {id(self.inputs[member].fake) for member in group}
            shared = len(fakes) > 1 and given.storage.ident in written
            irregular = given.storage.ident in strided and not is_dense(given.initial)
            irregular = irregular or (given.storage.ident in written and overlaps_itself(given.initial))
            if shared or irregular:
                self._flat_input(group)
            else:
                value = self.log.placeholder(given.initial)
                memory = Memory(value, given.initial, given.fake, tuple(group))
                self.placeholders.append(Placeholder(memory, number, flat=False))
                if len(fakes) == 1:
                    self.memories[given.storage.ident] = memory
                else:  # read-only: each input is a memory of its own; the first stands for the storage
                    self.memories.setdefault(given.storage.ident, memory)
                self.views[id(given.fake)] = View(memory, (), value, 0, given.initial)

    def _flat_input(self, group: list[int]) -> None:
        descs = [self.inputs[number].initial for number in group]
        first = descs[0]
        assert first is not None
        if any(desc is None or desc.dtype != first.dtype for desc in descs):
            raise UnsupportedView("inputs of different element types share memory that is written")
        length: int = 0
        for desc in descs:
            assert desc is not None
            length = torch.sym_max(length, extent_of(desc))
        whole = describe((length,), (1,), first.dtype, first.device)
        value = self.log.placeholder(whole)
        memory = Memory(value, whole, None, tuple(group), flat=True)
        self.placeholders.append(Placeholder(memory, group[0], flat=True))
        self.offset_sensitive.update(group)
        for number in group:
            given = self.inputs[number]
            assert given.fake is not None and given.initial is not None and given.storage is not None
            desc = given.initial
            view = ViewStep(aten.as_strided.default, (list(desc.size), list(desc.stride), desc.offset))
            chain = (Step(view, whole),)
            self.memories[given.storage.ident] = memory
            self.views[id(given.fake)] = View(memory, chain, replay(self.log, value, chain), 0, desc)

    def desc_of(self, fake: FakeTensor) -> Descriptor:
        """The metadata of a fake when it was made: by the end of the program it may be another."""
        return self.made.get(id(fake), fake.desc)

    # --- reading and writing ---

    def view_of(self, fake: FakeTensor) -> View:
        known = self.views.get(id(fake))
        if known is None:
            constant = self.constants.get(id(fake))
            if constant is None:
                raise UnknownTensor("aot functionalize", f"a tensor that no logged operator made: {fake!r}")
            value = self.log.constant(constant[1])
            memory = Memory(value, self.desc_of(fake), fake, constant=True)
            self.memories[fake.storage_token.ident] = memory
            known = self.views[id(fake)] = View(memory, (), value, 0, self.desc_of(fake))
        return known

    def read(self, argument: Any) -> Any:
        """`argument` with every fake of the program replaced by its value now."""
        kind = type(argument)
        if kind is FakeTensor:
            view = self.view_of(argument)
            if view.version != view.memory.version:
                view.value = replay(self.log, view.memory.value, view.chain)
                view.version = view.memory.version
            return view.value
        if kind is tuple or kind is list:
            return kind([self.read(item) for item in argument])
        if isinstance(argument, torch.Tensor):
            return self.log.constant(argument)
        return argument

    def read_with_strides(self, fake: FakeTensor) -> FakeTensor:
        """The value of `fake` now, with the strides that `fake` has, unless these have gaps and hold symbols."""
        value: FakeTensor = self.read(fake)
        desc = self.view_of(fake).desc
        if is_dense(desc):
            return with_strides_of(self.log, value, desc)
        plain = all(type(number) is int for number in (*desc.size, *desc.stride))
        return with_gaps_of(self.log, value, desc) if plain and not is_empty(desc.size) else value

    def write(self, fake: FakeTensor, value: FakeTensor) -> None:
        """Let `fake`, and all that share its memory, hold `value` from now on."""
        view = self.view_of(fake)
        memory, desc = view.memory, view.desc
        if memory.constant:
            raise UnsupportedView("a write to a tensor that was lifted into the graph as a constant")
        if value.dtype != desc.dtype or value.desc.device != desc.device:
            value = self.log.emit(aten._to_copy.default, (value,), {"dtype": desc.dtype, "device": desc.device})
        if not same_size(value.desc.size, desc.size):
            value = self.log.emit(aten.expand.default, (value, list(desc.size)))
        if view.chain:
            memory.value = write_back(self.log, memory.value, memory.whole, view.chain, desc, value)
        else:
            memory.value = value
        memory.version += 1
        memory.last_write_backward = self.log.backward
        # what the view now holds is `value`, unless the way through the memory changed its layout
        view.value, view.version = value, memory.version

    def define(self, fake: FakeTensor, value: FakeTensor) -> None:
        """`fake` is new memory that holds `value`."""
        memory = Memory(value, self.desc_of(fake), fake)  # holds it: views go by identity
        self.memories[fake.storage_token.ident] = memory
        self.views[id(fake)] = View(memory, (), value, 0, self.desc_of(fake))

    # --- the pass ---

    def run(self, entries: list[Entry], backward: bool) -> None:
        """Treat a stretch of the raw log."""
        for entry in entries:
            first = len(self.log.calls)
            with self.log.at(entry.node, backward, entry.region, entry.checkpoint):
                try:
                    self._treat(entry)
                except UnsupportedView as error:
                    self.reject(entry, str(error), error)
                except OPERATOR_ERRORS as error:
                    if backward or entry.node is None:
                        raise
                    raise refused(entry.node, error) from error
            if not backward and may_raise(entry.op, entry.out):
                for call in self.log.calls[first:]:
                    call.checks = may_raise(call.op, call.out)

    def reject(self, entry: Entry, reason: str, cause: Exception | None = None) -> None:
        """Raise GraphRejected at the node that caused `entry`."""
        if entry.node is None:
            raise RejectedInBackward("aot functionalize", f"in the backward part: {reason}", node=str(entry.op)) from cause
        raise GraphRejected(entry.node, reason) from cause

    def _treat(self, entry: Entry) -> None:
        op, args, kwargs, out = entry.op, entry.args, entry.kwargs, entry.out
        if entry.before is not None:
            self._change_metadata(entry)
            return
        if op is aten.lift_fresh.default:
            if type(args[0]) is not FakeTensor:
                self.define(out, self.log.constant(args[0]))
            return
        if op in UNSUPPORTED:
            self.reject(entry, f"{op} {UNSUPPORTED[op]}")
        rewrite = UNDECLARED_WRITES[op](*args) if op in UNDECLARED_WRITES else None
        if rewrite is not None:
            variant, variant_args, own, written = rewrite
            if len({id(self.view_of(args[position]).memory) for position in written}) < len(written):
                self.reject(entry, f"{op} writes to several tensors that share memory")
            self._write_results(variant, self.read(variant_args), {}, out, own, [args[position] for position in written])
            return
        info = schema_info(op)
        if info.writes:
            self._mutate(entry)
            return
        if type(out) in (bool, int, float, complex):  # the program got this number while it was recorded, without looking at values
            return
        read, named = self.read(args), {name: self.read(value) for name, value in kwargs.items()}
        if info.seeded:  # the layout decides which element gets which random number
            pairs = zip(read, args, strict=True)
            read = tuple(self.read_with_strides(given) if type(given) is FakeTensor else value for value, given in pairs)
        if symbols_made(self.fake_mode.env, out):
            values = self.log.record(op, read, named, out)
        else:
            values = self.log.emit(op, read, named)
        self._define_results(entry, out, values)

    def _define_results(self, entry: Entry, out: Any, values: Any) -> None:
        if type(out) is FakeTensor:
            self._define_result(entry, out, values, None)
        elif type(out) in (tuple, list):
            for item, (fake, value) in enumerate(zip(out, values, strict=True)):
                if type(fake) is FakeTensor:
                    self._define_result(entry, fake, value, item)

    def _define_result(self, entry: Entry, fake: FakeTensor, value: FakeTensor, item: int | None) -> None:
        """What result `item` of an operator is: memory of its own, or a view of the operator's first argument."""
        if id(fake) in self.views:
            return
        memory = self.memories.get(fake.storage_token.ident)
        if memory is None:
            self.define(fake, value)
            return
        desc = self.desc_of(fake)
        if self._is_returned_twice(entry, memory, desc):
            self.views[id(fake)] = View(memory, (), value, memory.version, desc)
            return
        base = entry.args[0] if entry.args else None
        if type(base) is not FakeTensor or base.storage_token is not fake.storage_token:
            self.reject(entry, f"result {item or 0} of {entry.op} shares memory with something that is not its first argument")
            return
        if any(True for _ in values_of([*entry.args[1:], entry.kwargs])):
            self.reject(entry, f"{entry.op} makes a view with the help of other tensors")
        source = self.view_of(base)
        if entry.op is aten.as_strided.default:
            self.views[id(fake)] = self._strided(source, desc, entry)
            return
        step = ViewStep(entry.op, tuple(entry.args[1:]), tuple(entry.kwargs.items()), item, entry.tracked)
        chain, made = (*source.chain, Step(step, source.desc)), (*source.made, step)
        self.views[id(fake)] = View(source.memory, chain, value, source.memory.version, desc, made, entry)

    def _is_returned_twice(self, entry: Entry, memory: Memory, desc: Descriptor) -> bool:
        """True when the operator already returned this memory, which it made, as another of its results."""
        owner = memory.owner
        return owner is not None and self.desc_of(owner) == desc and any(owner is made for made in values_of([entry.out]))

    def _strided(self, source: View, desc: Descriptor, entry: Entry) -> View:
        """as_strided of `source`, which sees the memory, not the view that it is applied to. desc: of its result."""
        memory = source.memory
        if desc.dtype != memory.whole.dtype:
            raise UnsupportedView("as_strided of memory seen with another element type")
        self.offset_sensitive.update(memory.members)
        step = ViewStep(aten.as_strided.default, (list(desc.size), list(desc.stride), desc.offset), tracked=entry.tracked)
        chain = (Step(step, memory.whole),)
        return View(memory, chain, replay(self.log, memory.value, chain), memory.version, desc, (*source.made, step), entry)

    def _mutate(self, entry: Entry) -> None:
        """Treat an operator that writes to arguments: its functional variant computes the new values, which are written in order."""
        op, args = entry.op, entry.args
        given = _by_name(entry)
        writes = schema_info(op).writes
        targets = [given.get(name) for _, name, _ in writes]
        if self._meets_own_writes(targets, given):
            self._one_by_one(entry)
            return
        self._refuse_overlap(entry, targets, given)
        if op is aten.copy_.default:
            self.write(args[0], self._as_tensor(self.read(args[1]), args[0].desc.device))
            return
        variant = functional_variant(op)
        if variant is None:
            self.reject(entry, f"{op} writes to its arguments and has no functional form")
            return
        if variant.namespace == GENERATED:
            self._refuse_sharing(entry, targets, given)
        outs = {name for _, name, is_out in writes if is_out}
        values = {name: self.read(value) for name, value in given.items() if name not in outs}
        fills_first = not outs and [position for position, _, _ in writes] == [0] and type(args[0]) is FakeTensor
        if schema_info(op).seeded and fills_first:
            self._draw(op, variant, values, args[0])
            return
        positional, keyword = _as_arguments_of(variant, values)
        self._write_results(variant, positional, keyword, entry.out, own_results(op, variant), targets)

    def _as_tensor(self, value: Any, device: torch.device) -> FakeTensor:
        """`value` as a tensor. A number becomes a 0-d tensor of the widest type of its category, as in torch."""
        if type(value) is FakeTensor:
            return value
        return self.log.emit(aten.scalar_tensor.default, (value,), {"dtype": _WIDEST[type(value)], "device": device})

    def _meets_own_writes(self, targets: list[Any], given: Mapping[str, Any]) -> bool:
        """True where an operator that writes several tensors reads or writes, for one of them, memory that it wrote for another."""
        if sum(1 for _ in values_of(targets)) < 2:
            return False
        written: dict[int, int] = {}
        for place, target in enumerate(targets):
            for number, fake in enumerate(target) if type(target) in (tuple, list) else [(place, target)]:
                if type(fake) is FakeTensor and written.setdefault(id(self.view_of(fake).memory), number) != number:
                    return True
        return any(
            type(fake) is FakeTensor and written.get(id(self.view_of(fake).memory), number) != number
            for value in given.values()
            if type(value) in (tuple, list)
            for number, fake in enumerate(value)
        )

    def _refuse_overlap(self, entry: Entry, targets: list[Any], given: Mapping[str, Any]) -> None:
        """Reject an operator that writes to a part of what it reads: eager raises, or its result depends on the order of elements."""
        written: dict[int, list[FakeTensor]] = {}  # by storage: a foreach operator has thousands
        for target in values_of(targets):
            written.setdefault(id(target.storage_token), []).append(target)
        for read in values_of([list(given.values())]):
            for target in written.get(id(read.storage_token), ()):
                if read is not target and overlap_in_part(self.view_of(read).desc, self.view_of(target).desc):
                    self.reject(entry, f"{entry.op} writes to a part of the memory that it reads")
        if entry.op._schema.name.rstrip("_") in _IN_ANOTHER_ORDER:
            names = {name for _, name, _ in schema_info(entry.op).writes}
            for read in values_of([value for name, value in given.items() if name not in names]):
                for target in written.get(id(read.storage_token), ()):
                    if read is target or same_memory(self.view_of(read).desc, self.view_of(target).desc):
                        self.reject(entry, f"{entry.op} writes to the memory that it reads, in another order")

    def _refuse_sharing(self, entry: Entry, targets: list[Any], given: Mapping[str, Any]) -> None:
        """Reject a library's operator that may read, through another argument, what it wrote."""
        written = [id(self.view_of(fake).memory) for fake in values_of(targets)]
        used = [id(self.view_of(fake).memory) for fake in values_of([list(given.values())])]
        if any(used.count(memory) > 1 for memory in written):
            self.reject(entry, f"{entry.op} writes to an argument that shares memory with another")

    def _one_by_one(self, entry: Entry) -> None:
        """Treat a foreach operator as one call for each place of its lists, in order."""
        schema = entry.op._schema
        numbers = any(argument.name == "scalars" and str(argument.type) == "Tensor" for argument in schema.arguments)
        if numbers or not schema.name.startswith("aten::_foreach_") or any(argument.is_out for argument in schema.arguments):
            raise UnsupportedView(f"{entry.op} writes to several tensors that share memory")
        for number in range(len(entry.args[0])):
            args = tuple([value[number : number + 1] if type(value) in (tuple, list) else value for value in entry.args])
            self._mutate(replace(entry, args=args))

    def _draw(self, op: Op, variant: Op, values: dict[str, Any], target: FakeTensor) -> None:
        """Treat an operator that fills `target` with random numbers: in memory order, where functional operators draw row by row."""
        desc = self.view_of(target).desc
        order = memory_order(desc)
        if op is aten.normal_.default and not is_contiguous(desc):
            raise UnsupportedView("normal_ of a tensor that is not contiguous, which eager fills by another rule")
        if op is RANDOM_FROM_:  # `random.from` would do, but FX prints it as it stands, and `from` is a keyword
            if values["to"] is None:
                raise UnsupportedView("random_ from a number on, without an end")
            variant, values = aten.randint_like.low_dtype, {"self": values["self"], "low": values["from"], "high": values["to"]}
        for name, value in values.items():
            if type(value) is FakeTensor and same_size(value.desc.size, desc.size):
                moved = self.log.emit(aten.permute.default, (value, list(order)))
                if not is_contiguous(moved.desc):
                    moved = self.log.emit(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
                values[name] = moved
        arguments = variant._schema.arguments
        result = self.log.emit(
            variant,
            tuple(values[argument.name] for argument in arguments if not argument.kwarg_only),
            {argument.name: values[argument.name] for argument in arguments if argument.kwarg_only and argument.name in values},
        )
        self.write(target, self.log.emit(aten.permute.default, (result, [order.index(axis) for axis in range(len(order))])))

    def _write_results(
        self, variant: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, own: int, targets: list[Any]
    ) -> None:
        """Call `variant`; its first `own` results are those of the operator, the others the new values of `targets`."""
        values = self.log.emit(variant, args, kwargs)
        results = list(values) if type(values) in (tuple, list) else [values]
        if len(targets) == 1 and type(targets[0]) in (tuple, list) and own == 0:  # foreach: one list
            targets = list(targets[0])
        fakes = list(out) if type(out) in (tuple, list) else [out]
        for fake, value in zip(fakes[:own], results[:own], strict=True):
            if type(fake) is FakeTensor and id(fake) not in self.views:
                self.define(fake, value)
        new_values = results[own:]
        if len(new_values) != len(targets):
            raise UnsupportedView(f"{variant} gives {len(new_values)} new values for {len(targets)} tensors")
        for target, value in zip(targets, new_values, strict=True):
            if target is None:
                continue
            if type(target) in (tuple, list):
                for item, item_value in zip(target, value, strict=True):
                    self.write(item, item_value)
            else:
                self.write(target, value)

    def _change_metadata(self, entry: Entry) -> None:
        target = entry.args[0]
        name = entry.op._schema.name.partition("::")[2]
        if name == "detach_":
            return
        assert entry.before is not None and entry.after is not None
        view = self.view_of(target)
        if target.requires_grad and view.memory.members:
            # the caller's tensor gets another history as well, or keeps one that no longer fits; so does what this is a view of
            self.reject(entry, "an input that requires grad, or a view of one, changes its shape in place")
        if name == "set_":
            source = self.view_of(entry.args[1])
            if view.memory.members:
                self.reject(entry, "set_ of an input of the graph")
            self.read(entry.args[1])
            self.views[id(target)] = View(source.memory, source.chain, source.value, source.version, entry.after[0], source.made, entry)
            return
        value = self.read(target)
        after = entry.after[0]
        if name in ("as_strided_", "resize_", "resize_as_"):
            self.views[id(target)] = self._strided(view, after, entry)
        else:
            variant = functional_variant(entry.op)
            if variant is None:
                raise UnsupportedView(f"{entry.op} changes metadata and has no functional form")
            step = ViewStep(variant, tuple(entry.args[1:]), tuple(entry.kwargs.items()), tracked=entry.tracked)
            chain = (*view.chain, Step(step, view.desc))
            value = self.log.emit(step.op, (value, *step.args), dict(step.kwargs))
            self.views[id(target)] = View(view.memory, chain, value, view.memory.version, after, (*view.made, step), entry)
        self.metadata_changed[id(target)] = target


def _by_name(entry: Entry) -> dict[str, Any]:
    """The arguments by name, with defaults: the dispatcher leaves these out, and those of a variant may differ."""
    arguments = entry.op._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return {**defaults, **dict(zip([argument.name for argument in arguments], entry.args, strict=False)), **entry.kwargs}


def _as_arguments_of(op: Op, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Values by name as positional arguments of `op`, as long as none is missing before them, and keyword arguments."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for place, argument in enumerate(op._schema.arguments):
        if argument.name not in values:
            continue
        if argument.kwarg_only or len(positional) < place:
            keyword[argument.name] = values[argument.name]
        else:
            positional.append(values[argument.name])
    return tuple(positional), keyword


