"""Lowering of a graph: the walk over its nodes.

In: an fx graph in the aten dialect with fakes on its nodes. Out: a `LoweredGraph` of loops and calls in program order, with its
inputs, outputs and the buffers between them. A node's rule comes from the families of this subpackage; what has none, or whose rule
declines, runs its eager kernel. Invariant: outputs have the strides of the graph's fakes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves, tree_map

from fxloom_inductor_core.ir.cost import BodyCost
from fxloom_inductor_core.ir.graph import NUMBER_COPY, LoweredGraph, Operand, with_strides_of
from fxloom_inductor_core.ir.layouts import as_expr, fake_order, layout_of, order_or_plain, same_strides, stride_expr
from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.ir.tensors import Tensor, View
from fxloom_inductor_core.lowering.context import LoweringContext
from fxloom_inductor_core.lowering.exact import is_exact
from fxloom_inductor_core.lowering.load_all import rules
from fxloom_inductor_core.lowering.loops import TooManyArguments
from fxloom_inductor_core.lowering.registry import Rule, library_call
from fxloom_inductor_core.lowering.sizes import SIZE_OPS
from fxloom_inductor_core.options import InductorOptions
from fxloom_interfaces import meta
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.dtypes import dtype_info, dtype_name
from fxloom_interfaces.errors import OPERATOR_ERRORS, GraphRejected, InternalError, refused
from fxloom_interfaces.expr import Expr, print_expr
from fxloom_interfaces.loop_ir import Layout
from fxloom_interfaces.program import ProgramInput, SizeRef, TorchRef
from fxloom_ops.value_checks import may_raise
from fxloom_shapes.expressions.floats import atom_text, opaque_atoms
from fxloom_shapes.expressions.sympy_form import opaque_name
from fxloom_shapes.symbols.messages import value_failure_message

_COMPLEX = "complex numbers, which kernels don't have"
#: Operators whose rule takes complex numbers, beside views: library calls.
_COMPLEX_RULES = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default})


def lower(
    gm: torch.fx.GraphModule,
    codegens: Mapping[str, Codegen],
    options: InductorOptions,
    *,
    keep_ir: bool = False,
    trains: bool = False,
) -> LoweredGraph:
    """`gm` as loops and calls. keep_ir: keep the loops' bodies too, for printing. trains: values are kept for a backward graph."""
    return _GraphLowering(LoweringContext(codegens, options, keep_ir, trains), rules()).run(gm)


