"""How calls of the torch dialect read: one name for the many spellings of a torch function.

In: a node: a call of a torch function, of a Python operator or of a tensor's method. Out: a `Call` of a name with arguments in one
order, for the functions that patterns ask for; None for all others. Invariant: a call that reads as NAME gives what NAME means, and
writes to nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from fxloom_inductor_core.passes.patterns import Call
from fxloom_interfaces import meta, regions

#: name -> functions, operators and methods that mean it, with two operands
_BINARY: dict[str, tuple[Any, ...]] = {
    "matmul": (torch.matmul, operator.matmul, torch.bmm, torch.linalg.matmul, "matmul", "bmm", "__matmul__"),
    "mul": (torch.mul, torch.multiply, operator.mul, "mul", "multiply", "__mul__", "__rmul__"),
    "div": (torch.div, torch.divide, torch.true_divide, operator.truediv, "div", "divide", "true_divide", "__truediv__"),
    "add": (torch.add, operator.add, "add", "__add__", "__radd__"),
    "sub": (torch.sub, torch.subtract, operator.sub, "sub", "subtract", "__sub__"),
}
_CASTS = (
    "to",
    "float",
    "half",
    "bfloat16",
    "double",
    "bool",
    "int",
    "long",
    "type",
    "type_as",
    torch.Tensor.to,
    torch.Tensor.float,
    torch.Tensor.type_as,
)
_VIEWS = frozenset(
    {
        "view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "transpose", "permute", "contiguous", "clone", "flatten",
        "detach", "swapaxes", "swapdims", "movedim", "view_as", "reshape_as", "repeat",
        torch.reshape, torch.unsqueeze, torch.squeeze, torch.transpose, torch.permute, torch.clone, torch.flatten, torch.swapaxes,
        torch.broadcast_to, torch.movedim, torch.detach,
    }
)  # fmt: skip
_FILLED: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.zeros: lambda args, kwargs: 0,
    torch.ones: lambda args, kwargs: 1,
    torch.zeros_like: lambda args, kwargs: 0,
    torch.ones_like: lambda args, kwargs: 1,
    torch.full: lambda args, kwargs: args[1] if len(args) > 1 else kwargs.get("fill_value"),
    torch.full_like: lambda args, kwargs: args[1] if len(args) > 1 else kwargs.get("fill_value"),
    "new_zeros": lambda args, kwargs: 0,
    "new_ones": lambda args, kwargs: 1,
    "new_full": lambda args, kwargs: args[2] if len(args) > 2 else kwargs.get("fill_value"),
}


def _binary(name: str) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Call | None]:
    def read(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = _arguments(args, kwargs, ("input", "other"))
        if given is None or any(
            kwargs.get(other, neutral) != neutral for other, neutral in (("alpha", 1), ("rounding_mode", None), ("out", None))
        ):
            return None
        return Call(name, given)

    return read


def _softmax(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """softmax(x, dim): its dtype is that of the result."""
    if not args and "input" not in kwargs:
        return None
    x = args[0] if args else kwargs["input"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if type(dim) is not int or kwargs.get("out") is not None or not meta.get_fake(node).dim():
        return None
    return Call("softmax", (x, dim % meta.get_fake(node).dim()))


def _dropout(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _arguments(args, kwargs, ("input", "p", "training", "inplace"), (0.5, True, False))
    return None if given is None or given[3] or given[2] is not True else Call("dropout", given[:2])


def _masked_fill(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _arguments(args, kwargs, ("input", "mask", "value"))
    return None if given is None else Call("masked_fill", given)


def _where(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """where(condition, x, y); the method is one of x."""
    if node.op == "call_method" and len(args) == 3:
        args = (args[1], args[0], args[2])
    given = _arguments(args, kwargs, ("condition", "input", "other"))
    return None if given is None else Call("where", given)


def _einsum(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """einsum(equation, a, b), the equation without blanks."""
    if kwargs or not args or not isinstance(args[0], str):
        return None
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    return Call("einsum", (args[0].replace(" ", ""), *operands)) if len(operands) == 2 else None


def _baddbmm(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """baddbmm(bias, a, b, beta, alpha)"""
    given = _arguments(args, kwargs, ("input", "batch1", "batch2"))
    return None if given is None else Call("baddbmm", (*given, kwargs.get("beta", 1), kwargs.get("alpha", 1)))


def _cast(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """cast(x): to the dtype of the result, on the same device."""
    x = args[0] if args else None
    if not isinstance(x, torch.fx.Node) or not _is_tensor(x) or not _is_tensor(node):
        return None
    return Call("cast", (x,)) if meta.get_fake(x).device == meta.get_fake(node).device else None


def _view(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """view(x): the elements of x in other places, maybe several times."""
    return Call("view", (args[0],)) if args and isinstance(args[0], torch.fx.Node) else None


def _getitem(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A view where the index has only slices, None and numbers."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    plain = all(item is None or item is Ellipsis or isinstance(item, (slice, int)) for item in index)
    return Call("view", (args[0],)) if plain and isinstance(args[0], torch.fx.Node) and _is_tensor(args[0]) else None


def _filled(value: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Call | None]:
    def read(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        return Call("full", (value(args, kwargs),))

    return read


def _unary(name: str) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Call | None]:
    def read(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        return Call(name, (args[0],)) if args else None

    return read


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...], defaults: tuple[Any, ...] = ()
) -> tuple[Any, ...] | None:
    """Arguments by position, given by name or left out; None where one without a default is missing."""
    found = list(args[: len(names)])
    missing = object()
    for place, name in enumerate(names[len(found) :], len(found)):
        default = defaults[place - (len(names) - len(defaults))] if place >= len(names) - len(defaults) else missing
        value = kwargs.get(name, default)
        if value is missing:
            return None
        found.append(value)
    return tuple(found)


def _is_tensor(node: torch.fx.Node) -> bool:
    return meta.has_fake(node) and isinstance(meta.get_fake(node), torch.Tensor)


#: function, operator or name of a method -> how a call of it reads
_READERS: dict[Any, Callable[[torch.fx.Node, tuple[Any, ...], dict[str, Any]], Call | None]] = {
    **{target: _binary(name) for name, targets in _BINARY.items() for target in targets},
    **dict.fromkeys((F.softmax, torch.softmax, torch.special.softmax, "softmax"), _softmax),
    **dict.fromkeys((F.dropout, torch.dropout), _dropout),
    **dict.fromkeys((torch.masked_fill, "masked_fill"), _masked_fill),
    **dict.fromkeys((torch.where, "where"), _where),
    **dict.fromkeys((torch.einsum,), _einsum),
    **dict.fromkeys((torch.baddbmm, "baddbmm"), _baddbmm),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(_VIEWS, _view),
    operator.getitem: _getitem,
    **{target: _filled(value) for target, value in _FILLED.items()},
    **dict.fromkeys((torch.triu, torch.tril, "triu", "tril"), _unary("triangle")),
    **dict.fromkeys((torch.logical_not, torch.bitwise_not, operator.invert, "logical_not", "bitwise_not", "__invert__"), _unary("not")),
}


def read_torch(node: torch.fx.Node) -> Call | None:
    """See the module's docstring."""
    if node.op not in ("call_function", "call_method") or not meta.has_fake(node):
        return None
    reader = _READERS.get(node.target)
    return None if reader is None else reader(node, node.args, dict(node.kwargs))


