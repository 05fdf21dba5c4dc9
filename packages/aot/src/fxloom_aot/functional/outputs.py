"""What each output of the program is, worked out when its forward part has been functionalized.

In: the functionalizer after the forward part, the program's flat outputs. Out: the flat outputs of the graph (values with
their `OutputSpec`) and for each output of the program a `Result` that rebuilds it: the input itself, a view of an input, a
view of memory that several outputs share, a value of its own.
Invariant: two outputs of the graph never share memory with each other or with an input, so a compiler may give each one its
own; what has to alias is rebuilt from `results`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch

from fxloom_aot._torch_private import version_kept
from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.memory import Memory, View
from fxloom_aot.functional.views import LAZY, UnsupportedView, is_dense, with_strides_of
from fxloom_aot.nests import numbers_of
from fxloom_aot.recording.autograd_graph import flows_to, has_history, history_is_error
from fxloom_interfaces.signature import (
    FromConstant,
    FromInput,
    FromOutput,
    FromResult,
    MetadataChange,
    OutputKind,
    OutputSpec,
    Result,
    SameResult,
    ViewStep,
)
from fxloom_shapes import FakeTensor
from fxloom_shapes.fake.descriptor import equal
from fxloom_shapes.symbols.numbers import SYMBOLIC, symbol_names, symbol_number

aten = torch.ops.aten


@dataclass(slots=True)
class ForwardOutputs:
    """specs, values: the flat outputs of the graph. programs: the program's tensor behind each, for differentiation."""

    specs: list[OutputSpec] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    programs: list[FakeTensor | None] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    metadata: list[MetadataChange] = field(default_factory=list)

    def add(self, spec: OutputSpec, value: Any, program: FakeTensor | None) -> int:
        self.specs.append(spec)
        self.values.append(value)
        self.programs.append(program)
        return len(self.specs) - 1


def classify_outputs(state: Functionalizer, outputs: list[Any], changed_by_autograd: set[int]) -> ForwardOutputs:
    """See the module's docstring. changed_by_autograd: ids of input fakes that autograd saw mutated."""
    found = ForwardOutputs()
    _new_values(state, found, changed_by_autograd)
    shared = _shared_memories(state, outputs)
    bases: dict[int, int] = {}
    seen: dict[int, int] = {}
    for number, output in enumerate(outputs):
        if type(output) in SYMBOLIC:
            if type(output) is torch.SymBool and output.node.has_hint():
                found.results.append(FromConstant(bool(output)))
            else:
                found.results.append(FromOutput(found.add(OutputSpec(OutputKind.USER), output, None)))
            continue
        if type(output) is not FakeTensor:
            found.results.append(FromConstant(output))
            continue
        earlier = seen.setdefault(id(output), number)
        if earlier != number:
            found.results.append(SameResult(earlier))
            continue
        view = state.view_of(output)
        memory = view.memory
        if view.entry is not None and history_is_error(output):
            state.reject(view.entry, "what becomes of a view raises when autograd looks at it")
        if view.entry is not None and output.requires_grad and not has_history(output) and not _is_of_what_requires_grad(state, memory):
            state.reject(view.entry, "a view becomes a leaf (requires_grad_)")
        if memory.constant:
            if view.chain:
                raise UnsupportedView("an output is a view of a constant of the graph")
            found.results.append(FromConstant(state.constants[id(output)][1]))
        elif memory.members:
            found.results.append(_from_input(state, found, output, view))
        elif (
            id(memory) in shared
            or not is_dense(output.desc)
            or not equal(output.desc.offset, memory.whole.offset)  # it is a part of its memory
            or any(step.view.op in LAZY for step in view.chain)
            or (output.requires_grad and not _is_tracked(output))  # its base carries the history
        ):
            base = bases.get(id(memory))
            if base is None:
                base = bases[id(memory)] = _add_base(state, found, memory)
            steps = _steps(state, found, view, output)
            found.results.append(FromOutput(base, steps, _as_made(view, output), _is_apart(output, memory.owner)))
        else:
            if output.requires_grad and memory.owner is not None and memory.owner is not output and memory.owner.desc != memory.whole:
                raise UnsupportedView("an output is a view of a tensor that changed its shape in place afterwards")
            value = with_strides_of(state.log, state.read(output), output.desc)
            if not equal(value.desc.offset, output.desc.offset):  # a part of memory that the program does not return
                value = state.log.emit(aten.clone.default, (value,), {"memory_format": torch.preserve_format}, merge=False)
            spec = OutputSpec(OutputKind.USER, differentiable=output.requires_grad)
            found.results.append(FromOutput(found.add(spec, value, output)))
    _views_of_results(state, found, outputs)
    _separate(state, found)
    return found


