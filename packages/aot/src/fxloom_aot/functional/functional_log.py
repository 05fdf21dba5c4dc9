"""The functional log: straight-line calls of functional operators on values, before it becomes an FX graph.

In: operators with values (fakes without autograd) as arguments. Out: calls, in order, and the values they give. Emitting
applies decompositions, takes operators apart that are defined by others, drops identities and merges equal calls.
Invariant: no call writes to anything; a value is made once. Random operators and entries of different regions are never
merged; seeds are drawn together. Not here: what aliases what in the program (`functionalize`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.fx

from fxloom_aot._torch_private import TorchDispatchMode, below_autograd
from fxloom_aot.functional.simplifications import EVALUATED, IDENTITIES, RESHAPES, infer_size, viewable
from fxloom_aot.nests import numbers_of, replace_real_tensors, values_of
from fxloom_interfaces.errors import GraphRejected, InternalError
from fxloom_ops.philox import PHILOX_SEEDS
from fxloom_ops.schema import Op, decompose, schema_info
from fxloom_shapes import SIZE_QUERIES, DataDependent, Descriptor, FakeMode, FakeTensor, make_fake, propagate
from fxloom_shapes.fake.devices import with_requested_device
from fxloom_shapes.fake.size_nodes import symbols_made
from fxloom_shapes.fake.sizes import statically_same_size
from fxloom_shapes.propagation.known_values import CONSTANT_NUMEL
from fxloom_shapes.symbols.numbers import SYMBOLIC, SymbolicKey, symbol_names

aten = torch.ops.aten
Rule = Callable[..., Any]
Decompositions = Mapping[Op, Rule]


@dataclass(slots=True)
class Call:
    """One functional call. out: a value, or a tuple or list of values. node: torch-dialect node that caused it.

    checkpoint: number of the checkpointed function that it is part of, 0 for none. checks: the program calls it, and it may raise
    for what is in its tensors.
    """

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    node: torch.fx.Node | None
    backward: bool
    region: int
    checkpoint: int = 0
    checks: bool = False
    #: values among the arguments
    inputs: tuple[FakeTensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = (*values_of(self.args), *values_of(self.kwargs))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: call number and item of its result, or placeholder number; all -1 for a constant."""

    call: int = -1
    item: int | None = None
    placeholder: int = -1


