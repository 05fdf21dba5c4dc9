"""Replacement code: run the graph, write the side effects, make the live values again, and return or go on.

In: the evaluator after it finished a frame or stopped at an instruction. Out: a code object with the original's
signature. At a break it executes the instruction natively and hands stack and locals to a continuation. Where the
instruction lies in a `try` or `with`, the original body follows, so that an exception finds its handler; also where the
graph was made on a prediction, which may turn out wrong.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_dynamo import _native
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Body, ExceptionRegion, Instruction, assemble, disassemble, snippets
from fxloom_dynamo.bytecode.continuations import body_start, first_parameter, make_continuation, origin_of
from fxloom_dynamo.bytecode.control_flow import exhausted_index
from fxloom_dynamo.bytecode.handler_registry import stack_effect
from fxloom_dynamo.bytecode.instruction import NOWHERE
from fxloom_dynamo.bytecode.opcode_facts import CONDITIONAL_JUMPS, NEEDS_BOOL, RAISES
from fxloom_dynamo.bytecode.snippets import NULL_FIRST
from fxloom_dynamo.codegen import runtime_helpers
from fxloom_dynamo.codegen.liveness import live_locals
from fxloom_dynamo.codegen.side_effects import SideEffects, parameter_count
from fxloom_dynamo.graph import random_state, writes_and_raises
from fxloom_dynamo.graph.modes import set_modes
from fxloom_dynamo.graph.tensor_classes import to_class
from fxloom_dynamo.guard.entries import INPUTS_LOCAL, without_capture
from fxloom_dynamo.guard.history import EffectOrder
from fxloom_dynamo.interpreter.frame import Frame, UnreadParameter
from fxloom_dynamo.interpreter.frame_locals import unbound_error
from fxloom_dynamo.objects.sentinels import ABSENT, NULL, RestartCapture
from fxloom_dynamo.tensors import attached_state
from fxloom_dynamo.tensors.parameters import to_leaf
from fxloom_interfaces.backend import writes_last
from fxloom_interfaces.errors import Site
from fxloom_interfaces.sources import Source

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter
    from fxloom_shapes import FakeTensor

#: makes the compiled callable from the graph's output values, in order
Compile = Callable[[list["FakeTensor"]], Callable[..., Any] | None]

#: what the graph raised, in words; bound where the function's own body runs again, and no temporary, which the other way drops
_RAISED = "__raised"


class ReplacementCode(SideEffects):
    """Builds the replacement code of one frame."""

    def __init__(self, ev: Interpreter, frame: Frame, compile_graph: Compile) -> None:
        super().__init__(ev, frame)
        self.compile_graph = compile_graph
        self.survived: Callable[[], None] | None = None
        self.regions: list[ExceptionRegion] = []
        self.stopped_at: int | None = None  # index of the instruction before which the frame stopped
        self.body: Body | None = None
        self.handlers: list[Instruction] = []  # of exceptions, between our own code and the function's
        self.tail: list[Instruction] = []
        self.tail_regions: list[ExceptionRegion] = []
        self.rerun: list[Instruction] = []  # the function's own body once more, for when its graph has raised
        self.rerun_regions: list[ExceptionRegion] = []
        self._held: list[str] = []  # variables that the frame has bound when it runs the instruction

    # ------------------------------------------------------------------ the two ends

    def finish_return(self) -> tuple[types.CodeType, tuple[Source, ...]]:
        """The frame ran to its end."""
        value = self.frame.result
        writes = self._collect_writes()
        self.rebuilder.scan(value)
        self._run_graph(bool(writes))
        self._make_calls()
        self._own_cells()
        self.rebuilder.load(value)
        if writes or self.ev.delayed.after_effects:
            result = self.rebuilder.temporary()
            self.out.extend(snippets.store_fast(result))
            self._write(writes)
            self._call_after_effects()
            self.out.extend(snippets.load_fast(result))
        self.out.extend(snippets.return_value())
        return self._assemble()

    def finish_break(
        self, index: int, survived: Callable[[], None] | None = None
    ) -> tuple[types.CodeType, tuple[Source, ...]]:
        """The frame stopped before the instruction (group) at `index`. survived: to be called when that did not raise.

        The order is the meaning: everything that has to be made is found first (`scan`), since what is found decides what the
        graph returns; the graph runs before any effect, since it may raise; values are loaded before the effects are written,
        since these change the places that values come from; and what the frame holds itself is dropped last.
        """
        self.survived = survived
        frame, rebuilder = self.frame, self.rebuilder
        instructions = frame.info.body.instructions
        start, end = _group(instructions, index)
        self.stopped_at = end
        region = frame.info.regions[end]
        live = self._live_names(start)
        stack = list(frame.stack)
        writes = self._collect_writes()
        for name in frame.code.co_cellvars:
            if isinstance(frame.locals.get(name), types.CellType):
                rebuilder.need_cell(name)
        for value in (*stack, *(frame.locals[name] for name in live)):
            rebuilder.scan(value)
        live += self._lingering_names(live)
        self._run_graph(bool(writes))
        self._make_calls()
        loaded = []
        for name in live:
            rebuilder.load(frame.locals[name])
            temporary = rebuilder.temporary()
            self.out.extend(snippets.store_fast(temporary))
            loaded.append((temporary, name))
        slots = self._stack_to_temporaries(stack)
        self._own_cells()
        self._write(writes)
        for temporary, name in loaded:
            self.out.extend([*snippets.load_fast(temporary), *snippets.store_fast(name)])
        for slot in slots:
            self.out.extend([Instruction("PUSH_NULL")] if slot is None else snippets.load_fast(slot))
        self._drop_references(live)
        self._call_after_effects()  # the collector finds what the program has dropped
        self._execute(start, end, [value is NULL for value in stack], region)
        return self._assemble()

    # ------------------------------------------------------------------ pieces

    def _live_names(self, start: int) -> list[str]:
        """Locals to be made again: live at a place where the program can go on, bound, and touched by capture."""
        wanted = set(live_locals(self.frame.code, start))
        first = first_parameter(origin_of(self.frame.code))
        return [name for name in self._touched_names() if name in wanted or name == first]

    def _touched_names(self) -> list[str]:
        return [
            name
            for name, value in self.frame.locals.items()
            if type(value) is not UnreadParameter and not (isinstance(value, types.CellType) and self._is_variable_cell(name))
        ]

    def _lingering_names(self, live: list[str]) -> list[str]:
        """Locals that nothing reads any more: the program's frame holds them to its end, which a weak reference can tell.

        Those whose end nothing can tell are left out, and those that would have to be outputs of the graph or that capture
        can't make again: they die early.
        """
        found = []
        for name in self._touched_names():
            if name in live:
                continue
            value = self.frame.locals[name]
            if self.rebuilder.lingers(value):
                self.rebuilder.scan(value)
                found.append(name)
        return found

    def _drop_references(self, kept: list[str]) -> None:
        """Unbind what the program's frame does not hold: our own variables, and parameters that it has bound anew or deleted."""
        parameters = self.code.co_varnames[: parameter_count(self.code)]
        gone = [
            name
            for name in parameters
            if name not in kept and name not in self.code.co_cellvars and type(self.frame.locals.get(name)) is not UnreadParameter
        ]
        own = list(self.rebuilder.temporaries)
        if self.rebuilder.inputs:
            own.append(INPUTS_LOCAL)
        for name in (*own, *gone):
            self.out.extend(snippets.delete_fast(name))
        variables = origin_of(self.code).co_varnames
        self._held = [name for name in variables if name in kept or type(self.frame.locals.get(name)) is UnreadParameter]

    def _is_variable_cell(self, name: str) -> bool:
        return name in self.frame.code.co_cellvars or name in self.frame.code.co_freevars

    def _stack_to_temporaries(self, stack: list[Any]) -> list[str | None]:
        slots: list[str | None] = []
        for value in stack:
            if value is NULL:
                slots.append(None)
                continue
            self.rebuilder.load(value)
            name = self.rebuilder.temporary()
            self.out.extend(snippets.store_fast(name))
            slots.append(name)
        return slots

    def _run_graph(self, writes: bool) -> None:
        """Call the compiled graph and keep its outputs in locals. writes: to objects that were there before, after it."""
        rebuilder = self.rebuilder
        fakes = [fake for _, fake in sorted(rebuilder.outputs.values(), key=lambda entry: entry[0])]
        recorder = self.ev.recorder
        early = bool(writes or self.ev.delayed.after_graph or self.ev.delayed.after_effects or recorder.protected) and self.ev.config.runs
        writes_first = recorder.writes_inputs() and not writes_last(self.ev.config.backend)
        undone = self._to_undo() if early and writes_first else ()
        compiled = self.compile_graph(fakes)
        rebuilder.take_inputs()
        reruns = early and bool(undone or not writes_first)
        if compiled is not None and reruns and random_state.draws(recorder):
            compiled = without_capture(random_state.set_back(compiled, random_state.generators(recorder)), self.code.co_qualname)
        if compiled is not None:
            count = len(recorder.inputs)
            kept = self._keep_copies(undone) if undone else ""
            self.out.extend(snippets.push_callable(snippets.load_const(compiled)))
            self.out.extend(snippets.load_fast(INPUTS_LOCAL) if count else snippets.build_tuple(0))
            self._slice_at = len(self.out)
            self.out.extend(snippets.call_star())
            if reruns:
                self._rerun_if_raised(self.out[-1], undone, kept)
            if kept:
                self.out.extend([*snippets.load_const(None), *snippets.store_fast(kept)])
            predicted = self.ev.recorder.predicted is not None
            if predicted:
                self.out.extend([*snippets.unpack_sequence(len(fakes) + 1), *self._unless_as_predicted(len(fakes))])
            elif fakes:
                self.out.extend(snippets.unpack_sequence(len(fakes)))
            if fakes:
                for number, fake in enumerate(fakes):
                    name = f"__out_{number}"
                    rebuilder.temporaries.append(name)
                    cls = self.ev.recorder.python_type.get(id(fake))
                    if fake in self.ev.recorder.leaves:
                        self.out.extend([*snippets.store_fast(name), *snippets.push_callable(snippets.load_const(to_leaf))])
                        self.out.extend([*snippets.load_fast(name), *snippets.load_const(cls)])
                        self.out.extend([*snippets.load_const(fake.requires_grad), *snippets.call(3)])
                    elif cls is not None and self.ev.recorder.overriding:
                        self.out.extend([*snippets.store_fast(name), *snippets.push_callable(snippets.load_const(to_class))])
                        self.out.extend([*snippets.load_fast(name), *snippets.load_const(cls), *snippets.call(2)])
                    self.out.extend(snippets.store_fast(name))
                    rebuilder.keep_as(fake, name)
            elif not predicted:
                self.out.extend(snippets.pop())
        for fake, attributes in attached_state.of_results(self.ev, fakes):
            rebuilder.begin_call(attached_state.hang)
            rebuilder.load(fake)
            rebuilder.load_dict(attributes)
            self.out.extend([*snippets.call(2), *snippets.pop()])
        modes = self.ev.modes
        if modes.entry != modes.left:
            rebuilder.begin_call(set_modes)
            self.out.extend([*snippets.load_const(modes.left), *snippets.call(1), *snippets.pop()])

    def _unless_as_predicted(self, below: int) -> list[Instruction]:
        """bool -- : where it is False drop the graph's outputs, `below` values, and run the function as it is."""
        self._append_body()
        on = Instruction("NOP")
        drop = [inst for _ in range(below) for inst in snippets.pop()]
        forget = snippets.delete_fast(INPUTS_LOCAL) if self.rebuilder.inputs else []
        return [*snippets.jump_if(True, on), *drop, *forget, *snippets.jump(self.tail[0]), on]

    def _to_undo(self) -> tuple[int, ...]:
        """Which inputs of a graph that writes have to be as they were where it raises; none where nobody can tell."""
        ev, recorder = self.ev, self.ev.recorder
        if not any(map(writes_and_raises.may_raise, recorder.graph.nodes)):
            return ()
        if recorder.order is EffectOrder.FREE:
            ev.history.order = EffectOrder.NOTED
            raise RestartCapture("the order of effects and of what may raise")
        if not recorder.raises_amid:
            return ()
        places = writes_and_raises.written_inputs(recorder)
        if places is None and recorder.order is not EffectOrder.SPLIT:
            ev.history.order = EffectOrder.SPLIT
            raise RestartCapture("writes into inputs amid effects")
        return tuple(places or ())

    def _keep_copies(self, places: tuple[int, ...]) -> str:
        """Copy what the graph is going to write to; the variable that holds the copies."""
        name = self.rebuilder.temporary()
        self.out.extend([*snippets.push_callable(snippets.load_const(writes_and_raises.copies)), *snippets.load_fast(INPUTS_LOCAL)])
        self.out.extend([*snippets.load_const(places), *snippets.call(2), *snippets.store_fast(name)])
        return name

    def _rerun_if_raised(self, call: Instruction, undone: tuple[int, ...], kept: str) -> None:
        """What an operator raises amid effects or in a `try`: drop it and run the function as it is, which has all in order.

        Nothing has happened then: the graph had not written to its inputs, or what it wrote is undone from copies.
        """
        start, other = Instruction("PUSH_EXC_INFO"), Instruction("SWAP", 2)
        forget = snippets.delete_fast(INPUTS_LOCAL) if self.rebuilder.inputs else []
        undo: list[Instruction] = []
        if kept:
            undo += snippets.push_callable(snippets.load_const(writes_and_raises.undo))
            undo += [*snippets.load_fast(INPUTS_LOCAL), *snippets.load_const(undone)]
            undo += [*snippets.load_fast(kept), *snippets.call(3), *snippets.pop(), *snippets.delete_fast(kept)]
        tell, begin = self._append_rerun()
        self.handlers += [
            start,
            *snippets.push_callable(snippets.load_const(runtime_helpers.reruns)),
            *snippets.copy(3),
            *snippets.call(1),
            *snippets.jump_if(False, other),
            *tell,
            *snippets.pop(),
            Instruction("POP_EXCEPT"),
            *undo,
            *forget,
            *snippets.jump(begin),
            other,
            Instruction("POP_EXCEPT"),
            Instruction("RERAISE", 0),
        ]
        self.regions.append(ExceptionRegion(call, call, start, 0, False))

    def _append_rerun(self) -> tuple[list[Instruction], Instruction]:
        """The function's own body, to run since the graph raised: instructions to run before (exception -- exception), and its first.

        A body of its own, since it says at its end that nothing raised there, unless the program has handled something. Where an
        inlined function may do that, nobody sees it, and nothing is said.
        """
        if self.ev.recorder.handled_inside:
            self._append_body()
            return [], self.tail[0]
        body = disassemble(self.code)
        not_raised = runtime_helpers.EagerDidNotRaise(Site(self.code.co_filename, self.code.co_firstlineno, self.code.co_qualname))
        for inst in body.instructions[body_start(body.instructions) :]:
            self.rerun.append(inst)
            added: list[Instruction] = []
            if inst.opname == "PUSH_EXC_INFO":
                added = [*snippets.load_const(""), *snippets.store_fast(_RAISED)]
            elif inst.opname in ("RETURN_VALUE", "RETURN_CONST"):
                leave = _copy(inst)
                inst.opname, inst.arg, inst.argval = "NOP", None, None  # jumps come here
                added = [*snippets.push_callable(snippets.load_const(not_raised)), *snippets.load_fast(_RAISED)]
                added += [*snippets.call(1), *snippets.pop(), leave]
            for new in added:
                new.position = inst.position
            self.rerun += added
        self.rerun_regions = body.regions
        words = snippets.push_callable(snippets.load_const(runtime_helpers.describe_exception))
        words += [*snippets.copy(3), *snippets.call(1), *snippets.store_fast(_RAISED)]
        return words, self.rerun[0]

    def _append_body(self) -> Body:
        """The function's own body, appended (once) to the replacement code."""
        if self.body is None:
            self.body = disassemble(self.code)
            self.tail = self.body.instructions[body_start(self.body.instructions) :]
            self.tail_regions = self.body.regions
        return self.body

    # ------------------------------------------------------------------ going on after a break

    def _execute(self, start: int, end: int, nulls: list[bool], region: Any) -> None:
        """Run the instructions `start` to `end` natively and go on in continuations."""
        instructions = self.frame.info.body.instructions
        inst = instructions[end]
        native = [_copy(instructions[number]) for number in range(start, end + 1)]
        if start == end and inst.opname in NEEDS_BOOL:
            # what was compared may be a tensor still: the evaluator leaves its truth to this instruction
            native.insert(0, Instruction("TO_BOOL", position=inst.position))
        missing = start == end and self._misses_own_cell(inst)
        if missing:
            native = self._raise(unbound_error(inst.argval, self.code), inst)
        depth = len(nulls)
        ways: list[tuple[Instruction | None, int, list[bool]]] = []
        if inst.opname in CONDITIONAL_JUMPS or "OR_POP" in inst.opname:
            taken_way = Instruction("NOP")
            native[-1].target = taken_way
            target = self.frame.info.targets[end]
            ways.append((None, end + 1, nulls[:-1]))
            ways.append((taken_way, target, nulls if "OR_POP" in inst.opname else nulls[:-1]))
        elif inst.opname == "FOR_ITER":
            target = self.frame.info.targets[end]
            after = exhausted_index(instructions, target)
            exhausted = Instruction("NOP") if instructions[target].opname != "END_FOR" else Instruction("END_FOR")
            native[-1].target = exhausted
            ways.append((None, end + 1, [*nulls, False]))
            ways.append((exhausted, after, nulls[:-1]))
        elif inst.opname not in RAISES and not missing:
            untouched, top = depth, depth
            for number in range(start, end + 1):
                takes, leaves = stack_effect(instructions[number])
                untouched, top = min(untouched, top - takes), top - takes + leaves
            left = [False] * (top - untouched)
            if _loads_method(inst):
                # the instruction may push method and receiver; a plain load and a NULL say the same in one way only
                _make_plain_load(native[-1])
                left = [True, False] if NULL_FIRST else [False, True]
            ways.append((None, end + 1, [*nulls[:untouched], *left]))
        self.out.extend(native)
        if inst.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR") and inst.argval in self._held:
            self._held.remove(inst.argval)
        if _loads_method(inst):
            self.out.extend(snippets.push_null_below())
        if region is not None:
            # an exception has to find its handler
            handler = self._append_body().instructions[region.handler]
            self.regions.append(ExceptionRegion(native[0], native[-1], handler, region.depth, region.lasti))
        for label, index, after_nulls in ways:
            if label is not None:
                self.out.append(label)
                if label.opname == "END_FOR":
                    # the interpreter jumps past END_FOR (and the POP_TOP of 3.13), the iterator popped
                    extra = exhausted_index(instructions, self.frame.info.targets[end]) - self.frame.info.targets[end] - 1
                    self.out.extend(Instruction("POP_TOP") for _ in range(extra))
            self._call_continuation(index, after_nulls)

    def _misses_own_cell(self, inst: Instruction) -> bool:
        """True for an instruction that needs the content of a cell of the function's own which is empty.

        In a continuation that is a free variable, for which the interpreter would raise another exception.
        """
        if inst.opname not in ("LOAD_DEREF", "DELETE_DEREF") or inst.argval not in self.code.co_freevars:
            return False
        cell = self.frame.locals.get(inst.argval)
        own = inst.argval in origin_of(self.code).co_cellvars
        return own and isinstance(cell, types.CellType) and self.ev.heap.cell_get(cell) is ABSENT

    def _raise(self, error: BaseException, inst: Instruction) -> list[Instruction]:
        """`raise error` in the place of an instruction."""
        native = [*snippets.push_callable(snippets.load_const(type(error))), *snippets.load_const(error.args[0]), *snippets.call(1)]
        native.append(Instruction("RAISE_VARARGS", 1, 1))
        for made in native:
            made.position = inst.position
        return native

    def _call_continuation(self, index: int, nulls: list[bool]) -> None:
        """The stack holds `nulls`; call the continuation at `index` with it and the live locals."""
        frame = self.frame
        origin = origin_of(frame.code)
        first = first_parameter(origin)
        if "__class__" in origin.co_freevars and first is None and origin.co_argcount:
            graph_break("opaque_object", "super() in a function whose first parameter is captured by an inner function")
        if self.survived is not None:
            self.rebuilder.begin_call(self.survived)
            self.out.extend([*snippets.call(0), Instruction("POP_TOP")])
        names = tuple(self._held)
        code, made = make_continuation(frame.code, index, tuple(nulls), names)
        slots = []
        for null in reversed(nulls):
            name = self.rebuilder.temporary()
            self.out.extend(snippets.store_fast(name))
            if not null:
                slots.append(name)
        slots.reverse()
        self.rebuilder.begin_call(_native.TailCall)
        self.out.extend(snippets.make_function(code, closure=made.closure))
        order = [*slots, *names]
        if first is not None and first in names:
            order.remove(first)
            order.insert(0, first)
        for name in order:
            self.out.extend(snippets.load_fast(name))
        self.out.extend([*snippets.build_tuple(len(order)), *snippets.call(2), *snippets.return_value()])

    def _assemble(self) -> tuple[types.CodeType, tuple[Source, ...]]:
        code, rebuilder = self.code, self.rebuilder
        inputs = tuple(rebuilder.inputs)
        count = len(self.ev.recorder.inputs)
        out = self.out
        if len(inputs) > count and getattr(self, "_slice_at", None) is not None and count:
            out[self._slice_at : self._slice_at] = [*snippets.load_const(slice(0, count)), *snippets.subscript()]
        head = [_copy(inst) for inst in disassemble(code).instructions]
        head = head[: body_start(head)]
        varnames = [*code.co_varnames, *rebuilder.temporaries]
        if inputs:
            varnames.append(INPUTS_LOCAL)
        if self.rerun:
            varnames.append(_RAISED)
        place = self.frame.info.body.instructions[max(self.frame.ip - 1, 0) if self.stopped_at is None else self.stopped_at].position
        for inst in (*out, *self.handlers):
            if inst.position is NOWHERE:
                inst.position = place  # tracebacks, warnings and debuggers show the program's line
        regions = [*self.regions, *self.tail_regions, *self.rerun_regions]
        body = Body([*head, *out, *self.handlers, *self.tail, *self.rerun], regions)
        return assemble(body, code, varnames=tuple(dict.fromkeys(varnames))), inputs



