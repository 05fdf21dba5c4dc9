"""Tensor-scalar overloads of operators that take plain floats: the same operators with `Scalar` parameters.

torch's dispatcher hands a `float` on as a plain number, so that a graph with such a call would be valid for one number only. In: an
overload, `aten::cdist(Tensor x1, Tensor x2, float p=2., ...)`, of torch's or of a library's. Out: `fxloom::aten_cdist`, with
`Scalar p`, which stays symbolic while it is traced and calls the very overload when it runs: what that makes of single numbers
(0, 1, infinity) it decides then. Invariant: sizes, strides and dtypes of results don't depend on the numbers; a library's fake
kernel gets the symbolic numbers themselves, and so guards on what it needs to know.
The derivative of one of torch's runs the operator once more, that of a library's is the library's. Not supported
(`scalar_overload` gives None): random operators that are differentiated, in-place ones of differentiated tensors, floats in lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fxloom_ops._torch_private import custom_operator, fake_kernel, within_autograd

Op = torch._ops.OpOverload

#: overloads of torch's operators are pure like these; those of libraries' operators may do what only the library knows
_OWN = torch.library.Library("fxloom", "FRAGMENT")
_OTHERS = torch.library.Library("fxloom_scalar_overloads", "FRAGMENT")
_DEFINED: dict[Op, Op] = {}
#: int parameters that leave sizes alone, by overload
_INTS: dict[str, frozenset[str]] = {
    "aten::round.decimals": frozenset({"decimals"}), "aten::round_.decimals": frozenset({"decimals"}),
    "aten::special_round": frozenset({"decimals"}), "aten::polygamma": frozenset({"n"}), "aten::special_polygamma": frozenset({"n"}),
}  # fmt: skip
#: give back their argument itself for some numbers, which no schema says
_MAY_RETURN_INPUT = frozenset({"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"})
#: write into running statistics, which no schema says either
_UNDECLARED_WRITES = frozenset({
    "aten::batch_norm", "aten::instance_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts", "aten::_no_grad_embedding_renorm_",
})  # fmt: skip
_SYMBOLIC = (torch.SymInt, torch.SymFloat)


def scalar_overload(op: Op, differentiated: bool) -> Op | None:
    """The overload with `Scalar` for `float`; None where there is none. differentiated: some tensor of the call requires a gradient."""
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if not _is_fit(op) or differentiated and (seeded or op._schema.is_mutable):
        return None
    if op.namespace != "aten":
        if fake_kernel(op) is None or differentiated and _formula(op) is None:
            return None
    found = _DEFINED.get(op)
    if found is None:
        found = _DEFINED[op] = _define(op)
    return found


def takes_scalar_int(op: Any) -> bool:
    """True for an overload with an int that no size depends on; its scalar overload takes that as a number known at run time."""
    return isinstance(op, Op) and _full_name(op) in _INTS


def original(name: str) -> Op | None:
    """The overload of torch's that `fxloom::name` is the scalar overload of."""
    return next((op for op, made in _DEFINED.items() if made._schema.name == f"fxloom::{name}"), None)