class FunctionalLog(TorchDispatchMode):
    """Collects calls; as a mode (while a decomposition runs) it takes what the rule calls."""

    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, fake_mode: FakeMode, decompositions: Decompositions) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.decompositions = decompositions
        self.calls: list[Call] = []
        self.placeholders: list[FakeTensor] = []
        self.constants: list[tuple[FakeTensor, torch.Tensor]] = []
        self.origins: dict[int, Origin] = {}
        self.node: torch.fx.Node | None = None
        self.backward = False
        self.region = 0
        self.checkpoint = 0
        #: by unbacked symbol: the number of the call that defines it
        self.symbol_calls: dict[str, int] = {}
        self._merged: dict[tuple[Any, ...], Any] = {}
        self._seed_calls: dict[torch.device, int] = {}
        self._constants: dict[int, FakeTensor] = {}
        self._kept: list[torch.Tensor] = []  # ids above are only good while the tensors live

    # --- values ---

    def placeholder(self, desc: Descriptor) -> FakeTensor:
        """A new input value."""
        value = make_fake(desc)
        self.origins[id(value)] = Origin(placeholder=len(self.placeholders))
        self.placeholders.append(value)
        return value

    def constant(self, real: torch.Tensor) -> FakeTensor:
        """The value of a tensor that belongs to the graph. One number becomes a call of `full`."""
        known = self._constants.get(id(real))
        if known is not None:
            return known
        if real.numel() == 1 and not real.dtype.is_complex:
            value = self.emit(
                aten.full.default,
                (list(real.shape), real.item()),
                {"dtype": real.dtype, "device": real.device, "pin_memory": False},
            )
        else:
            value = make_fake(self.fake_mode.from_tensor(real, as_stored=True).desc)
            if real.device.type == "cpu" and real.numel() <= CONSTANT_NUMEL:
                value.set_constant(real.detach())  # nothing writes to a value
            self.constants.append((value, real))
            self.origins[id(value)] = Origin()
        self._constants[id(real)] = value
        self._kept.append(real)
        return value

    # --- calls ---

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in SIZE_QUERIES:
            return propagate(func, args, kwargs)
        return self.emit(func, args, with_requested_device(kwargs or {}))

    def emit(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, merge: bool = True) -> Any:
        """The value(s) of `op(*args, **kwargs)`; `merge=False` for a call that must not be merged with an equal one."""
        kwargs = kwargs or {}
        op = EVALUATED.get(op, op)
        if op is aten._efficientzerotensor.default:  # zeros without memory: no kernel may read them
            kwargs = {"dtype": kwargs.get("dtype") or torch.get_default_dtype(), "device": kwargs.get("device"), "pin_memory": False}
            op, args = aten.full.default, (args[0], 0)
        rule = self.decompositions.get(op)
        if rule is not None:
            try:
                with below_autograd(), self:
                    result = rule(*args, **kwargs)
            except DataDependent:  # the rule needs an unbacked size
                result = NotImplemented
            if result is not NotImplemented:
                return result
        if op is PHILOX_SEEDS and not self.backward:
            return self._seeds(*args, **kwargs)
        info = schema_info(op)
        if info.writes:
            raise InternalError("aot", f"a decomposition called {op}, which writes to its argument; rules are functional")
        identity = IDENTITIES.get(op)
        if merge and identity is not None:
            same = identity(*args, **kwargs)
            if same is not None:
                return same
        if info.composite:
            with below_autograd(), self:
                result = decompose(op, args, kwargs)
            if result is not NotImplemented:
                return result
        if op in RESHAPES:
            return self._reshape(args[0], args[1])
        if op is aten.permute.default:
            args = self._compose_permutes(args[0], args[1])
            if args[1] == list(range(len(args[1]))):
                return args[0]
        args, kwargs = self._adopt(args), {name: self._adopt(value) for name, value in kwargs.items()}
        key = None
        if merge and not info.seeded:
            key = (op, self.region, key_of_values(args), tuple((name, key_of_values(value)) for name, value in sorted(kwargs.items())))
            known = self._merged.get(key)
            if known is not None:
                return known
        out = propagate(op, args, kwargs, self.fake_mode)
        self._append(op, args, kwargs, out)
        if key is not None:
            self._merged[key] = out
        return out

    def _seeds(self, count: int, device: torch.device) -> list[FakeTensor]:
        """New seeds, all that the forward part draws on a device in one call, where the first is needed."""
        seeds: list[FakeTensor] = propagate(PHILOX_SEEDS, (count,), {"device": device}, self.fake_mode)
        number = self._seed_calls.get(device)
        if number is None:
            self._seed_calls[device] = len(self.calls)
            self._append(PHILOX_SEEDS, (count,), {"device": device}, list(seeds))
            return seeds
        call = self.calls[number]
        for item, seed in enumerate(seeds, len(call.out)):
            self.origins[id(seed)] = Origin(number, item)
        call.out.extend(seeds)
        call.args = (len(call.out),)
        return seeds

    def record(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """A call whose result depends on values: its result is like `out`, with the same unbacked symbols.

        A program that computes the same thing twice may have different symbols for both results, and goes on to use both. So each
        symbol needs a call that defines it: only calls that define the same symbols are merged.
        """
        args, kwargs = self._adopt(args), {name: self._adopt(value) for name, value in kwargs.items()}
        defined = tuple(symbols_made(self.fake_mode.env, out))
        key = (op, self.region, key_of_values(args), tuple((name, key_of_values(value)) for name, value in sorted(kwargs.items())), defined)
        known = self._merged.get(key)
        if known is not None:
            return known
        made = _like(out)
        if not schema_info(op).seeded:
            self._merged[key] = made
        for name in defined:
            self.symbol_calls.setdefault(name, len(self.calls))
        self._append(op, args, kwargs, made)
        return made

    def _calls_behind(self, nest: Any) -> Iterator[int]:
        """Numbers of the calls that values and symbolic numbers in a nest come from."""
        for value in values_of(nest):
            yield self.origins[id(value)].call
        if self.symbol_calls:
            for name in symbol_names(numbers_of(nest)):
                yield self.symbol_calls.get(name, -1)

    def _append(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        number = len(self.calls)
        self.calls.append(Call(op, args, kwargs, out, self.node, self.backward, self.region, self.checkpoint))
        if type(out) is FakeTensor:
            self.origins[id(out)] = Origin(number)
        elif type(out) in (tuple, list):
            for item, value in enumerate(out):
                if type(value) in (tuple, list) and self.node is not None:
                    raise GraphRejected(self.node, f"{op} returns lists of tensors among its results")
                if type(value) is FakeTensor:
                    self.origins.setdefault(id(value), Origin(number, item))

    def _adopt(self, value: Any) -> Any:
        return replace_real_tensors(value, self.constant)

    def _reshape(self, value: FakeTensor, size: Any) -> FakeTensor:
        """`view`, by way of a copy where this value's strides, other than the program's, don't allow a view."""
        wanted = infer_size(tuple(size), value.numel())
        below = self._made_by(value, aten.view.default)
        if below is not None and viewable(below.args[0].desc, wanted):  # view(view(x, a), b) -> view(x, b)
            value = below.args[0]
        if statically_same_size(wanted, value.desc.size):
            return value
        if not viewable(value.desc, wanted):
            value = self.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        key = (aten.view.default, self.region, id(value), key_of_values(wanted))
        known = self._merged.get(key)
        if known is None:
            known = propagate(aten.view.default, (value, list(wanted)), {}, self.fake_mode)
            self._append(aten.view.default, (value, list(wanted)), {}, known)
            self._merged[key] = known
        assert isinstance(known, FakeTensor)
        return known

    def _compose_permutes(self, value: FakeTensor, order: Any) -> tuple[FakeTensor, list[int]]:
        """permute(permute(x, a), b) -> permute(x, a[b])"""
        rank = value.dim()
        order = [axis % rank for axis in order]
        below = self._made_by(value, aten.permute.default)
        if below is None:
            return value, order
        inner = [axis % rank for axis in below.args[1]]
        return below.args[0], [inner[axis] for axis in order]

    def _made_by(self, value: FakeTensor, op: Op) -> Call | None:
        """The call that made `value`, if it is one of `op`."""
        number = self.origins[id(value)].call
        call = self.calls[number] if number >= 0 else None
        return call if call is not None and call.op is op and call.region == self.region else None

    @contextmanager
    def at(self, node: torch.fx.Node | None, backward: bool, region: int, checkpoint: int = 0) -> Iterator[None]:
        """Attribute the calls of a block."""
        before = self.node, self.backward, self.region, self.checkpoint
        self.node, self.backward, self.region, self.checkpoint = node, backward, region, checkpoint
        try:
            yield
        finally:
            self.node, self.backward, self.region, self.checkpoint = before

    def live_calls(self, outputs: list[Any], backward_effects: Sequence[int] | None = None) -> list[int]:
        """Numbers of the calls that `outputs` need, in order. Calls with an effect beyond their result stay, errors being one.

        backward_effects: those of the calls that autograd's engine made; None for all.
        """
        if backward_effects is None:
            return self.calls_for(outputs, self.effects(0))
        return self.calls_for(outputs, [*(n for n in self.effects(0) if not self.calls[n].backward), *backward_effects])

    def effects(self, first: int) -> list[int]:
        """Numbers of the calls from `first` on that count beyond their result; to raise an error is an effect."""
        return [number for number in range(first, len(self.calls)) if self.calls[number].checks or has_effect(self.calls[number].op)]

    def calls_for(self, nest: Any, others: Sequence[int] = ()) -> list[int]:
        """Numbers of the calls that values and numbers in a nest need, and of `others` with what these need, in order."""
        needed: set[int] = set()
        todo = [*self._calls_behind(nest), *others]
        while todo:
            number = todo.pop()
            if number >= 0 and number not in needed:
                needed.add(number)
                todo.extend(self._calls_behind([self.calls[number].args, self.calls[number].kwargs]))
        return sorted(needed)


def inputs_of(log: FunctionalLog, number: int) -> tuple[FakeTensor, ...]:
    """The values that a call takes."""
    return log.calls[number].inputs


def has_effect(op: Op) -> bool:
    """True for calls that count beyond their result: random ones advance a generator, others return nothing."""
    return schema_info(op).seeded or not op._schema.returns


def _like(out: Any) -> Any:
    """New fakes with the same metadata; numbers as they are."""
    if type(out) is FakeTensor:
        return make_fake(out.desc)
    if type(out) in (tuple, list):
        return type(out)([_like(item) for item in out])
    return out


def key_of_values(value: Any) -> Any:
    """What is equal for equal arguments of calls: values go by identity."""
    kind = type(value)
    if kind is FakeTensor:
        return id(value)
    if kind is tuple or kind is list:
        return tuple([key_of_values(item) for item in value])
    if kind in SYMBOLIC:
        return (kind, SymbolicKey(value.node))
    if kind is float or kind is complex:  # NaN equals itself here, and 0.0 is not -0.0
        return (kind, repr(value))
    return (kind, value)