def _loads_method(inst: Instruction) -> bool:
    return inst.opname == "LOAD_METHOD" or inst.push_null or inst.opname == "LOAD_SUPER_ATTR" and bool((inst.arg or 0) & 1)


def _make_plain_load(inst: Instruction) -> None:
    if inst.opname == "LOAD_METHOD":
        inst.opname = "LOAD_ATTR"
    elif inst.opname == "LOAD_SUPER_ATTR":
        inst.arg = (inst.arg or 0) & ~1
    inst.push_null = False


def _copy(inst: Instruction) -> Instruction:
    return Instruction(inst.opname, inst.arg, inst.argval, inst.push_null, inst.target, inst.position, inst.offset)


def _group(instructions: list[Instruction], index: int) -> tuple[int, int]:
    """First and last instruction of what only makes sense together: KW_NAMES, PRECALL, CALL; TO_BOOL and its jump."""
    start = end = index
    if instructions[index].opname == "TO_BOOL" and instructions[index + 1].opname in NEEDS_BOOL:
        return index, index + 1
    while instructions[end].opname in ("KW_NAMES", "PRECALL"):
        end += 1
    while start > 0 and instructions[end].opname == "CALL" and instructions[start - 1].opname in ("KW_NAMES", "PRECALL"):
        start -= 1
    return start, end