class _GraphLowering:
    """State of one walk. cx: what rules see of it."""

    def __init__(self, cx: LoweringContext, rules: Mapping[Any, Rule]) -> None:
        self.cx = cx
        self.rules = rules
        self._uses: dict[torch.fx.Node, int] = {}
        self._unsupported: dict[torch.fx.Node, str] = {}  # node -> what no kernel can hold of its results
        self._float_names: dict[str, str] = {}  # symbols of floats -> names of the inputs that hold them
        self._on_several_devices = False  # there are tensors on several devices
        self._scalar_copies: dict[tuple[Operand, str], Tensor] = {}
        self._declined_for_arguments: dict[torch.fx.Node, None] = {}  # nodes whose loop has too many arguments

    def run(self, gm: torch.fx.GraphModule) -> LoweredGraph:
        """Lower every node in order."""
        nodes = list(gm.graph.nodes)
        for node in reversed(nodes):
            self._uses[node] = self._count_uses(node)
        fakes = tree_leaves([meta.get_fake(node) for node in nodes if meta.has_fake(node)])
        self._on_several_devices = len({fake.device for fake in fakes if isinstance(fake, torch.Tensor)}) > 1
        for node in nodes:
            self.cx.node = node
            if isinstance(node.target, torch._ops.OpOverload):
                self.cx.out.op_names[node.name] = node.target._opname.strip("_")
            if node.op != "placeholder" and meta.has_fake(node):
                self._bind_opaque_sizes(meta.get_fake(node))
            match node.op:
                case "placeholder":
                    self.cx.env[node] = self._input(node)
                case "get_attr":
                    self.cx.env[node] = self._constant(node, _attribute(gm, str(node.target)))
                case "call_function":
                    try:
                        self._lower(node)
                    except OPERATOR_ERRORS as error:
                        raise refused(node, error) from error
                case "output":
                    self._outputs(node)
                case _:
                    raise InternalError("inductor.lower", f"unexpected {node.op} in an aten graph", node=str(node.format_node()))
        return self.cx.out

    def _lower(self, node: torch.fx.Node) -> None:
        if not self._uses[node] and isinstance(node.target, torch._ops.OpOverload) and may_raise(node.target, meta.get_fake(node)):
            self.cx.eager(node, library=True)  # for what it raises: no kernel would be made of it
        else:
            self.cx.env[node] = self._call(node)

    def _count_uses(self, node: torch.fx.Node) -> int:
        """How often the node's value is read, seen through views."""
        count = 0
        for user in node.users:
            if _is_view(user):
                count += self._uses[user]
            else:
                count += sum(1 for a in user.all_input_nodes if a is node) if user.op != "output" else 1
        return count

    def _input(self, node: torch.fx.Node) -> Any:
        fake = meta.get_fake(node)
        name = f"arg{len(self.cx.out.inputs)}"
        if not isinstance(fake, torch.Tensor):
            self.cx.out.inputs.append(ProgramInput(name))
            if isinstance(fake, (int, float, bool)) and not isinstance(fake, (torch.SymInt, torch.SymFloat)):
                return fake
            if isinstance(fake, torch.SymFloat):
                self._float_names[str(fake.node.expr)] = name
                return Float(name)
            expr = as_expr(fake)
            self._bind(expr, name, None)
            self._check_input(fake, name, None)
            return expr
        layout = layout_of(fake)
        self.cx.out.inputs.append(ProgramInput(name, layout.device, layout.dtype, layout.size, layout.stride, meta.is_static_address(node)))
        for dim, extent in enumerate(layout.size):
            self._bind(extent, name, dim)
            self._check_input(fake.size(dim), name, dim)
        self.cx.out.layouts[name] = layout
        return Tensor(layout.size, layout.dtype, layout.device, buffer=name, layout=layout, cost=BodyCost(reads=frozenset([name])))

    def _bind(self, expr: Expr, name: str, dim: int | None) -> None:
        if not isinstance(expr, int) and expr.is_Symbol:
            self.cx.out.sizes.setdefault(expr.name, (name, dim))

    def _check_input(self, given: Any, name: str, dim: int | None) -> None:
        """Raise when the program runs, unless an input's number that no guard looks at is what later code takes it for."""
        if not isinstance(given, torch.SymInt):
            return
        env, raw, expr = given.node.env, str(given.node.poly), as_expr(given)
        symbol = env.symbols.get(raw)
        if symbol is None or symbol.hint is not None or str(expr) == raw or raw in self.cx.out.sizes:
            return
        self.cx.out.sizes[raw] = (name, dim)
        text = print_expr(expr)
        self.cx.check(f"{raw} == {text}", value_failure_message(env, raw) or f"{symbol.sources[0].name} is not {text}, as was asserted")

    def _constant(self, node: torch.fx.Node, value: Any) -> Tensor:
        if not isinstance(value, torch.Tensor):
            raise GraphRejected(node, f"constant of type {type(value).__name__}")
        return self.cx.constant_tensor(value)

    def _call(self, node: torch.fx.Node) -> Any:
        args = torch.fx.map_arg(node.args, self._value)
        kwargs = torch.fx.map_arg(node.kwargs, self._value)
        target = node.target
        if target is operator.getitem:
            values: Any = args
            return values[0][values[1]]
        if not isinstance(target, torch._ops.OpOverload):
            return self._size_arithmetic(node, args)
        rule = self.rules.get(target)
        if rule is None and not target._schema.returns:
            return self.cx.effect(node)
        if self.cx.options.numerics == "exact" and not _is_view(node) and not is_exact(node):
            result = self.cx.eager(node, library=True)
            self._choose_storage(node, result)
            return result
        device = self._device_if_mixed(node, (args, kwargs)) if self._on_several_devices else None
        if device is not None:
            args, kwargs = tree_map(lambda value: self._on_device(value, device), (args, kwargs))
            if self._device_if_mixed(node, (args, kwargs)) is not None:
                rule = None  # indices on the CPU, say
        unsupported = "" if _is_view(node) else self._unsupported_dtype(node)
        if unsupported and target not in (_COMPLEX_RULES if unsupported == _COMPLEX else ()) and rule is not library_call:
            rule = None
        result = NotImplemented if rule is None else self._apply(rule, args, kwargs)
        if result is NotImplemented:
            reason = "arguments on several devices" if device is not None else "the lowering declines these arguments"
            reason = "more arguments than a kernel of this device takes" if node in self._declined_for_arguments else reason
            result = self.cx.fallback(node, unsupported or ("no lowering" if self.rules.get(target) is None else reason))
        self._choose_storage(node, result)
        return result

    def _apply(self, rule: Rule, args: Any, kwargs: Any) -> Any:
        """What the rule makes of the arguments, stored first where its loop would take too many buffers; NotImplemented where it
        does so even then. What it made before it failed is read by nobody, and goes when kernels are made."""
        try:
            return rule(self.cx, *args, **kwargs)
        except TooManyArguments:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, (Tensor, View)) and value.cost.reads:
                    self.cx.realize(value)
        try:
            return rule(self.cx, *args, **kwargs)
        except TooManyArguments:
            self._declined_for_arguments[self.cx.current] = None
            return NotImplemented

    def _value(self, node: torch.fx.Node) -> Any:
        return self.cx.env[node]

    def _size_arithmetic(self, node: torch.fx.Node, args: Sequence[Any]) -> Any:
        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if isinstance(fake, torch.SymInt) and opaque_atoms(fake.node.poly):
            return as_expr(fake)
        rule = SIZE_OPS.get(node.target)
        if rule is None:
            raise GraphRejected(node, f"no lowering for {node.target} on sizes")
        return rule(*args)

    def _bind_opaque_sizes(self, fake: Any) -> None:
        """Have the program work out the numbers in the sizes of a result that kernels can't (rounded floats, bits)."""
        for leaf in fake if isinstance(fake, (tuple, list)) else (fake,):
            numbers = (*leaf.size(), *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
            for number in numbers:
                if not isinstance(number, torch.SymInt):
                    continue
                for atom in opaque_atoms(number.node.env.solver.simplify(number.node.poly)):
                    name = opaque_name(atom)
                    if not self.cx.is_bound(name):
                        self.cx.number("int", (TorchRef(atom_text(atom, self._float_names)),), name)

    def _unsupported_dtype(self, node: torch.fx.Node) -> str:
        """What no kernel can hold of the tensors among the node's arguments and results, in words; empty where there is nothing."""
        found = ""
        for part in (node, *node.all_input_nodes):
            if part not in self._unsupported:
                self._unsupported[part] = self._unsupported_in(meta.get_fake(part)) if meta.has_fake(part) else ""
            if self._unsupported[part] not in ("", _COMPLEX):
                return self._unsupported[part]
            found = found or self._unsupported[part]
        return found

    def _unsupported_in(self, nest: Any) -> str:
        found = ""
        for fake in tree_leaves(nest):
            if not isinstance(fake, torch.Tensor):
                continue
            name, device = dtype_name(fake.dtype), str(fake.device)
            if self.cx.in_kernels(name, device):
                continue
            if not fake.dtype.is_complex:
                return f"{name} on {device}, which kernels don't have"
            found = _COMPLEX
        return found

    def _device_if_mixed(self, node: torch.fx.Node, arguments: Any) -> str | None:
        """The device of the node's result, when it is one tensor and some argument lies elsewhere."""
        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if not isinstance(fake, torch.Tensor):
            return None
        device = str(fake.device)
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, (Tensor, View))]
        return device if any(tensor.device != device for tensor in tensors) else None

    def _on_device(self, value: Any, device: str) -> Any:
        """A tensor without axes copied to the device of the others, where eager reads it as a number; others as they are."""
        if not isinstance(value, (Tensor, View)) or value.device == device or value.size != ():
            return value
        if value.base.body is not None and not value.cost.reads:  # a constant is computed where it is used
            return self.cx.compute((), value.dtype, device, value.load, ops=0)
        operand = self.cx.operand(value)
        key = (operand, device)
        if key not in self._scalar_copies:
            layout = Layout(device, value.dtype, (), ())
            args = (operand, TorchRef(f"torch.device({device!r})"))
            (self._scalar_copies[key],) = self.cx.library(NUMBER_COPY, args, [layout], out=False, op="aten._to_copy")
            self.cx.moved_scalars.add(str(self._scalar_copies[key].buffer))
        return self._scalar_copies[key]

    def _choose_storage(self, node: torch.fx.Node, result: Any) -> None:
        """Give a new tensor its layout preference, and store it when recomputing it costs more."""
        if not isinstance(result, Tensor) or result.is_stored:
            return
        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if result.order is None and isinstance(fake, torch.Tensor):
            order = fake_order(fake)
            if order is not None and len(order) == len(result.size):
                result.order = order
        cost = result.cost
        if (
            (self._uses[node] > 1 and (cost.heavy or self.cx.is_dear(result, self._uses[node])))
            or cost.ops > self.cx.options.inline_ops
            or len(cost.reads) > self.cx.options.inline_reads
        ):
            self._store(node, result)

    def _store(self, node: torch.fx.Node, tensor: Tensor) -> None:
        """Store a tensor; where it is one of a narrower type made wide, store that one."""
        narrow = tensor.inputs[0] if node.target is torch.ops.aten._to_copy.default and len(tensor.inputs) == 1 else None
        nbytes, most = (dtype_info(value.dtype).nbytes for value in (narrow or tensor, tensor))
        if not isinstance(narrow, Tensor) or narrow.size != tensor.size or nbytes >= most:
            self.cx.realize(tensor)
            return
        narrow.order = narrow.order or tensor.order
        self.cx.realize(narrow)
        tensor.cost = BodyCost(1, False, frozenset([str(narrow.buffer)]))

    def _outputs(self, node: torch.fx.Node) -> None:
        values = node.args[0]
        if not isinstance(values, (list, tuple)):
            values = (values,)
        for value in values:
            self.cx.out.outputs.append(self._output(value))

    def _output(self, value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        lowered = self.cx.env[value]
        if not isinstance(lowered, (Tensor, View)):
            if isinstance(lowered, Float):
                return TorchRef(lowered.text)
            return lowered if isinstance(lowered, (bool, float)) or lowered is None else SizeRef(lowered)
        fake = meta.get_fake(value)
        strides = tuple(stride_expr(s) for s in fake.stride())
        if isinstance(lowered, View) and lowered.base.body is not None and self._uses[value] == 1:
            lowered = self.cx.copy_of(lowered)  # nobody else needs the base
        order = order_or_plain(fake)
        if lowered.base.body is not None:
            self.cx.realize(lowered, order if isinstance(lowered, Tensor) else None)
        result = self.cx.operand(lowered, lambda layout: same_strides(layout, strides), order)
        if not same_strides(result.layout, strides):
            result = self.cx.stored_with_strides(lowered, strides)
        return with_strides_of(result, fake)


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _is_view(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload) and _returns_view(node.target)


@cache
def _returns_view(op: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
