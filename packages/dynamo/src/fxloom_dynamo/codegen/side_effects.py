"""Side effects in replacement code: what the program changed is written to the real objects once the graph has run.

In: the shadow heap, with all that differs from what was read, and the calls that were delayed. Out: instructions that make the
writes and the calls. Invariant: each write is ordered after everything that must read the old value. The functions that write are in
`runtime_helpers`; they go below the program's own methods.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.bytecode import Instruction, snippets
from fxloom_dynamo.codegen import runtime_helpers
from fxloom_dynamo.codegen.rebuild import Rebuilder
from fxloom_dynamo.interpreter.frame import Frame
from fxloom_dynamo.objects import iterators
from fxloom_dynamo.objects.program_changes import added_items, changed_records, changed_slots
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, UNREAD
from fxloom_dynamo.objects.value_types import ordered_keys, same_keys
from fxloom_dynamo.semantics import context_variables
from fxloom_dynamo.tensors import gradients, leaf_state

#: what writes the items of a list, set or deque, by kind of change
_WRITERS = {
    "list": runtime_helpers.write_list,
    "set": runtime_helpers.write_set,
    "deque": runtime_helpers.write_deque,
    "added": runtime_helpers.add_items,
}

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter
    from fxloom_dynamo.objects.records import Record


class SideEffects:
    """Emits the writes of one frame. rebuilder: makes the values that are written."""

    def __init__(self, ev: Interpreter, frame: Frame) -> None:
        self.ev = ev
        self.frame = frame
        self.code = frame.code
        self.rebuilder = Rebuilder(ev, frame)

    @property
    def out(self) -> list[Instruction]:
        return self.rebuilder.out

    def _scan_calls(self) -> None:
        for call in self.ev.delayed.after_graph:
            for value in call.args:
                self.rebuilder.scan(value)

    def _make_calls(self) -> None:
        """What the program printed and logged."""
        for call in self.ev.delayed.after_graph:
            self.rebuilder.begin_call(call.caller)
            self.out.extend(snippets.load_const(call.function))
            for value in call.args:
                self.rebuilder.load(value)
            self.out.extend(snippets.build_tuple(len(call.args)))
            self.rebuilder.load_dict(call.kwargs)
            self.out.extend([*snippets.call(3), *snippets.pop()])

    def _own_cells(self) -> None:
        """Contents of the frame's own cells, where something can still see them."""
        for name in self.rebuilder.needed_cells:
            content = self.ev.heap.cell_get(self.frame.locals[name])
            if content is ABSENT:
                if name in self.code.co_varnames[: parameter_count(self.code)]:
                    self.out.append(Instruction("DELETE_DEREF", argval=name))
                continue
            self.rebuilder.load(content)
            self.out.extend(snippets.store_deref(name))

    def _collect_writes(self) -> list[tuple[Any, ...]]:
        """What has to be written to the real heap; scans the values, and those of calls that were delayed."""
        self._scan_calls()
        ev, scan = self.ev, self.rebuilder.scan
        writes: list[tuple[Any, ...]] = []
        changed = changed_records(ev.heap)
        for record, kind in changed:
            if kind in ("list", "deque"):
                ev.heap.fill(record.proxy)
        for record, kind in changed:
            writes.append((kind, record))
            if kind == "dict":
                for key, value in dict.items(record.proxy):
                    if value is not record.read.get(key, UNREAD):
                        scan(key)
                        scan(value)
            elif kind == "cell":
                content = ev.heap.cell_get(record.proxy)
                if content is not ABSENT:
                    scan(content)
            elif kind != "iterator":
                for item in added_items(record) if kind == "added" else list(record.proxy):
                    scan(item)
        for record in list(ev.heap.by_proxy.values()):
            if record.slots:
                for slot, value in changed_slots(record):
                    writes.append(("slot", record, slot, value))
                    scan(value)
        for namespace in ev.heap.namespaces.values():
            for name in namespace.written:
                value = namespace.values[name]
                if value is DELETED and name not in namespace.real:
                    continue  # written and deleted again
                writes.append(("name", namespace, name, value))
                if value is not DELETED:
                    scan(value)
        for (cls, name), value in ev.heap.class_writes.items():
            writes.append(("class", cls, name, value))
            if value is not DELETED:
                scan(value)
        for variable, value in ev.context_variables.values():
            writes.append(("context", variable, value))
            scan(value)
        for tensor, name, value in leaf_state.written(ev):
            writes.append(("leaf", tensor, name, value))
            scan(value)
        for gradient in gradients.written(ev):
            writes.append(("grad", gradient))
            scan(gradient.now)
        return writes

    def _write(self, writes: list[tuple[Any, ...]]) -> None:
        """Write the effects to the real heap."""
        advanced = [record for kind, record, *_ in writes if kind == "iterator"]
        # A dict must not have changed yet when the next item is asked for; a list may have grown what was given.
        self._catch_up([record for record in advanced if iterators.goes_over_dict(record.original)])
        self._write_all(writes)
        self._catch_up([record for record in advanced if not iterators.goes_over_dict(record.original)])
        for iterator, state in self.rebuilder.delayed_states:
            self.rebuilder.call(runtime_helpers.set_state, iterator, state)
            self.out.extend(snippets.pop())

    def _call_after_effects(self) -> None:
        for function, args in self.ev.delayed.after_effects:
            self.rebuilder.call(function, *args)
            self.out.extend(snippets.pop())

    def _catch_up(self, records: list[Record]) -> None:
        """Advance the program's iterators, those that go over others, which were met later, first: they advance these too."""
        for record in reversed(records):
            self.rebuilder.begin_call(iterators.catch_up)
            self.rebuilder.load_input(record.source)
            self.out.extend([*snippets.load_const(iterators.state(record.proxy)), *snippets.call(2), *snippets.pop()])

    def _write_all(self, writes: list[tuple[Any, ...]]) -> None:
        rebuilder, out = self.rebuilder, self.out
        for kind, target, *rest in writes:
            if kind == "iterator":
                continue
            if kind == "dict":
                self._write_dict(target)
                continue
            if kind == "name":
                self._write_name(target, *rest)
                continue
            if kind == "class":
                name, value = rest
                rebuilder.begin_call(runtime_helpers.delete_class if value is DELETED else runtime_helpers.write_class)
                out.extend([*snippets.load_const(target), *snippets.load_const(name)])
                if value is not DELETED:
                    rebuilder.load(value)
                out.extend([*snippets.call(2 if value is DELETED else 3), *snippets.pop()])
                continue
            if kind == "grad":
                rebuilder.call(gradients.write_gradient, target.tensor, target.now)
                out.extend(snippets.pop())
                continue
            if kind == "context":
                rebuilder.call(context_variables.write, target, *rest)
                out.extend(snippets.pop())
                continue
            if kind == "leaf":
                rebuilder.call(leaf_state.write, target, *rest)
                out.extend(snippets.pop())
                continue
            if kind == "slot":
                slot, value = rest
                rebuilder.begin_call(runtime_helpers.write_slot)
                rebuilder.load_input(target.source)
                out.extend(snippets.load_const(slot))
                rebuilder.load(value)
                out.extend([*snippets.call(3), *snippets.pop()])
                continue
            if kind == "cell":
                content = self.ev.heap.cell_get(target.proxy)
                rebuilder.begin_call(runtime_helpers.clear_cell if content is ABSENT else runtime_helpers.write_cell)
                rebuilder.load_input(target.source)
                if content is not ABSENT:
                    rebuilder.load(content)
                out.extend([*snippets.call(1 if content is ABSENT else 2), *snippets.pop()])
                continue
            rebuilder.begin_call(_WRITERS[kind])
            rebuilder.load_input(target.source)
            items = added_items(target) if kind == "added" else list(target.proxy)
            for item in items:
                rebuilder.load(item)
            out.extend([*snippets.build_list(len(items)), *snippets.call(2), *snippets.pop()])

    def _write_dict(self, record: Any) -> None:
        rebuilder, out = self.rebuilder, self.out
        now = record.proxy
        keys = ordered_keys(now)
        kept = [key for key in record.keys if key in now]
        changed = {key: now_value for key in keys if (now_value := dict.__getitem__(now, key)) is not record.read.get(key, UNREAD)}
        if same_keys(keys[: len(kept)], tuple(kept)):
            removed = tuple(key for key in record.keys if key not in now)
            rebuilder.begin_call(runtime_helpers.write_dict)
            rebuilder.load_input(record.source)
            rebuilder.load_tuple(removed)
        else:
            self.ev.heap.know_keys(now)
            rebuilder.begin_call(runtime_helpers.write_dict_in_order)
            rebuilder.load_input(record.source)
            rebuilder.load_tuple(keys)
        rebuilder.load_dict(changed)
        out.extend([*snippets.call(3), *snippets.pop()])

    def _write_name(self, namespace: Any, name: str, value: Any) -> None:
        load = snippets.load_const(namespace.real)
        if value is DELETED:
            self.out.extend([*load, *snippets.load_const(name), *snippets.delete_subscript()])
            return
        self.rebuilder.load(value)
        self.out.extend([*load, *snippets.load_const(name), *snippets.store_subscript()])


def parameter_count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
