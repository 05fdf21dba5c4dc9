"""Run one operator on fakes: metadata in, metadata out.

In: an overload and its arguments. Out: fakes (or numbers). The answer of an operator is a *plan*, a small tree that
says for every output whether it is fresh memory, a view of an input's memory or an input itself. Plans are cached by
overload and descriptors; a miss asks a shape rule of ours, then torch's registered Meta kernel.
Invariant: two outputs or inputs share a storage token exactly when the operator's kernels would share memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from fxloom_interfaces.number_checks import CHECK
from fxloom_shapes import fake as fake_module
from fxloom_shapes._torch_private import (
    context_for_fake_kernels,
    decompose,
    disable_torch_dispatch,
    fake_kernel,
    make_wrapper,
    set_lazy_bits,
    storage_identity,
    symbolic_kernels,
)
from fxloom_shapes.asking import Asker
from fxloom_shapes.descriptor import CONJ, NEG, Descriptor, describe, describe_contiguous, describe_tensor, extent_of, usable
from fxloom_shapes.devices import meant
from fxloom_shapes.errors import DataDependent, NoFakeKernel
from fxloom_shapes.fake import FakeStorage, FakeTensor, GuessedCopy, make_fake
from fxloom_shapes.float_nodes import FloatNode
from fxloom_shapes.nodes import IntNode
from fxloom_shapes.operators import Op, OpFacts, facts_of
from fxloom_shapes.refusals import refuse
from fxloom_shapes.unbacked import CustomContext, dynamic_shape, unbacked_number

if TYPE_CHECKING:
    from fxloom_shapes.env import SymbolEnv
    from fxloom_shapes.mode import FakeMode

aten = torch.ops.aten
_strided, _float32 = torch.strided, torch.float32
_default_dtype, _inference_mode = torch.get_default_dtype, torch.is_inference_mode_enabled
_META = torch.device("meta")
_CPU = torch.device("cpu")
#: fakes with known values of at most this many elements are computed along
CONSTANT_NUMEL = 64


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output with memory of its own."""

    desc: Descriptor


@dataclass(frozen=True, slots=True)
class ViewOf:
    """An output on the memory of the `index`-th tensor argument (flat order)."""

    desc: Descriptor
    index: int


@dataclass(frozen=True, slots=True)
class SameAs:
    """The `index`-th tensor argument itself."""

    index: int


@dataclass(frozen=True, slots=True)
class SharedFresh:
    """An output on new memory that other outputs share; `group` numbers it within the plan."""

    desc: Descriptor
    group: int


@dataclass(frozen=True, slots=True)
class Number:
    """An output that is no tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class Once:
    """A plan that is not to be kept: it has symbols that this very call makes, or follows from more than the arguments."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Nest:
    """Several outputs in a tuple or list."""

    items: tuple[Plan, ...]
    kind: type


Plan = Fresh | ViewOf | SameAs | SharedFresh | Number | Nest
Key = tuple[Any, ...]

SYMBOLIC = frozenset({torch.SymInt, torch.SymFloat, torch.SymBool})
#: the metadata cache; sizes in it are plain integers, so it serves every trace context of the process (plans for symbolic
#: ones are kept by their environment)
_plans: dict[Key, Plan] = {}
_PLANS_LIMIT = 50_000

#: shape rules of ours: (args, kwargs) -> Plan, or None to decline
Rule = Callable[..., "Plan | Once | None"]
RULES: dict[Op, Rule] = {}


@dataclass(slots=True)
class CacheStatistics:
    """How often the cache answered, a rule of ours did, and torch's Meta kernel had to. draws: calls that draw random numbers."""

    hits: int = 0
    rules: int = 0
    meta_kernels: int = 0
    draws: int = 0


statistics = CacheStatistics()


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """What every call of an operator asks about it, worked out once. As part of a key it is compared by identity.

    copies: it copies where torch's own functions (`reshape`, `contiguous`, `to`) can't give a view. looks: `reshape` then looks at
    the copy. known_factory: it makes a tensor whose values its arguments tell.
    """

    func: Op  # held, so that no other gets its id
    facts: OpFacts
    handler: Callable[[Op, tuple[Any, ...], dict[str, Any], FakeMode | None], Any] | None
    copies: bool
    looks: bool
    known_factory: bool


#: by id of the operator: the hash of an operator is Python code
_ways: dict[int, Way] = {}