def _views_of_results(state: Functionalizer, found: ForwardOutputs, outputs: list[Any]) -> None:
    """Rebuild a view that the program made of a view it also returns from that one, so that its gradients pass through it.

    The caller observes that by hooks and `retain_grad`. A result that is a whole memory is the base of its views in any case.
    """
    shown: dict[int, list[int]] = {}
    for number, (output, what) in enumerate(zip(outputs, found.results, strict=True)):
        if isinstance(what, (FromInput, FromOutput)) and what.steps and _is_tracked(output):
            shown.setdefault(id(state.view_of(output).memory), []).append(number)
    for numbers in shown.values():
        for number in numbers if len(numbers) > 1 else ():
            made = state.view_of(outputs[number]).made
            above = [other for other in numbers if other != number and _is_made_of(made, outputs[number], state, outputs[other])]
            if above:
                nearest = max(above, key=lambda other: len(state.view_of(outputs[other]).made))
                what = found.results[number]
                assert isinstance(what, (FromInput, FromOutput))
                steps = made[len(state.view_of(outputs[nearest]).made) :]
                found.results[number] = FromResult(nearest, steps, what.requires_grad, what.apart)


def _is_made_of(made: tuple[ViewStep, ...], output: FakeTensor, state: Functionalizer, other: FakeTensor) -> bool:
    """True for a view that the program, and autograd, made of the view `other`."""
    first = state.view_of(other).made
    return len(first) < len(made) and all(map(is_, first, made)) and flows_to(output.grad_fn, other)


def _is_of_what_requires_grad(state: Functionalizer, memory: Memory) -> bool:
    """True where some tensor on the memory requires grad, so that a view made without grad reports that it does, too."""
    wholes = [memory.owner, *[state.inputs[member].fake for member in memory.members]]
    return any(whole is not None and whole.requires_grad for whole in wholes)


def _is_tracked(output: FakeTensor) -> bool:
    """True for a tensor with a history. A view made with grad mode off of a tensor that requires grad requires grad without one."""
    return output.requires_grad and has_history(output)


def _is_apart(output: FakeTensor, owner: FakeTensor | None) -> bool:
    """True for a view that has a version counter of its own, as `Tensor.data` gives it."""
    if owner is None or owner is output or has_history(output) or owner.is_inference() or output.is_inference():
        return False
    before = output._version
    with version_kept(owner):
        torch.autograd.graph.increment_version(owner)
        return output._version == before


def _as_made(view: View, output: FakeTensor) -> bool:
    """True where the view is to be made in the grad modes in which the program made it; else without grad.

    Also one of what requires no grad: autograd remembers that a view was made without grad, and refuses writes to it with grad.
    """
    owner = view.memory.owner
    return has_history(output) if output.requires_grad else owner is None or not owner.requires_grad


def _new_values(state: Functionalizer, found: ForwardOutputs, changed_by_autograd: set[int]) -> None:
    for number, placeholder in enumerate(state.placeholders):
        memory = placeholder.memory
        if memory.version == 0:
            continue
        owner = memory.owner
        differentiable = owner is not None and id(owner) in changed_by_autograd
        # running statistics that kernels write, and writes through `.data`, do not count as a new version
        members = [state.inputs[member] for member in memory.members]
        quiet = all(given.fake is not None and given.fake._version == given.version for given in members)
        spec = OutputSpec(OutputKind.NEW_VALUE, placeholder.input, number, differentiable, quiet=quiet)
        found.add(spec, memory.value, owner if differentiable else None)
    for number, given in enumerate(state.inputs):
        if given.fake is not None and id(given.fake) in state.metadata_changed:
            view = state.view_of(given.fake)
            desc = view.desc
            state.offset_sensitive.update(view.memory.members)
            found.metadata.append(MetadataChange(number, desc.size, desc.stride, desc.offset))


def _shared_memories(state: Functionalizer, outputs: list[Any]) -> set[int]:
    """Memories that two different outputs are on."""
    users: dict[int, set[int]] = {}
    for output in outputs:
        if type(output) is FakeTensor:
            users.setdefault(id(state.view_of(output).memory), set()).add(id(output))
    return {memory for memory, fakes in users.items() if len(fakes) > 1}