#: `+=` and its like
_WRITING_OPERATORS = frozenset(
    getattr(operator, f"i{name}")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
)


def may_have_effect(node: torch.fx.Node) -> bool:
    """Whether a call may do more than give a result: write to a tensor, change a mode, run code that is not known here."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name in ("__setitem__",)
    if node.op != "call_function" or node.target in regions.MODE_CHANGES or node.target in (operator.setitem, operator.delitem):
        return True
    module, name = getattr(node.target, "__module__", None) or "", getattr(node.target, "__name__", "")
    known = module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins") or isinstance(node.target, torch._ops.OpOverload)
    return (
        not known
        or name.endswith("_")
        or node.target in _WRITING_OPERATORS
        or (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable)
    )


def is_unused(node: torch.fx.Node) -> bool:
    """Whether nobody would miss a call: nothing uses its result, and it does nothing else."""
    return not node.users and node.op != "output" and not may_have_effect(node)


#: writing function, operator or method -> what gives the result that it writes
_PLAIN: dict[Any, Any] = {
    operator.imul: operator.mul, operator.itruediv: operator.truediv, operator.iadd: operator.add, operator.isub: operator.sub,
    **{f"{name}_": name for name in ("mul", "multiply", "div", "divide", "true_divide", "add", "sub", "subtract", "masked_fill")},
}  # fmt: skip
#: calls whose result is memory that nothing else sees
_FRESH = frozenset({"matmul", "mul", "div", "add", "sub", "softmax", "masked_fill", "where", "einsum", "baddbmm"})


def use_plain_calls(graph: torch.fx.Graph, options: object, made_for: dict[torch.fx.Node, torch.fx.Node]) -> int:
    """Edits `graph`: arithmetic that is written over a fresh result becomes a result of its own. How often; `made_for` gets the nodes.

    That is the same where nobody has a view of what was written: those who use it, use it before, or get the new result.
    """
    changes = 0
    for node in list(graph.nodes):
        target = node.args[0] if node.args else None
        if node.target not in _PLAIN or not isinstance(target, torch.fx.Node) or not _is_tensor(target) or not _is_tensor(node):
            continue
        made = read_torch(target)
        if made is None or made.target not in _FRESH or not _keeps_type(node, target):
            continue
        if any(user is not node and (_is_view_or_unknown(user)) for user in target.users):
            continue
        plain = _PLAIN[node.target]
        with graph.inserting_before(node):
            new = graph.create_node(node.op, plain, node.args, dict(node.kwargs))
        meta.set_fake(new, meta.get_fake(node))
        meta.copy_origin(node, new)
        made_for[new] = made_for.get(node, node)
        node.replace_all_uses_with(new)
        target.replace_all_uses_with(new, lambda user: new < user and user is not node)  # noqa: B023  # called at once
        graph.erase_node(node)
        changes += 1
    return changes


def _keeps_type(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    """Whether the plain call gives the dtype and sizes of what is written."""
    fake = meta.get_fake(target)
    others = [meta.get_fake(other) for other in node.all_input_nodes if other is not target and _is_tensor(other)]
    shapes = all(other.dim() <= fake.dim() for other in others)
    return shapes and all(other.dtype in (fake.dtype, torch.bool) or other.dim() == 0 for other in others)


def _is_view_or_unknown(user: torch.fx.Node) -> bool:
    call = read_torch(user)
    return (call is None and user.target not in _PLAIN) or (call is not None and call.target in ("view", "cast"))


#: calls that are read for nothing else here, and whose result is not memory of an argument
_OTHERS = frozenset(
    {
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_, operator.neg,
        torch.all, torch.any, "all", "any", "eq", "ne", "lt", "le", "gt", "ge", "sum", "cumsum", torch.diff, torch.log,
        F.scaled_dot_product_attention,
    }
)  # fmt: skip


def may_be_written(node: torch.fx.Node) -> bool:
    """Whether some call may write to the memory of `node`: calls that are not known may, or may make views that are written."""
    for user in node.users:
        if user.op == "output" or user.target in _OTHERS:
            continue
        call = read_torch(user)
        if call is None or (call.target in ("view", "cast") and may_be_written(user)):
            return True
    return False