def _way_of(func: Op) -> Way:
    way = Way(
        func, facts_of(func), _HANDLERS.get(func), func in _COPIES, func is aten._unsafe_view.default, func in _KNOWN_FACTORIES
    )  # fmt: skip
    return _ways.setdefault(id(func), way)


def propagate(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, mode: FakeMode | None = None) -> Any:
    """What `func(*args, **kwargs)` returns, as fakes. Written-to fakes keep their identity."""
    way = _ways.get(id(func)) or _way_of(func)
    if kwargs:
        kwargs = meant(kwargs)
    guesses = _guesses_before_copy(args) if way.copies else ()
    if way.handler is not None:
        return way.handler(func, args, kwargs or {}, mode)
    try:
        key = _key(way, args, kwargs)
    except _RealTensor:
        args, kwargs = _with_fakes(args, kwargs or {}, func, mode)
        key = _key(way, args, kwargs)
    facts = way.facts
    plan = _plans.get(key)
    env = None
    if plan is None:
        env = _environment(key)
        if env is not None:
            plan = env.plans.get(key)
    if plan is None:
        if facts.data_dependent or facts.dynamic_shape:
            known = _compute_constant(func, args, kwargs or {})
            if known is not None:
                return known
            if func is aten.index.Tensor:
                args = (args[0], _known_masks(args[1]), *args[2:])
            asked = _symbols_of_context(mode)
            if asked is not None and asked.options.capture_shapes and facts.dynamic_shape:
                made = dynamic_shape(asked, func, args, kwargs or {}) if _shape_depends_on_values(func, args, kwargs or {}) else None
                if made is not None:
                    return made
        made_plan = _make_plan(func, facts, args, kwargs or {}, mode)
        if made_plan is None:
            return decompose(func, args, kwargs or {})
        refuse(func, args, kwargs or {})
        plan = made_plan.plan if isinstance(made_plan, Once) else made_plan
        if isinstance(made_plan, Once):
            pass  # the next call's may be another
        elif env is not None:  # its guards are that environment's
            env.plans[key] = plan
        else:
            if len(_plans) >= _PLANS_LIMIT:
                _plans.clear()
            _plans[key] = plan
    else:
        statistics.hits += 1
    if type(plan) is Fresh:
        desc = plan.desc
        if desc.env is not None:
            out = make_fake(desc)
        else:  # the same without a call: this is the way of nearly all operators
            out = make_wrapper(FakeTensor, desc.size, desc.stride, desc.offset, None, desc.dtype, _strided, desc.wrapper_device)
            out.desc = desc
            out.storage_token = FakeStorage()
            if desc.bits:
                set_lazy_bits(out, bool(desc.bits & CONJ), bool(desc.bits & NEG))
        if guesses:
            out.storage_token.guessed_copy = GuessedCopy(args[0].storage_token, guesses)
        elif way.looks:
            out.storage_token.guessed_copy = args[0].storage_token.guessed_copy
    elif type(plan) is ViewOf and plan.index == 0 and type(args[0]) is FakeTensor and not _inference_mode():
        out = make_fake(plan.desc, args[0].storage_token)
    else:
        out = _build(plan, args, kwargs)
    if facts.writes:
        known = _written_constant(func, facts, args, kwargs or {}) if args and hasattr(args[0], "_constant") else None
        _note_writes(facts, args, kwargs or {})
        if known is not None:
            args[0].set_constant(known)
    if facts.seeded:
        statistics.draws += 1
    elif not facts.writes and args and (way.known_factory or _may_be_constant(args)):
        _carry_constant(func, args, kwargs or {}, out)
    return out


_COPIES = frozenset({aten.clone.default, aten._to_copy.default})


def _guesses_before_copy(args: tuple[Any, ...]) -> tuple[tuple[Any, bool], ...]:
    """What the function that copies now asked before, with answers by default."""
    env = args[0].desc.env if type(args[0]) is FakeTensor else None
    return () if env is None else tuple(env.guesses)


class SymbolicKey:
    """A symbolic number in a key: equal where the expressions are, in one environment."""

    __slots__ = ("env", "value")

    def __init__(self, node: Any) -> None:
        self.env = node.env
        self.value = node.real if isinstance(node, FloatNode) else node.poly if isinstance(node, IntNode) else node.statement

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicKey) and self.env is other.env and self.value == other.value