def _add_base(state: Functionalizer, found: ForwardOutputs, memory: Memory) -> int:
    owner = memory.owner
    assert owner is not None
    if owner.desc != memory.whole:
        raise UnsupportedView("outputs share memory whose tensor changed its shape in place")
    if not is_dense(memory.whole):
        raise UnsupportedView("outputs share memory that has gaps")
    value = with_strides_of(state.log, memory.value, memory.whole)
    return found.add(OutputSpec(OutputKind.BASE, differentiable=owner.requires_grad), value, owner)


def _from_input(state: Functionalizer, found: ForwardOutputs, output: FakeTensor, view: View) -> FromInput:
    memory = view.memory
    for number, given in enumerate(state.inputs):
        if given.fake is output:
            return FromInput(number)
    if not memory.flat:
        number = next(number for number, given in enumerate(state.inputs) if given.fake is memory.owner)
        # metadata changes of the input itself come first in the wrapper, so the chain must start from what it then is
        if memory.owner is not None and id(memory.owner) in state.metadata_changed:
            steps: tuple[ViewStep, ...] = (_whole_view(state, memory, view, output),)
        else:
            steps = _steps(state, found, view, output)
    else:
        number, steps = memory.members[0], (_whole_view(state, memory, view, output),)
    # inputs that share memory are fakes with versions of their own, which real ones share
    apart = all(_is_apart(output, state.inputs[member].fake) for member in memory.members)
    return FromInput(number, steps, _as_made(view, output), apart)


def _whole_view(state: Functionalizer, memory: Memory, view: View, output: FakeTensor) -> ViewStep:
    """`output` as one as_strided of the input's storage."""
    if output.dtype != memory.whole.dtype:
        raise UnsupportedView("an output is a view, with another element type, of an input that changed shape or is shared")
    state.offset_sensitive.update(memory.members)
    tracked = view.entry is None or view.entry.tracked
    return ViewStep(aten.as_strided.default, (list(output.desc.size), list(output.desc.stride), output.desc.offset), tracked=tracked)


def _steps(state: Functionalizer, found: ForwardOutputs, view: View, output: FakeTensor) -> tuple[ViewStep, ...]:
    """The views to replay. Unbacked numbers in them become outputs of the graph."""
    steps = view.made
    owner = view.memory.owner
    if _is_tracked(output) and view.entry is not None and owner is not None:
        if not owner.requires_grad or any(step.op is aten.detach.default for step in steps):
            state.reject(view.entry, "a detached view has a history of its own")
    if _is_tracked(output) and not all(step.tracked for step in steps) and owner is not None and view.entry is not None:
        # a view that was made without grad gets one when its memory, or its shape, changes, or a custom function returns it
        if flows_to(output.grad_fn, owner):
            state.reject(view.entry, "a view made with grad mode off, or by a custom function, has a history of its own")
    known = {spec.symbol for spec in found.specs}
    for name in symbol_names(number for step in steps for number in numbers_of([step.args, dict(step.kwargs)])):
        if name in state.log.symbol_calls and name not in known:
            found.add(OutputSpec(OutputKind.USER, symbol=name), symbol_number(state.fake_mode.env, name), None)
    return steps


def _separate(state: Functionalizer, found: ForwardOutputs) -> None:
    """Give an output memory of its own where its value shares some with an input or another output.

    A new value may stay on its input's memory only if that is not a target of the write-back: copies run one after the other.
    """
    tokens = {value.storage_token.ident for value in state.log.placeholders}
    tokens.update(value.storage_token.ident for value, _ in state.log.constants)
    targets = {state.log.placeholders[spec.input].storage_token.ident for spec in found.specs if spec.kind is OutputKind.NEW_VALUE}
    seen: set[int] = set()
    for number, (spec, value) in enumerate(zip(found.specs, found.values, strict=True)):
        if type(value) is not FakeTensor:
            continue
        token = value.storage_token.ident
        if spec.kind is OutputKind.NEW_VALUE and not spec.differentiable:
            clash = token in targets and value is not state.log.placeholders[spec.input]  # what it was before: nothing to copy
        else:
            clash = token in tokens or token in seen
        if clash:
            value = found.values[number] = state.log.emit(
                aten.clone.default, (value,), {"memory_format": torch.preserve_format}, merge=False
            )
        seen.add(value.storage_token.ident)
