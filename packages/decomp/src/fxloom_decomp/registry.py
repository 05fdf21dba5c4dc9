"""The registry of decompositions: one rule per overload, with its type promotion and the sets that it belongs to.

In: rules, functions of tensors written in functional operators, under `@decomposition(aten.silu.default, promote=OPMATH)`.
Out: `REGISTRY`, where the rule's promotion is wrapped around it. A rule may return NotImplemented to decline its arguments.
Invariant: an overload has one rule, and this module knows none of the families that register here (see `tables`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.promotion import Promotion, compute_dtype, result_dtype

Op = torch._ops.OpOverload
Rule = Callable[..., Any]
NONE, OPMATH, INT_TO_FLOAT, ALWAYS_BOOL = Promotion.NONE, Promotion.OPMATH, Promotion.INT_TO_FLOAT, Promotion.ALWAYS_BOOL

#: name of a set -> what its rules leave undecomposed
SETS = {
    "core_aten": "leaves what ATen's own list of core operators holds (`torch.Tag.core`)",
    "inductor": "leaves what inductor-core lowers: elementwise, reductions, views, indexing, GEMM, convolution, attention",
    "prims": "leaves prims (`fxloom_interfaces.prims`) and the calls that are listed beside them; for `decompose` alone",
}
_ATEN_SETS = ("core_aten", "inductor")


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A registered rule. call: the rule with its promotion around it. sets: names of the sets that hold it."""

    op: Op
    call: Rule
    promote: Promotion
    sets: frozenset[str]
    place: str


#: Every rule, once the families are imported; `tables` imports them.
REGISTRY: dict[Op, Decomposition] = {}


def decomposition(
    *ops: Op,
    promote: Promotion = NONE,
    sets: tuple[str, ...] | None = None,
    floats_only: bool = False,
    override: bool = False,
    reason: str = "",
) -> Callable[[Rule], Rule]:
    """Register a rule for `ops`. sets: default `core_aten` and `inductor`, less `core_aten` for operators that are core.

    floats_only: eager has no kernel for integers, so the rule declines them and eager's error comes out. A second rule for
    an overload is an error unless `override` says so, with its `reason`.
    """

    def register(rule: Rule) -> Rule:
        place = place_of(rule)
        call = rule if promote is NONE else _promoted(rule, promote)
        call = _declining_integers(call) if floats_only else call
        for op in ops:
            earlier = REGISTRY.get(op)
            if earlier is not None and not (override and reason):
                raise InternalError("decomp", f"two rules for {op}: {earlier.place} and {place}")
            chosen = (
                sets if sets is not None else tuple(name for name in _ATEN_SETS if name != "core_aten" or torch.Tag.core not in op.tags)
            )
            REGISTRY[op] = Decomposition(op, call, promote, frozenset(chosen), place)
        return rule

    return register


def place_of(rule: Rule) -> str:
    """File and line, for messages."""
    return f"{inspect.getsourcefile(rule)}:{rule.__code__.co_firstlineno}"


def _promoted(rule: Rule, promote: Promotion) -> Rule:
    @functools.wraps(rule)
    def call(*args: Any, **kwargs: Any) -> Any:
        common = common_dtype(args)
        compute, result = compute_dtype(promote, common), result_dtype(promote, common)
        # as eager: to the type that the operands share first, also where a half type goes on to float32 from there
        shared = common if common.is_floating_point else compute
        out = rule(*[_to(_to(value, shared), compute) for value in args], **kwargs)
        if isinstance(out, torch.Tensor):
            return _to(out, result)
        if isinstance(out, tuple):
            return tuple(_to(item, result) for item in out)
        return out

    return call


def _declining_integers(rule: Rule) -> Rule:
    @functools.wraps(rule)
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = args[0].dtype
        return rule(*args, **kwargs) if dtype.is_floating_point or dtype.is_complex else NotImplemented

    return call


def common_dtype(args: tuple[Any, ...]) -> torch.dtype:
    """The type that torch's promotion gives the tensors and numbers among `args`."""
    operands = [value for value in args if isinstance(value, torch.Tensor)]
    # numbers beside tensors never raise the tensors' type
    tensors = [value for value in operands if value.dim()] or operands
    common = tensors[0].dtype
    for value in tensors[1:]:
        common = torch.promote_types(common, value.dtype)
    for value in operands:
        if not value.dim() and _category(value.dtype) > _category(common):
            common = value.dtype
    return common


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def _to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype != dtype:
        return torch.ops.aten._to_copy.default(value, dtype=dtype)
    return value


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` in `dtype`."""
    return _to(value, dtype)  # type: ignore[no-any-return]  # a tensor in, a tensor out


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which formulas of numbers of `dtype` are computed: float32 for half types."""
    return compute_dtype(OPMATH, dtype)


def widen(value: torch.Tensor) -> torch.Tensor:
    """`value`, float32 if it was a half type."""
    return cast(value, wide_dtype(value.dtype))