def accepts(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an overload takes these arguments, the symbolic numbers among them for plain ones."""
    schema = op._schema.arguments
    positional = [argument for argument in schema if not argument.kwarg_only]
    names = {argument.name for argument in schema}
    if len(args) > len(positional) or not kwargs.keys() <= names or any(a.name in kwargs for a in positional[: len(args)]):
        return False
    given = {argument.name: value for argument, value in zip(positional, args, strict=False)} | kwargs
    if any(argument.name not in given and not argument.has_default_value() for argument in schema):
        return False
    numbers = _INTS.get(_full_name(op), frozenset())
    return all(_fits(str(argument.type), argument.name in numbers, given[argument.name]) for argument in schema if argument.name in given)


def _fits(kind: str, may_change: bool, value: Any) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(kind[len("Optional[") : -1], may_change, value)
    if kind == "Tensor":
        return isinstance(value, Tensor)
    if kind.startswith(("List[", "Tuple[")):
        return isinstance(value, (list, tuple)) and not any(isinstance(item, torch.SymFloat) for item in value)
    if kind == "float":
        return isinstance(value, (int, float, *_SYMBOLIC)) and not isinstance(value, bool)
    if kind in ("Scalar", "number"):
        return isinstance(value, (bool, int, float, complex, *_SYMBOLIC))
    if kind == "int":
        return isinstance(value, (int, torch.SymInt)) if may_change or type(value) is not torch.SymInt else True
    return not isinstance(value, (Tensor, torch.SymFloat))


def _full_name(op: Op) -> str:
    return op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def _is_fit(op: Op) -> bool:
    arguments = op._schema.arguments
    has_tensor = any("Tensor" in str(argument.type) for argument in arguments)
    gives_tensors = all(str(returned.type) == "Tensor" for returned in op._schema.returns)
    aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    writes_out = any(argument.is_out for argument in arguments)
    lists = any(argument.alias_info is not None and str(argument.type) != "Tensor" for argument in arguments)
    unsaid = op._schema.name in _MAY_RETURN_INPUT or op._schema.name in _UNDECLARED_WRITES
    return has_tensor and gives_tensors and not (aliases or writes_out or lists or unsaid)


def _define(op: Op) -> Op:
    library = _OWN if op.namespace == "aten" else _OTHERS
    name = re.sub(r"\W", "_", f"{op.namespace}_{_full_name(op).partition('::')[2]}")
    text = str(op._schema)
    signature = re.sub(r"\bfloat(\??) (?=\w)", r"Scalar\1 ", text[text.index("(") :])
    for changing in _INTS.get(_full_name(op), ()):
        signature = re.sub(rf"\bint {changing}\b", f"Scalar {changing}", signature)
    tags = [tag for tag in op.tags if tag is not torch.Tag.pt2_compliant_tag and tag is not torch.Tag.core]
    library.define(name + signature, tags=tags)
    library.impl(name, _kernel(op), "CompositeExplicitAutograd")
    qualified = f"{library.ns}::{name}"
    torch.library.register_fake(qualified, _fake(op), lib=library)
    if not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags:
        _differentiate(op, library, name, signature)
    return getattr(getattr(torch.ops, library.ns), name).default  # type: ignore[no-any-return]  # an overload


def _hint_of(value: Any) -> Any:
    """The hint of a symbolic number, which leaves no guard; for an unbacked one a number that most operators accept.

    Only metadata is computed with it, which does not depend on it; for an operator that refuses it the number is specialized.
    """
    if not isinstance(value, _SYMBOLIC):
        return value
    hint = value.node.hint
    if hint is None:
        return 0.5 if isinstance(value, torch.SymFloat) else 1
    return hint


def _converted(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """With plain numbers where the overload has them."""
    kinds = {argument.name: str(argument.type) for argument in op._schema.arguments}
    names = list(kinds)

    def one(name: str, value: Any) -> Any:
        value = _hint_of(value)
        return float(value) if "float" in kinds[name] and type(value) is int else value

    return [one(name, value) for name, value in zip(names, args, strict=False)], {name: one(name, v) for name, v in kwargs.items()}


def _unaliased(result: Any, given: Any) -> Any:
    """Copy results that share an argument's memory: the schema of the overload does not allow that they do."""
    storages = {tensor.untyped_storage()._cdata for tensor in pytree.tree_leaves(given) if isinstance(tensor, Tensor)}
    return pytree.tree_map_only(Tensor, lambda made: made.clone() if made.untyped_storage()._cdata in storages else made, result)


def _kernel(op: Op) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        plain, keywords = _converted(op, args, kwargs)
        result = op(*plain, **keywords)
        return result if op._schema.is_mutable else _unaliased(result, (plain, keywords))

    return kernel


def _fake(op: Op) -> Callable[..., Any]:
    if op.namespace != "aten":
        return fake_kernel(op)  # type: ignore[return-value]  # `scalar_overload` has looked
    return _kernel(op)


# --- derivatives -------------------------------------------------------------------------------------------------------


def _formula(op: Op) -> tuple[Callable[..., Any], Callable[..., Any] | None] | None:
    """(backward, setup_context) of a library's operator."""
    definition = custom_operator(op)
    return None if definition is None or definition[0] is None else definition  # type: ignore[return-value]  # has a backward


def _differentiate(op: Op, library: torch.library.Library, name: str, signature: str) -> None:
    qualified = f"{library.ns}::{name}"
    if op.namespace != "aten":
        formula = _formula(op)
        if formula is not None:
            torch.library.register_autograd(qualified, formula[0], setup_context=formula[1], lib=library)
        return
    arguments = signature[1 : signature.rindex(") ->")]
    library.define(f"{name}_backward(Tensor?[] gradients, int[] places, {arguments}) -> Tensor[]")

    def gradients(grads: Sequence[Tensor | None], places: Sequence[int], *args: Any, **kwargs: Any) -> list[Tensor]:
        """By the tensors at `places`: of class weights and their kind torch has no derivative."""
        given, spec = pytree.tree_flatten(_converted(op, args, kwargs))
        with within_autograd(), torch.enable_grad():
            leaves = [given[place].detach().requires_grad_() for place in places]
            for place, leaf in zip(places, leaves, strict=True):
                given[place] = leaf
            plain, keywords = pytree.tree_unflatten(given, spec)
            made = op(*plain, **keywords)
            pairs = [(y, g) for y, g in zip(_listed(made), grads, strict=True) if g is not None and y.requires_grad]
            ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
            found = torch.autograd.grad(ys, leaves, gs, allow_unused=True) if pairs else [None] * len(leaves)
        return [torch.zeros_like(leaf) if grad is None else grad.contiguous() for grad, leaf in zip(found, leaves, strict=True)]

    def sizes(grads: Sequence[Tensor | None], places: Sequence[int], *args: Any, **kwargs: Any) -> list[Tensor]:
        given = pytree.tree_leaves((list(args), kwargs))
        return [given[place].new_empty(given[place].shape) for place in places]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any] | None = None) -> None:
        given, ctx.spec = pytree.tree_flatten((list(inputs), keyword_only_inputs or {}))
        ctx.save_for_backward(*[value for value in given if isinstance(value, Tensor)])
        ctx.others = [None if isinstance(value, Tensor) else (value,) for value in given]
        ctx.places = [place for place, value in enumerate(given) if isinstance(value, Tensor) and value.requires_grad]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        given = [next(saved) if other is None else other[0] for other in ctx.others]
        args, kwargs = pytree.tree_unflatten(given, ctx.spec)
        operator = getattr(getattr(torch.ops, library.ns), f"{name}_backward").default
        found = dict(zip(ctx.places, operator(list(grads), ctx.places, *args, **kwargs), strict=True))
        whole, _ = pytree.tree_unflatten([found.get(place) for place in range(len(given))], ctx.spec)
        return tuple(None if _is_all_none(grads) else grads for grads in whole)

    def twice(ctx: Any, gradients: Any) -> Any:
        raise RuntimeError(f"the derivative of {op} with a number that changes can't be differentiated again; fxloom.disable the call")

    has_keywords = any(argument.kwarg_only for argument in op._schema.arguments)

    def save_all(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        save(ctx, inputs, output, keyword_only_inputs)

    def save_positional(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        save(ctx, inputs, output)

    library.impl(f"{name}_backward", gradients, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{qualified}_backward", sizes, lib=library)
    torch.library.register_autograd(qualified, backward, setup_context=save_all if has_keywords else save_positional, lib=library)
    torch.library.register_autograd(f"{qualified}_backward", twice, lib=library)


def _is_all_none(grads: Any) -> bool:
    return all(grad is None for grad in pytree.tree_leaves(grads))


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]
