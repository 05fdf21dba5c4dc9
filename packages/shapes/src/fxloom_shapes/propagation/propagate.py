"""Run one operator on fakes: metadata in, metadata out.

In: an overload and its arguments. Out: fakes (or numbers). The answer of an operator is a plan (`plans`). Plans are kept by
overload and the arguments' metadata; where there is none yet, a shape rule is asked, then torch's registered Meta kernel.
Invariant: two outputs or inputs share a storage token exactly when the operator's kernels would share memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from fxloom_ops.custom_operators import fake_kernel
from fxloom_ops.schema import Op, SchemaInfo, decompose, schema_info
from fxloom_shapes._torch_private import context_for_fake_kernels, make_wrapper, set_lazy_bits, symbolic_kernels
from fxloom_shapes.errors import DataDependent, NoFakeKernel
from fxloom_shapes.fake.argument_checks import check_call
from fxloom_shapes.fake.descriptor import CONJ, NEG
from fxloom_shapes.fake.devices import with_requested_device
from fxloom_shapes.fake.plans import Fresh, Nest, Number, Plan, SameAs, SharedFresh, Uncached, ViewOf
from fxloom_shapes.fake.size_checks import check_sizes
from fxloom_shapes.fake.tensor import AmbiguousCopy, FakeStorage, FakeTensor, make_fake, set_dispatcher
from fxloom_shapes.propagation.active_context import symbols_of_context
from fxloom_shapes.propagation.arguments import Key, RealTensor, environment, key_of, tensors_of, with_fakes
from fxloom_shapes.propagation.data_dependent import CustomContext, dynamic_shape
from fxloom_shapes.propagation.known_values import (
    KNOWN_FACTORIES,
    carry_constant,
    compute_constant,
    known_masks,
    may_be_constant,
    written_constant,
)
from fxloom_shapes.propagation.meta_kernels import common_device, run_meta_kernel
from fxloom_shapes.propagation.special_operators import SPECIAL_OPERATORS, Handler
from fxloom_shapes.rules.registry import RULES

if TYPE_CHECKING:
    from fxloom_shapes.propagation.mode import FakeMode

aten = torch.ops.aten
_strided = torch.strided
_inference_mode = torch.is_inference_mode_enabled
#: the metadata cache; sizes in it are plain integers, so it serves every trace context of the process (plans for symbolic
#: ones are kept by their environment)
_plans: dict[Key, Plan] = {}
_PLANS_LIMIT = 50_000


@dataclass(slots=True)
class CacheStatistics:
    """How often the cache answered, a shape rule did, and torch's Meta kernel had to. draws: calls that draw random numbers."""

    hits: int = 0
    rules: int = 0
    meta_kernels: int = 0
    draws: int = 0


statistics = CacheStatistics()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTraits:
    """What `propagate` needs to know of an operator, worked out once. As part of a key it is compared by identity.

    copies: `reshape`, `contiguous` and `to` call it where they can't give a view. views_copy: `reshape` calls it
    on such a copy. known_factory: it makes a tensor whose values follow from its arguments.
    """

    func: Op  # held, so that no other gets its id
    info: SchemaInfo
    handler: Handler | None
    copies: bool
    views_copy: bool
    known_factory: bool


#: by id of the operator: the hash of an operator is Python code
_traits: dict[int, OperatorTraits] = {}


def _traits_of(func: Op) -> OperatorTraits:
    traits = OperatorTraits(
        func, schema_info(func), SPECIAL_OPERATORS.get(func), func in _COPIES, func is aten._unsafe_view.default, func in KNOWN_FACTORIES
    )  # fmt: skip
    return _traits.setdefault(id(func), traits)


