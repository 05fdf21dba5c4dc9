"""Instructions that make the program's values again, from the graph's outputs and the frame's inputs.

In: values as the evaluator holds them (proxies, fakes, objects made while capturing). Out: instructions that push the
real ones. Objects that are referred to more than once, and all that can be part of a cycle, are made once and kept in a
local variable, so identity and sharing are those of the program.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction, snippets
from fxloom_dynamo.codegen import runtime_helpers
from fxloom_dynamo.codegen.value_survey import ValueSurvey, is_constant
from fxloom_dynamo.guard.entries import INPUTS_LOCAL
from fxloom_dynamo.libraries.pure_functions import CONSTANT_TYPES
from fxloom_dynamo.objects import iterators
from fxloom_dynamo.objects.array_values import Array, to_array, to_scalar
from fxloom_dynamo.objects.program_changes import change_of, slot_value, slots_of
from fxloom_dynamo.objects.records import Record
from fxloom_dynamo.objects.sentinels import ABSENT, Sentinel, own_dict
from fxloom_dynamo.objects.unguarded import AppendOnly
from fxloom_dynamo.objects.value_types import (
    FROZEN,
    HEAPTYPE,
    c_descriptor_of,
    can_shadow,
    container_base,
    exception_layout,
    exception_state,
    ordered_keys,
)
from fxloom_dynamo.symbolic_numbers.values import run_time_function, run_time_text
from fxloom_dynamo.tensors.numpy_calls import METHOD_NAMES
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.sources import ObjectSource, Source
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter

_VALUES: tuple[type, ...] = (int, float, str, bytes, complex, frozenset)


class Rebuilder(ValueSurvey):
    """See the module's docstring. One per replacement code."""

    def __init__(self, ev: Interpreter, frame: Frame) -> None:
        super().__init__(ev, frame)
        self.out: list[Instruction] = []
        self.inputs: dict[Source, int] = {}
        self.temporaries: list[str] = []
        self._kept: dict[int, str] = {}
        self._fill: list[Any] = []
        self._open: set[int] = set()
        #: iterators, with their states, of lists that the program has changed: the place is one in the changed list
        self.delayed_states: list[tuple[Any, Any]] = []

    def take_inputs(self) -> None:
        """Number the graph's inputs, which come first. The graph is complete: making its outputs may have added numbers."""
        if self.inputs:
            raise InternalError("dynamo.rebuild", f"{next(iter(self.inputs)).name} is read before the graph is complete")
        for source, _, _ in self.ev.recorder.inputs:
            self.inputs[source] = len(self.inputs)



    def load(self, value: Any) -> None:
        """Emit instructions that push `value`."""
        if issubclass(type(value), Sentinel):
            raise InternalError("dynamo.rebuild", f"{value!r} as a value")
        if is_constant(value) or id(value) in self.ev.heap.namespaces:
            source = self._source_of_local_class(value)
            if source is not None:
                self.load_input(source)
            else:
                self.out += snippets.load_const(value)
            return
        kept = self._kept.get(id(value))
        if kept is not None:
            self.out += snippets.load_fast(kept)
            return
        if type(value) is FakeTensor:
            self._tensor(value)
            return
        if type(value) in SYMBOLIC:
            self._number(value)
            return
        record = self.ev.heap.record(value)
        if record is not None:
            self._existing(record)
            return
        if id(value) in self._own_cells:
            self.out += snippets.load_cell(self._own_cells[id(value)])
            return
        if id(value) in self._open:
            graph_break("cannot_rebuild", f"a cycle through a {type(value).__qualname__}")
        self._open.add(id(value))
        self._make(value)
        self._open.discard(id(value))
        if id(value) not in self._kept and self._counts.get(id(value), 0) > 1:
            self.out += snippets.copy(1)
            self._keep(value)

    def _source_of_local_class(self, value: Any) -> Source | None:
        """Where a class that may end before the code does was found: as a constant the code would keep it alive."""
        if not issubclass(type(value), type) or not value.__flags__ & HEAPTYPE or "<locals>" not in value.__qualname__:
            return None
        record = self.ev.heap.record(value)
        if record is None:
            return None
        source = record.source
        while source.parent is not None:
            source = source.parent
        return None if isinstance(source, ObjectSource) else record.source

    def _keep(self, value: Any) -> None:
        """Store the top of the stack as the one object that stands for `value`."""
        name = self.temporary()
        self.out += snippets.store_fast(name)
        self._kept[id(value)] = name

    def temporary(self) -> str:
        name = f"__kept_{len(self.temporaries)}"
        self.temporaries.append(name)
        return name

    def keep_as(self, value: Any, name: str) -> None:
        """`value` can be loaded from local `name`."""
        self._kept[id(value)] = name

    def load_input(self, source: Source) -> None:
        """Push what the guard tree read at `source`."""
        if isinstance(source, ObjectSource):
            self.out += snippets.load_const(source.value)
            return
        index = self.inputs.setdefault(source, len(self.inputs))
        self.out += [*snippets.load_fast(INPUTS_LOCAL), *snippets.load_const(index), *snippets.subscript()]

    def _number(self, value: Any) -> None:
        """A number worked out from the sizes and numbers of the call."""
        if type(value) is torch.SymBool:
            self.out += snippets.load_const(bool(value))
            return
        text, names = run_time_text(value)
        symbols = self.ev.recorder.fake_mode.env.symbols  # type: ignore[union-attr]  # a symbolic value has one
        if text in names:
            self.load_input(symbols[text].sources[0])
            return
        self.begin_call(run_time_function(text, names))
        for name in names:
            self.load_input(symbols[name].sources[0])
        self.out += snippets.call(len(names))

    def _tensor(self, fake: FakeTensor) -> None:
        info = self.ev.recorder.input_info.get(id(fake))
        if info is None:
            raise InternalError("dynamo.rebuild", f"a graph output that was not scanned: {fake!r}")
        self.load_input(info[2])

    def _existing(self, record: Record) -> None:
        if record.proxy is record.original and isinstance(record.original, (types.FunctionType, types.BuiltinFunctionType)):
            if record.kind != "closure":
                self.out += snippets.load_const(record.original)
                return
        self.load_input(record.source)

    def call(self, fn: Any, *values: Any) -> None:
        """Push fn(*values); fn is a function of fxloom or a builtin."""
        self.begin_call(fn)
        for value in values:
            self.load(value)
        self.out += snippets.call(len(values))

    def begin_call(self, fn: Any) -> None:
        self.out += snippets.push_callable(snippets.load_const(fn))

    def _many(self, values: Any) -> int:
        count = 0
        for value in values:
            self.load(value)
            count += 1
        return count

    def load_tuple(self, values: Any) -> None:
        self.out += snippets.build_tuple(self._many(values))

    def load_dict(self, items: dict[Any, Any]) -> None:
        for key, value in items.items():
            self.load(key)
            self.load(value)
        self.out += snippets.build_map(len(items))

    def _make(self, value: Any) -> None:
        """Push an object that the program made, made again from its parts. What can have a part in itself is kept first."""
        cls = type(value)
        if cls is tuple:
            self.load_tuple(value)
        elif cls is list:
            self.out += snippets.build_list(self._many(value))
        elif cls is dict:
            self.load_dict(value)
        elif cls is set:
            self.out += snippets.build_set(self._many(value))
        elif cls is frozenset:
            self.call(frozenset, list(value))
        elif cls is OrderedDict:
            self.begin_call(OrderedDict)
            self.load_dict(dict(value))
            self.out += snippets.call(1)
            if own_dict(value):
                self._keep(value)
                self._fill_instance(value, cls, None)
        elif cls is defaultdict:
            self.begin_call(defaultdict)
            self.load(value.default_factory)
            self.load_dict(dict(value))
            self.out += snippets.call(2)
        elif cls is deque:
            self.call(deque, list(value), value.maxlen)
        elif cls is Array:
            self.call(to_scalar if value.scalar else to_array, value.tensor)
        elif cls is weakref.ReferenceType:
            self.call(weakref.ref, value())
        elif cls is slice:
            self.call(slice, value.start, value.stop, value.step)
        elif cls is types.MethodType and type(value.__self__).__name__ == "TracedGenerator":
            self.call(getattr, value.__self__, value.__func__.__name__)
        elif cls is types.MethodType and type(value.__self__) is Array:
            self.call(getattr, value.__self__, METHOD_NAMES[value.__func__])
        elif cls is types.MethodType and type(value.__self__) is AppendOnly:
            self.call(getattr, value.__self__, value.__func__.__name__)
        elif cls is types.MethodType:
            self.call(types.MethodType, value.__func__, value.__self__)
        elif cls is types.FunctionType:
            if not self.ev.heap.is_fresh(value):
                self.out += snippets.load_const(value)  # a library's, reached through C code
                return
            self._function(value)
        elif cls is types.CellType:
            self._cell(value)
        elif cls is types.MethodWrapperType or cls is types.BuiltinFunctionType:
            descriptor = c_descriptor_of(value)
            if descriptor is None:
                graph_break("cannot_rebuild", f"a bound method {value.__name__} of a {type(value.__self__).__qualname__}")
            self.call(descriptor.__get__, value.__self__, type(value.__self__))
        elif cls is functools.partial:
            self._partial(value)
        elif cls is super:
            self.call(super, value.__thisclass__, value.__self__)
        elif cls.__name__ == "TracedGenerator" and (value.finished or not value.started):
            self._generator(value)
        elif cls in (staticmethod, classmethod):
            self.call(cls, value.__func__)
        elif cls in FROZEN:
            self.out += snippets.load_const(value)
        elif cls.__name__ in iterators.REBUILT and cls.__flags__ & (1 << 9) == 0:
            self._reduced_call(value)
        elif issubclass(type(value), tuple):
            self._tuple_subclass(value, cls)
        elif issubclass(type(value), BaseException):
            self._exception(value, cls)
        elif self.ev.heap.is_fresh(value) and (can_shadow(cls) or issubclass(cls, _VALUES)):
            self._instance(value, cls)
        elif issubclass(type(value), tuple(CONSTANT_TYPES)) and not cls.__flags__ & HEAPTYPE:
            self.out += snippets.load_const(value)
        else:
            self._blame(value)
            graph_break("cannot_rebuild", f"a {cls.__module__}.{cls.__qualname__}")

    def _function(self, fn: types.FunctionType) -> None:
        state = self._function_state(fn)
        self.begin_call(runtime_helpers.new_function)
        self.out += [*snippets.load_const(fn.__code__), *snippets.load_const(fn.__globals__)]
        if fn.__closure__:
            self.load_tuple(fn.__closure__)
        else:
            self.out += snippets.load_const(None)
        self.load_dict({"__name__": fn.__name__})
        self.out += snippets.call(4)
        self._keep(fn)
        self.begin_call(runtime_helpers.fill_function)
        self.out += snippets.load_fast(self._kept[id(fn)])
        self.load_dict(state)
        self.out += [*snippets.call(2), *snippets.pop(), *snippets.load_fast(self._kept[id(fn)])]

    def _cell(self, cell: types.CellType) -> None:
        self.call(types.CellType)
        self._keep(cell)
        content = self.ev.heap.cell_get(cell)
        if content is not ABSENT:
            self.begin_call(runtime_helpers.write_cell)
            self.out += snippets.load_fast(self._kept[id(cell)])
            self.load(content)
            self.out += [*snippets.call(2), *snippets.pop()]
        self.out += snippets.load_fast(self._kept[id(cell)])

    def _partial(self, value: functools.partial[Any]) -> None:
        self.begin_call(functools.partial)
        self.load(value.func)
        self._many(value.args)
        self._many(value.keywords.values())
        self.out += snippets.call(1 + len(value.args), tuple(value.keywords))

    def _reduced_call(self, value: Any) -> None:
        function, args, state = self._reduced(value)
        if state is not ABSENT and any(self._will_be_written(part) for part in args):
            self.call(function, *args)
            self._keep(value)
            self.delayed_states.append((value, state))
            self.out += snippets.load_fast(self._kept[id(value)])
            return
        self.begin_call(runtime_helpers.call_reduced)
        self.load(function)
        self.load_tuple(args)
        self.load(None if state is ABSENT else state)
        self.load(state is not ABSENT)
        self.out += snippets.call(4)

    def _will_be_written(self, part: Any) -> bool:
        record = self.ev.heap.record(part)
        return record is not None and change_of(record) is not None

    def _generator(self, value: Any) -> None:
        if value.finished:
            self.call(runtime_helpers.finished_generator)
            return
        function, args, named = self._generator_call(value)
        self.load(function)
        self.out += snippets.push_null_below()
        self._many(args)
        self._many(named.values())
        self.out += snippets.call(len(args), tuple(named))

    def _tuple_subclass(self, value: tuple[Any, ...], cls: type) -> None:
        if not cls.__flags__ & (1 << 9):  # a struct sequence
            self.begin_call(cls)
            self.load_tuple(tuple.__iter__(value))
            self.out += snippets.call(1)
            return
        self.begin_call(tuple.__new__)
        self.out += snippets.load_const(cls)
        self.load_tuple(tuple.__iter__(value))
        self.out += snippets.call(2)
        if cls.__dictoffset__ and own_dict(value):
            self._keep(value)
            self._fill_instance(value, cls, None)

    def _exception(self, value: BaseException, cls: type) -> None:
        self.begin_call(runtime_helpers.new_exception)
        self.out += [*snippets.load_const(cls), *snippets.load_const(exception_layout(cls))]
        self.load_tuple((value.message, value.exceptions) if isinstance(value, BaseExceptionGroup) else ())
        self.load_tuple(value.args)
        state = exception_state(value)
        for member, held in state:
            self.out += snippets.load_const(member)
            self.load(held)
        self.out += [*snippets.build_tuple(2 * len(state)), *snippets.call(5)]
        self._keep(value)
        traceback = self.ev.traceback_of(value)
        if traceback is not None:
            self._blame(traceback)
            graph_break("cannot_rebuild", f"a {cls.__qualname__} that was raised, with its traceback")
        self._fill_instance(value, cls, None)
        links: list[tuple[str, Any]] = []
        if value.__context__ is not None:
            links.append(("__context__", value.__context__))
        if value.__cause__ is not None:
            links.append(("__cause__", value.__cause__))  # sets the next one, too
        if value.__suppress_context__ != (value.__cause__ is not None):
            links.append(("__suppress_context__", value.__suppress_context__))
        for name, link in links:
            self.begin_call(setattr)
            self.out += [*snippets.load_fast(self._kept[id(value)]), *snippets.load_const(name)]
            self.load(link)
            self.out += [*snippets.call(3), *snippets.pop()]
        # what `_fill_instance` left on the stack is the exception

    def _instance(self, value: Any, cls: type) -> None:
        base = container_base(cls)
        args: tuple[Any, ...] = ()
        root: type = base or object
        if base is None:
            for literal in _VALUES:
                if issubclass(cls, literal):
                    root, args = literal, (literal(value),)
                    break
        self.begin_call(runtime_helpers.new_instance)
        self.out += [*snippets.load_const(cls), *snippets.load_const(root)]
        self.load_tuple(args)
        self.out += snippets.call(3)
        self._keep(value)
        self._fill_instance(value, cls, base)

    def _fill_instance(self, value: Any, cls: type, base: type | None) -> None:
        name = self._kept[id(value)]
        attributes = own_dict(value) if cls.__dictoffset__ else None
        if attributes is not None and self.ev.heap.record(attributes) is not None:
            self._blame(value)
            graph_break("cannot_rebuild", f"a {cls.__qualname__} whose __dict__ is another object's")
        slots = [(slot, slot_value(slot, value)) for slot in slots_of(cls)]
        filled = [(slot, held) for slot, held in slots if held is not ABSENT]
        if attributes or filled or (base is not None and len(list(_contents(value)))):
            self.begin_call(runtime_helpers.fill_instance)
            self.out += snippets.load_fast(name)
            if attributes:
                self.load_dict(attributes)
            else:
                self.out += snippets.load_const(None)
            for slot, held in filled:
                self.out += snippets.load_const(slot)
                self.load(held)
            self.out += snippets.build_tuple(2 * len(filled))
            if base is None:
                self.out += snippets.load_const(None)
            elif issubclass(base, dict):
                self.load_dict({key: dict.__getitem__(value, key) for key in ordered_keys(value)})
            else:
                self.out += snippets.build_list(self._many(_contents(value)))
            self.out += [*snippets.call(4), *snippets.pop()]
        self.out += snippets.load_fast(name)


def _contents(value: Any) -> Any:
    if issubclass(type(value), dict):
        return dict.__iter__(value)
    return list.__iter__(value) if issubclass(type(value), list) else iter(value)
