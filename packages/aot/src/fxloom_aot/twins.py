"""Functional twins: for an operator that writes to its arguments, the one that returns what would be written.

`twin_of(op)` finds it by name and by equal arguments; the few that no rule finds stand in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fxloom_shapes.operators import Op, facts_of

aten = torch.ops.aten


@cache
def twin_of(op: Op) -> Op | None:
    """The functional overload that takes the arguments of `op` less its `out=` ones; None when there is none.

    Its results are: for in-place and `out=` operators the new values, for others the results of `op`, then the new values.
    """
    if op in _NAMED:
        return _NAMED[op]
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    packets = getattr(torch.ops, namespace)
    outs = {position for position, _, is_out in facts_of(op).writes if is_out}
    wanted = [(a.name, str(a.type)) for position, a in enumerate(schema.arguments) if position not in outs]
    for candidate in _candidate_names(name, bool(outs)):
        packet = getattr(packets, candidate, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            twin = getattr(packet, overload)
            if not twin._schema.is_mutable and [(a.name, str(a.type)) for a in twin._schema.arguments] == wanted:
                return twin  # type: ignore[no-any-return]  # an overload
    return None


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

#: operators that write to arguments although their schema doesn't say so: `rewrite(*args)` gives a functional overload,
#: its arguments, how many results are those of the operator, and the positions that are written, in order; None when
#: nothing is written this time
Rewrite = tuple[Op, tuple[Any, ...], int, tuple[int, ...]]


def _native_batch_norm(*args: Any) -> Rewrite | None:
    running_mean, training = args[3], args[5]
    if not training or running_mean is None:
        return None
    return aten._native_batch_norm_legit_functional.default, args, 3, (3, 4)


LIARS: dict[Op, Callable[..., Rewrite | None]] = {aten.native_batch_norm.default: _native_batch_norm}

RANDOM_FROM_: Op = getattr(aten.random_, "from")

#: operators that no graph may hold, and why
UNSOUND: dict[Op, str] = {
    aten.cudnn_batch_norm.default: "writes to its running statistics without saying so",
    aten.miopen_batch_norm.default: "writes to its running statistics without saying so",
    aten.mkldnn_rnn_layer_backward.default: "takes an undefined tensor, which no graph can hold",
}