def _environment(key: Key) -> SymbolEnv | None:
    """The environment of the symbols in a key, None where there are none."""
    for part in key:
        kind = type(part)
        if kind is Descriptor or kind is SymbolicKey:
            if part.env is not None:
                return part.env  # type: ignore[no-any-return]  # parts of a key are anything
        elif kind is tuple:
            found = _environment(part)
            if found is not None:
                return found
    return None


class _RealTensor(Exception):
    """A real tensor among the arguments."""


def _key(way: Way, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Key:
    parts: list[Any] = [way]
    add = parts.append
    default = _default_dtype()
    if default is not _float32:
        add(default)  # the dtype of factories, and of what integers are divided into
    for value in args:
        kind = type(value)
        if kind is FakeTensor:
            add(value.desc)
        elif kind is list or kind is tuple:
            add(_sequence_key(value))
        elif isinstance(value, torch.Tensor):
            raise _RealTensor
        else:
            # the type too: 1, 1.0 and True are equal keys of different meaning
            add(kind)
            add(value if kind not in SYMBOLIC else SymbolicKey(value.node))
    if kwargs:
        for name, value in kwargs.items():
            add(name)
            kind = type(value)
            if kind is FakeTensor:
                add(value.desc)
            elif kind is list or kind is tuple:
                add(_sequence_key(value))
            elif isinstance(value, torch.Tensor):
                raise _RealTensor
            else:
                add(kind)
                add(value if kind not in SYMBOLIC else SymbolicKey(value.node))
    return tuple(parts)


def _sequence_key(values: Any) -> tuple[Any, ...]:
    parts = []
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            parts.append(value.desc)
        elif isinstance(value, torch.Tensor):
            raise _RealTensor
        elif kind is list or kind is tuple:
            parts.append(_sequence_key(value))
        else:
            parts.append((kind, value if kind not in SYMBOLIC else SymbolicKey(value.node)))
    return tuple(parts)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Iterator[FakeTensor]:
    """The fakes among the arguments, in flat order; `ViewOf.index` counts these."""
    for value in args:
        if type(value) is FakeTensor:
            yield value
        elif type(value) is list or type(value) is tuple:
            yield from (item for item in value if type(item) is FakeTensor)
    if kwargs:
        for value in kwargs.values():
            if type(value) is FakeTensor:
                yield value
            elif type(value) is list or type(value) is tuple:
                yield from (item for item in value if type(item) is FakeTensor)


def _build(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    tensors = list(tensors_of(args, kwargs))
    groups: dict[int, FakeStorage] = {}

    def build(plan: Plan) -> Any:
        match plan:
            case Fresh():
                return make_fake(plan.desc)
            case ViewOf():
                base = tensors[plan.index]
                if torch.is_inference_mode_enabled() and not base.is_inference():
                    with torch.inference_mode(False):  # as in torch, a view of an ordinary tensor is an ordinary tensor
                        return make_fake(plan.desc, base.storage_token)
                return make_fake(plan.desc, base.storage_token)
            case SameAs():
                return tensors[plan.index]
            case SharedFresh():
                return make_fake(plan.desc, groups.setdefault(plan.group, FakeStorage()))
            case Nest():
                return plan.kind([build(item) for item in plan.items])
            case Number():
                return plan.value

    return build(plan)


def _with_fakes(args: tuple[Any, ...], kwargs: dict[str, Any], func: Op, mode: FakeMode | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if mode is None:
        from fxloom_shapes.context import trace_context

        context = trace_context()
        if context is None:
            raise RuntimeError(f"{func}: a real tensor meets a fake one outside of FakeMode and of any trace context")
        mode = context.fake_mode

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
            return mode.from_tensor(value)
        if type(value) is list or type(value) is tuple:
            return type(value)([convert(item) for item in value])
        return value

    return tuple(convert(value) for value in args), {name: convert(value) for name, value in kwargs.items()}


def common_device(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the results. CPU tensors without axes go along with any device, as in torch."""
    asked = kwargs.get("device")
    if asked is not None:
        device = torch.device(asked) if not isinstance(asked, torch.device) else asked
        if device.index is None and device.type not in ("cpu", "meta"):  # tensors know theirs
            return torch.device(device.type, torch.accelerator.current_device_index() if usable(device.type) else 0)
        return device
    scalar: torch.device | None = None
    found: torch.device | None = None
    for tensor in tensors_of(args, kwargs):
        desc = tensor.desc
        if not desc.size and desc.device == _CPU:
            scalar = desc.device
        elif found is None:
            found = desc.device
        elif found != desc.device:
            if func in _MIXED_DEVICES:
                continue
            raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got tensors on {found} and {desc.device}")
    return found or scalar or _CPU


def _make_plan(func: Op, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Plan | Once | None:
    """None when the operator is defined by others and has to be taken apart."""
    if not RULES:
        import fxloom_shapes.rules  # noqa: F401  # registers; they need this module
    rule = RULES.get(func)
    if rule is not None:
        device = common_device(func, args, kwargs)
        options = {name: value for name, value in kwargs.items() if name != "device"} if "device" in kwargs else kwargs
        plan = rule(device, *args, **options)
        if plan is not None:
            statistics.rules += 1
            return plan
    if facts.data_dependent:
        raise DataDependent(str(func))
    if facts.dynamic_shape and _shape_depends_on_values(func, args, kwargs):
        raise DataDependent(str(func), f"the shape of {func}'s result depends on the values of a tensor")
    if facts.composite:
        return None
    if func in _QUANTIZES:
        raise NoFakeKernel(str(func), f"{func} makes a quantized tensor, which fakes don't model")
    statistics.meta_kernels += 1
    kernel = None if func.namespace in _TORCHS_OWN else fake_kernel(func)
    if kernel is None:
        return _ask_meta_kernel(func, func, facts, args, kwargs)
    context = CustomContext(func, _symbols_of_context(mode))
    with context_for_fake_kernels(context), symbolic_kernels(context.env is not None):
        plan = _ask_meta_kernel(func, kernel, facts, args, kwargs)
    return Once(plan) if context.made else plan


_QUANTIZES = frozenset(
    {
        aten.quantize_per_tensor.default, aten.quantize_per_tensor.tensor_qparams, aten.quantize_per_channel.default,
        aten.quantize_per_tensor_dynamic.default,
    }
)  # fmt: skip
_TORCHS_OWN = frozenset({"aten", "prims", "prim"})


def _shape_depends_on_values(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func is aten.index.Tensor:
        return any(type(index) is FakeTensor and index.desc.dtype in (torch.bool, torch.uint8) for index in args[1])
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None and (len(args) < 2 or args[1] is None)
    return True


def _ask_meta_kernel(func: Op, kernel: Callable[..., Any], facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """What `kernel`, which is `func` itself or stands for it, makes of tensors on `meta`."""
    device = common_device(func, args, kwargs)
    tensors = list(tensors_of(args, kwargs))
    metas = _meta_tensors(tensors)
    has_outs = any(is_out for _, _, is_out in facts.writes)

    def to_meta(value: Any) -> Any:
        if type(value) is FakeTensor:
            return metas[id(value)]
        if type(value) is list or type(value) is tuple:
            return type(value)([to_meta(item) for item in value])
        return value

    meta_args = tuple(to_meta(value) for value in args)
    meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
    if meta_kwargs.get("device") is not None or (facts.has_device and not tensors):
        meta_kwargs["device"] = _META
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    if meta_kwargs.get("generator") is not None:
        meta_kwargs["generator"] = None
    try:
        with (
            disable_torch_dispatch(), torch.no_grad(), symbolic_kernels(_is_symbolic(args, kwargs)),
            # that one is resized is said when the program runs
            warnings.catch_warnings(action="ignore") if has_outs else nullcontext(),
        ):  # fmt: skip
            result = kernel(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise NoFakeKernel(str(func), f"{func}: {str(error).splitlines()[0]}") from error
    if has_outs:
        for tensor in tensors:
            after = metas[id(tensor)].size()
            if after != tensor.size():
                raise NoFakeKernel(str(func), f"{func} resizes an out= tensor of {tuple(tensor.size())} to {tuple(after)}")
    storages: dict[int, int] = {}
    for index, tensor in enumerate(tensors):
        storages.setdefault(storage_identity(metas[id(tensor)]), index)
    same = {id(metas[id(tensor)]): index for index, tensor in reversed(list(enumerate(tensors)))}
    fresh: dict[int, int] = {}
    for item in _result_tensors(result):
        identity = storage_identity(item)
        fresh[identity] = fresh.get(identity, 0) + 1
    numbers = {identity: number for number, identity in enumerate(fresh)}

    def plan_of(value: Any) -> Plan:
        if isinstance(value, torch.Tensor):
            index = same.get(id(value))
            if index is not None:
                return SameAs(index)
            where = tensors[0].desc.device if func in _KEEPS_FIRST_DEVICE and tensors else device
            desc = describe_tensor(value, where)
            identity = storage_identity(value)
            if identity in storages:
                return ViewOf(desc, storages[identity])
            return Fresh(desc) if fresh[identity] == 1 else SharedFresh(desc, numbers[identity])
        if isinstance(value, (tuple, list)):
            kind = type(value) if type(value) in (tuple, list) else tuple
            return Nest(tuple(plan_of(item) for item in value), kind)
        return Number(value)

    return plan_of(result)


def _is_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if any(tensor.desc.env is not None for tensor in tensors_of(args, kwargs)):
        return True
    return any(type(leaf) in SYMBOLIC for value in (*args, *kwargs.values()) for leaf in _flat(value))


def _flat(value: Any) -> Any:
    return value if type(value) in (list, tuple) else (value,)


def _result_tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _result_tensors(item)


def _meta_tensors(tensors: list[FakeTensor]) -> dict[int, torch.Tensor]:
    """One meta tensor per fake, by id; those of fakes that alias share a meta storage."""
    nbytes: dict[int, int] = {}
    for tensor in tensors:
        desc = tensor.desc
        needed = extent_of(desc) * desc.dtype.itemsize
        known = nbytes.get(tensor.storage_token.ident)
        nbytes[tensor.storage_token.ident] = needed if known is None or known is needed else torch.sym_max(known, needed)
    metas: dict[int, torch.Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    with disable_torch_dispatch(), torch.no_grad(), _certain(tensors):
        for tensor in tensors:
            if id(tensor) in metas:
                continue
            desc, ident = tensor.desc, tensor.storage_token.ident
            storage = storages.get(ident)
            if storage is None:
                storage = storages[ident] = torch.empty(nbytes[ident], dtype=torch.uint8, device="meta").untyped_storage()
            empty = torch.empty(0, dtype=desc.dtype, device="meta")
            meta = metas[id(tensor)] = empty.set_(storage, desc.offset, desc.size, desc.stride)  # type: ignore[call-overload]
            if desc.bits:
                set_lazy_bits(meta, bool(desc.bits & CONJ), bool(desc.bits & NEG))
    return metas


@contextmanager
def _certain(tensors: list[FakeTensor]) -> Iterator[None]:
    """What torch expects within the block holds: tensors lie in the memory that they have."""
    env = next((tensor.desc.env for tensor in tensors if tensor.desc.env is not None), None)
    with nullcontext() if env is None else env.asked_by(Asker.MEMORY):
        yield


def _note_writes(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for position, name, _ in facts.writes:
        written = args[position] if position < len(args) else kwargs.get(name)
        for fake in written if isinstance(written, (tuple, list)) else (written,):
            if type(fake) is not FakeTensor:
                continue
            fake.storage_token.writes += 1
            if facts.counts_within and not fake.is_inference():
                increment_version(fake)


# --- known values -----------------------------------------------------------------------------------------------------


def _may_be_constant(args: tuple[Any, ...]) -> bool:
    first = args[0]
    if type(first) is FakeTensor:
        return hasattr(first, "_constant") and first.constant is not None
    if (type(first) is list or type(first) is tuple) and first and type(first[0]) is FakeTensor:
        return hasattr(first[0], "_constant")
    return type(first) in (int, float, bool)  # `torch.div(12, 4)`: a number where the operator has a tensor


_KNOWN_FACTORIES = frozenset(
    {
        aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.full.default,
        aten.zeros.default, aten.ones.default, aten.scalar_tensor.default, aten.eye.default,
    }
)  # fmt: skip


def _constants_of(value: Any) -> Any:
    """`value` with fakes replaced by their known values; raises LookupError when one is unknown."""
    if type(value) is FakeTensor:
        known = value.constant
        if known is None:
            raise LookupError
        return known
    if type(value) is list or type(value) is tuple:
        return type(value)([_constants_of(item) for item in value])
    if type(value) in SYMBOLIC:
        raise LookupError
    return value


def _compute_constant(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator on known values, as fakes that know theirs; None when a value is unknown."""
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return None
    tensors = list(tensors_of(args, kwargs))
    if not tensors or any(tensor.desc.device != _CPU for tensor in tensors):
        return None
    with disable_torch_dispatch(), torch.no_grad():
        result = func(*real_args, **real_kwargs)

    def wrap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            fake = make_fake(describe_tensor(value, value.device))
            fake.set_constant(value)
            return fake
        if isinstance(value, (tuple, list)):
            return tuple(wrap(item) for item in value)
        return value

    return wrap(result)


def _known_masks(indices: Any) -> Any:
    """The indices with masks of known value replaced by the numbers that they stand for."""
    found: list[Any] = []
    for item in indices:
        known = item.constant if type(item) is FakeTensor and item.desc.dtype is torch.bool else None
        if known is None or not known.dim():
            found.append(item)
            continue
        with disable_torch_dispatch():
            columns = known.nonzero().unbind(1)
        found += [make_fake(describe_contiguous(column.shape, torch.int64, item.desc.device)) for column in columns]
    return found


def _may_be_known(desc: Descriptor, anywhere: bool = False) -> bool:
    return (anywhere or desc.device == _CPU) and desc.env is None and _numel(desc.size) <= CONSTANT_NUMEL


#: give the very numbers that they get, so that what the CPU makes of known ones is what any device does
_SAME_NUMBERS = frozenset({aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default, aten.view.default})


def _keeps_numbers(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return func in _SAME_NUMBERS and kwargs.get("dtype") in (None, args[0].desc.dtype)


def _carry_constant(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Compute a small operator on known values along with the shapes."""
    outputs = list(tensors_of((out,), None))
    if func is torch.ops.aten.as_strided.default:
        return  # sees memory, which is not that of the known value
    anywhere = _keeps_numbers(func, args, kwargs)
    if not outputs or not all(_may_be_known(item.desc, anywhere) for item in outputs):
        return
    if anywhere:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return
    with disable_torch_dispatch(), torch.no_grad():
        result = list(_result_tensors(func(*real_args, **real_kwargs)))
    if len(result) == len(outputs):
        for fake, value in zip(outputs, result, strict=True):
            fake.set_constant(value)


def _written_constant(func: Op, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What the first argument holds after an operator that writes to it; None where a value is unknown."""
    if [(position, is_out) for position, _, is_out in facts.writes] != [(0, False)] or facts.seeded or facts.inplace_view:
        return None
    if args[0].desc.device != _CPU:
        return None
    try:
        real_args, real_kwargs = _constants_of(args), {name: _constants_of(value) for name, value in kwargs.items()}
    except LookupError:
        return None
    with disable_torch_dispatch(), torch.no_grad():
        written: torch.Tensor = real_args[0].clone()
        func(written, *real_args[1:], **real_kwargs)
    return written


def _numel(size: tuple[int, ...]) -> int:
    count = 1
    for extent in size:
        count *= extent
    return count


# --- operators that are more than metadata in, metadata out ------------------------------------------------------------


def _read_scalar(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Any:
    value = args[0].constant if type(args[0]) is FakeTensor else args[0]
    if value is None:
        env = _symbols_of_context(mode)
        captured = env is not None and (env.options.capture_scalars or (env.replayed and env.options.capture_indices))
        number = unbacked_number(env, args[0]) if env is not None and captured else None
        if number is not None:
            return number
        raise DataDependent(str(func), "reading a number out of a tensor (.item(), int(), float(), bool(), if)")
    with disable_torch_dispatch():
        return value.item()


def _symbols_of_context(mode: FakeMode | None) -> SymbolEnv | None:
    if mode is not None:
        return mode.env
    from fxloom_shapes.context import trace_context

    context = trace_context()
    return None if context is None else context.env


def _assert_scalar(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> None:
    """A check of numbers when the graph runs; its statement was taken as a fact when it was made."""


def _really(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Any:
    """Names a stretch of the trace for a profiler; there are no tensors in it."""
    with disable_torch_dispatch():
        return func(*args, **kwargs)


def _lift_fresh(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> FakeTensor:
    """`torch.tensor(...)` ends here: a real tensor that nothing else knows becomes a fake that knows its value."""
    value = args[0]
    if type(value) is FakeTensor:
        return value
    fake = make_fake(describe_tensor(value, value.device))
    if value.device == _CPU:
        with disable_torch_dispatch():
            fake.set_constant(value.detach().clone())
    return fake


#: what kernels in C++ ask of a tensor whose sizes are symbolic, by way of the dispatcher: no calls of the program
QUESTIONS = frozenset({aten.size.default, aten.stride.default})


def _plain_numbers(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> list[int]:
    """The sizes or strides for a kernel in C++ that only takes plain ones: the call is specialized to those that it has."""
    desc = args[0].desc
    numbers = desc.size if func is aten.size.default else desc.stride
    if any(type(number) is not int and not number.node.has_hint() for number in numbers):
        raise DataDependent(str(func), "an operator that only takes plain sizes, of a tensor with one that only running the program tells")
    return [int(number) for number in numbers]


def _change_metadata(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> FakeTensor:
    """In-place metadata operators: `t_`, `squeeze_`, `set_`, `resize_` ..."""
    target = args[0]
    if type(target) is not FakeTensor:
        args, kwargs = _with_fakes(args, kwargs, func, mode)
        target = args[0]
    if func._schema.name == "aten::set_":
        return _set_storage(func, target, args[1:])
    if func._schema.name in ("aten::resize_", "aten::resize_as_"):
        needed = _numel(tuple(args[1] if func is aten.resize_.default else args[1].desc.size))
        if needed > _numel(target.desc.size):
            raise NoFakeKernel(str(func), "a resize to more elements than the tensor has; the new ones are undefined")
    with disable_torch_dispatch():
        func(*args, **kwargs)
    desc = target.desc
    target.desc = describe(tuple(torch.Tensor.size(target)), target.stride(), desc.dtype, desc.device, target.storage_offset(), desc.bits)
    known = getattr(target, "_constant", None)
    if known is not None:
        target._constant = None
    return target


def _set_storage(func: Op, target: FakeTensor, rest: tuple[Any, ...]) -> FakeTensor:
    if len(rest) != 1 or type(rest[0]) is not FakeTensor or rest[0].desc.dtype != target.desc.dtype:
        raise NoFakeKernel(str(func), "set_ with a storage; only set_(tensor) of the same dtype is modelled")
    source = rest[0]
    if source.desc.bits != target.desc.bits:
        raise NoFakeKernel(str(func), "set_ of a lazily conjugated or negated view")
    try:
        with disable_torch_dispatch():
            aten.as_strided_.default(target, source.desc.size, source.desc.stride, source.desc.offset)
    except RuntimeError as error:  # what C++ knows of a fake's memory is what it was made with
        raise NoFakeKernel(str(func), "set_ of a tensor that is larger than the one it replaces") from error
    target.desc = source.desc
    target.storage_token = source.storage_token
    if source.constant is not None:
        target.set_constant(source.constant)
    elif target.constant is not None:
        target._constant = None
    return target


_HANDLERS: dict[Op, Callable[[Op, tuple[Any, ...], dict[str, Any], FakeMode | None], Any]] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.lift_fresh.default: _lift_fresh,
    aten._assert_scalar.default: _assert_scalar,
    CHECK: _assert_scalar,
    **dict.fromkeys(QUESTIONS, _plain_numbers),
}
for _name in (
    "t_",
    "transpose_",
    "squeeze_",
    "unsqueeze_",
    "as_strided_",
    "set_",
    "resize_",
    "resize_as_",
    "swapdims_",
    "swapaxes_",
    "detach_",
):
    for _overload in getattr(aten, _name).overloads():
        _HANDLERS[getattr(getattr(aten, _name), _overload)] = _change_metadata

for _name in ("_record_function_enter", "_record_function_enter_new", "_record_function_exit"):
    for _overload in getattr(torch.ops.profiler, _name).overloads():
        _HANDLERS[getattr(getattr(torch.ops.profiler, _name), _overload)] = _really

#: operators whose tensors may be on several devices; the result is where the first is
_MIXED_DEVICES = frozenset(
    {
        aten.copy_.default,
        aten.copy.default,
        aten.index.Tensor,
        aten.index_put_.default,
        aten.index_put.default,
        aten._index_put_impl_.default,
    }
)
_KEEPS_FIRST_DEVICE = frozenset({aten.index.Tensor, aten.index_put.default, aten.copy.default})

fake_module._propagate.append(propagate)