def propagate(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, mode: FakeMode | None = None) -> Any:
    """What `func(*args, **kwargs)` returns, as fakes. Written-to fakes keep their identity."""
    traits = _traits.get(id(func)) or _traits_of(func)
    if kwargs:
        kwargs = with_requested_device(kwargs)
    assumptions = _assumptions_before_copy(args) if traits.copies else ()
    if traits.handler is not None:
        return traits.handler(func, args, kwargs or {}, mode)
    try:
        key = key_of(traits, args, kwargs)
    except RealTensor:
        args, kwargs = with_fakes(args, kwargs or {}, func, mode)
        key = key_of(traits, args, kwargs)
    info = traits.info
    plan = _plans.get(key)
    env = None
    if plan is None:
        env = environment(key)
        if env is not None:
            plan = env.plans.get(key)
    if plan is None:
        if info.data_dependent or info.dynamic_shape:
            known = compute_constant(func, args, kwargs or {})
            if known is not None:
                return known
            if func is aten.index.Tensor:
                args = (args[0], known_masks(args[1]), *args[2:])
            asked = symbols_of_context(mode)
            if asked is not None and asked.options.capture_shapes and info.dynamic_shape:
                made = dynamic_shape(asked, func, args, kwargs or {}) if _shape_depends_on_values(func, args, kwargs or {}) else None
                if made is not None:
                    return made
        made_plan = _make_plan(func, info, args, kwargs or {}, mode)
        if made_plan is None:
            return decompose(func, args, kwargs or {})
        check_sizes(func, args, kwargs or {})
        check_call(func, args, kwargs or {})
        plan = made_plan.plan if isinstance(made_plan, Uncached) else made_plan
        if isinstance(made_plan, Uncached):
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
        else:  # the same without a call: this is the traits of nearly all operators
            out = make_wrapper(FakeTensor, desc.size, desc.stride, desc.offset, None, desc.dtype, _strided, desc.wrapper_device)
            out.desc = desc
            out.storage_token = FakeStorage()
            if desc.bits:
                set_lazy_bits(out, bool(desc.bits & CONJ), bool(desc.bits & NEG))
        if assumptions:
            out.storage_token.ambiguous_copy = AmbiguousCopy(args[0].storage_token, assumptions)
        elif traits.views_copy:
            out.storage_token.ambiguous_copy = args[0].storage_token.ambiguous_copy
    elif type(plan) is ViewOf and plan.index == 0 and type(args[0]) is FakeTensor and not _inference_mode():
        out = make_fake(plan.desc, args[0].storage_token)
    else:
        out = _build(plan, args, kwargs)
    if info.writes:
        known = written_constant(func, info, args, kwargs or {}) if args and hasattr(args[0], "_constant") else None
        _note_writes(info, args, kwargs or {})
        if known is not None:
            args[0].set_constant(known)
    if info.seeded:
        statistics.draws += 1
    elif not info.writes and args and (traits.known_factory or may_be_constant(args)):
        carry_constant(func, args, kwargs or {}, out)
    return out


_COPIES = frozenset({aten.clone.default, aten._to_copy.default})


def _assumptions_before_copy(args: tuple[Any, ...]) -> tuple[tuple[Any, bool], ...]:
    """The assumptions about unbacked sizes that led the running function to copy."""
    env = args[0].desc.env if type(args[0]) is FakeTensor else None
    return () if env is None else tuple(env.assumptions)


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


def _make_plan(func: Op, info: SchemaInfo, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FakeMode | None) -> Plan | Uncached | None:
    """None when the operator is defined by others and has to be taken apart."""
    import fxloom_shapes.rules.load_all  # noqa: F401  # fills the table, at first need: it takes 20 ms

    rule = RULES.get(func)
    if rule is not None:
        device = common_device(func, args, kwargs)
        options = {name: value for name, value in kwargs.items() if name != "device"} if "device" in kwargs else kwargs
        plan = rule(device, *args, **options)
        if plan is not None:
            statistics.rules += 1
            return plan
    if info.data_dependent:
        raise DataDependent(str(func))
    if info.dynamic_shape and _shape_depends_on_values(func, args, kwargs):
        raise DataDependent(str(func), f"the shape of {func}'s result depends on the values of a tensor")
    if info.composite:
        return None
    if func in _QUANTIZES:
        raise NoFakeKernel(str(func), f"{func} makes a quantized tensor, which fakes don't model")
    statistics.meta_kernels += 1
    kernel = None if func.namespace in _TORCHS_OWN else fake_kernel(func)
    if kernel is None:
        return run_meta_kernel(func, func, info, args, kwargs)
    context = CustomContext(func, symbols_of_context(mode))
    with context_for_fake_kernels(context), symbolic_kernels(context.env is not None):
        plan = run_meta_kernel(func, kernel, info, args, kwargs)
    return Uncached(plan) if context.made else plan


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


def _note_writes(info: SchemaInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for position, name, _ in info.writes:
        written = args[position] if position < len(args) else kwargs.get(name)
        for fake in written if isinstance(written, (tuple, list)) else (written,):
            if type(fake) is not FakeTensor:
                continue
            fake.storage_token.writes += 1
            if info.counts_within and not fake.is_inference():
                increment_version(fake)


set_dispatcher(propagate)
