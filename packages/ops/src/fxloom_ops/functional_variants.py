"""Functional variants: for an operator that writes to its arguments, the one that returns what would be written.

In: an overload. Out: the functional overload, found by name and by equal arguments; the few that no rule finds stand in a table. For
a library's operator that writes in place a variant is generated, which calls the operator on copies. Also here: operators that write
without declaring it, and those that no graph may hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fxloom_ops.schema import Op, schema_info

aten = torch.ops.aten


@cache
def functional_variant(op: Op) -> Op | None:
    """The functional overload that takes the arguments of `op` less its `out=` ones; None when there is none.

    Its results are: for in-place and `out=` operators the new values, for others the results of `op`, then the new values.
    """
    if op in _NAMED:
        return _NAMED[op]
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    packets = getattr(torch.ops, namespace)
    outs = {position for position, _, is_out in schema_info(op).writes if is_out}
    wanted = [(a.name, str(a.type)) for position, a in enumerate(schema.arguments) if position not in outs]
    for candidate in _candidate_names(name, bool(outs)):
        packet = getattr(packets, candidate, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            variant = getattr(packet, overload)
            if not variant._schema.is_mutable and [(a.name, str(a.type)) for a in variant._schema.arguments] == wanted:
                return variant  # type: ignore[no-any-return]  # an overload
    return None if namespace in ("aten", "prims") or outs else _generated_variant(op)


def own_results(op: Op, variant: Op) -> int:
    """How many results of the variant are the operator's; the others are new values of what it writes to."""
    if variant.namespace == GENERATED:
        return _unaliased_results(op)
    name = op._schema.name.partition("::")[2]
    returns_targets = name.endswith("_") or name.startswith("__i") or any(is_out for _, _, is_out in schema_info(op).writes)
    return 0 if returns_targets else len(op._schema.returns)


def _unaliased_results(op: Op) -> int:
    """How many results of a library's operator are not arguments that it wrote to; these come first in the variant's."""
    return sum(1 for result in op._schema.returns if result.alias_info is None)


#: namespace of generated variants, which live as long as the process
GENERATED = "fxloom_functional"
_generated_names: set[str] = set()
_LIBRARY = torch.library.Library(GENERATED, "DEF")
_ALIAS = re.compile(r"\([a-z0-9]+!?(?: -> [^)]*)?\)")


def _generated_variant(op: Op) -> Op | None:
    """None where results that are arguments stand before others, which `_unaliased_results` can't say."""
    schema = op._schema
    own = _unaliased_results(op)
    if any(result.alias_info is not None for result in schema.returns[:own]):
        return None
    written = [position for position, _, _ in schema_info(op).writes]
    arguments, _, results = str(schema).partition("(")[2].rpartition(" -> ")
    parts = [part for part in _ALIAS.sub("", arguments.rstrip(")")).split(", ") if part != "*"]
    own_types = _ALIAS.sub("", results).strip("()").split(", ")[:own] if own else []
    types = [*own_types, *(parts[position].rpartition(" ")[0] for position in written)]
    name = re.sub(r"\W", "_", f"{schema.name}_{schema.overload_name}" if schema.overload_name else schema.name)
    while name in _generated_names:  # `a::b.c` and `a::b_c`, say
        name += "_"
    _generated_names.add(name)
    seeded = (torch.Tag.nondeterministic_seeded,) if schema_info(op).seeded else ()
    _LIBRARY.define(f"{name}({_ALIAS.sub('', arguments).rstrip(')')}) -> ({', '.join(types)})", tags=seeded)

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        news: list[Any] = []
        for position in written:
            argument = schema.arguments[position]
            value = given[position] if position < len(given) else kwargs.get(argument.name)
            new = [item.clone() for item in value] if isinstance(value, (list, tuple)) else value if value is None else value.clone()
            if position < len(given):
                given[position] = new
            else:
                kwargs[argument.name] = new
            news.append(new)
        made = op(*given, **kwargs)
        results = [] if own == 0 else [made] if len(schema.returns) == 1 else list(made[:own])
        everything = (*results, *news)
        return everything[0] if len(everything) == 1 else everything

    _LIBRARY.impl(name, on_copies, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, GENERATED), name).default  # type: ignore[no-any-return]  # an overload


def _candidate_names(name: str, has_out: bool) -> list[str]:
    if has_out:
        return [name]
    if name.startswith("__i"):  # __iadd__ and its kind
        return ["__" + name[3:]]
    if name.endswith("_"):
        return [name[:-1], name[:-1] + "_functional"]
    return [name + "_functional", name]


_NAMED: dict[Op, Op] = {
    aten._index_put_impl_.default: aten.index_put.default,
    aten.copy_.default: aten.copy.default,
    aten.zero_.default: aten.zero.default,
}

#: operators that write to arguments although their schema doesn't declare it: `rewrite(*args)` gives a functional overload,
#: its arguments, how many results are those of the operator, and the positions that are written, in order; None when
#: nothing is written this time
Rewrite = tuple[Op, tuple[Any, ...], int, tuple[int, ...]]


def _native_batch_norm(*args: Any) -> Rewrite | None:
    running_mean, training = args[3], args[5]
    if not training or running_mean is None:
        return None
    return aten._native_batch_norm_legit_functional.default, args, 3, (3, 4)


UNDECLARED_WRITES: dict[Op, Callable[..., Rewrite | None]] = {aten.native_batch_norm.default: _native_batch_norm}

RANDOM_FROM_: Op = getattr(aten.random_, "from")

#: operators that no graph may hold, and why
UNSUPPORTED: dict[Op, str] = {
    aten.cudnn_batch_norm.default: "writes to its running statistics without saying so",
    aten.miopen_batch_norm.default: "writes to its running statistics without saying so",
    aten.mkldnn_rnn_layer_backward.default: "takes an undefined tensor, which no graph can hold",
}
