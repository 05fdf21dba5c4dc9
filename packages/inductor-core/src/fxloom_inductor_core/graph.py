"""Lowering of an aten graph: in comes an fx graph in the aten dialect with fakes on its nodes, out come `LoweredGraph`s:
loops (traced bodies) and library calls in program order, the buffers they define, inputs and outputs.

One `Lowering` per graph. Rules (package `lowering`) get it as their first argument and use its helpers: `pointwise`,
`realize`, `operand`, `library`. What has no rule runs its eager kernel (`fallback`), counted and named.
Invariant: every stored intermediate is dense; outputs have the strides of the graph's fakes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sympy
import torch
import torch.fx
from torch.utils._pytree import tree_leaves, tree_map

from fxloom_inductor_core.cost import BodyCost
from fxloom_inductor_core.lowering.registry import library_call
from fxloom_inductor_core.numbers import Float
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.tensors import (
    AnyTensor,
    Index,
    Tensor,
    View,
    contiguous_strides,
    dim_order,
    flat_index,
    strides_in_order,
)
from fxloom_inductor_core.trace import Loop, Recorder, drop_dead, new_recorder
from fxloom_interfaces import meta
from fxloom_interfaces.codegen import Capabilities, Codegen
from fxloom_interfaces.dtypes import dtype_name
from fxloom_interfaces.errors import OPERATOR_ERRORS, GraphRejected, InternalError, refused
from fxloom_interfaces.expr import Expr, Max, free_symbols, normalize, print_expr, symbol
from fxloom_interfaces.loop_ir import Body, Buffer, Extern, Layout, Pointwise, Reduction
from fxloom_interfaces.loop_ir import Node as LoopNode
from fxloom_interfaces.ops import ReductionKind
from fxloom_interfaces.philox import draws_numbers
from fxloom_interfaces.program import ProgramInput, SizeRef, TorchRef
from fxloom_interfaces.value_checks import may_raise
from fxloom_shapes.printed import opaque_name
from fxloom_shapes.reals import atom_text, opaque_atoms
from fxloom_shapes.size_nodes import Symbolic, symbols_made

Rule: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operand:
    """A stored tensor as an argument of a call: a buffer seen with a layout."""

    buffer: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A call of a library or eager kernel, in program order.

    writes: buffers allocated by the program and filled by the call. results: names of what it returns (None: not used).
    aliases: results may share memory with operands. binds: (symbol, result, dim) of sizes that only the results tell; where the
    result is a number, its name is the symbol. check: of numbers; raises where something does not hold. effect: called for what
    it does (raise, print), so that it is never dropped and all such calls stay in the program's order.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    writes: tuple[str, ...]
    results: tuple[str | None, ...]
    unpack: bool
    library: bool
    op: str
    device: str
    origins: tuple[str, ...] = ()
    aliases: bool = False
    binds: tuple[tuple[str, str, int], ...] = ()
    check: bool = False
    effect: bool = False

    def operands(self) -> list[Operand]:
        """All tensors among the arguments."""
        return [leaf for leaf in _leaves((self.args, tuple(v for _, v in self.kwargs))) if isinstance(leaf, Operand)]

    def reads(self) -> list[str]:
        return [o.buffer for o in self.operands() if o.buffer not in self.writes]

    def symbols(self, layouts: Mapping[str, Layout]) -> list[str]:
        """Names of the numbers that the call takes: in its arguments, and for the memory that it fills."""
        found: dict[str, None] = {}
        for leaf in _leaves((self.args, tuple(v for _, v in self.kwargs))):
            if isinstance(leaf, TorchRef):
                found.update(dict.fromkeys(_NAME.findall(leaf.text)))
            elif isinstance(leaf, Operand):
                found.update(_symbols_of((*leaf.layout.size, *leaf.layout.stride, leaf.layout.offset)))
            else:
                found.update(_symbols_of((leaf.expr if isinstance(leaf, SizeRef) else leaf,)))
        for name in self.writes:
            found.update(_symbols_of((*layouts[name].size, *layouts[name].stride)))
        return list(found)


_NAME = re.compile(r"\b[a-z]\d+\b")


def _symbols_of(exprs: Sequence[Any]) -> dict[str, None]:
    return {s.name: None for e in exprs if isinstance(e, sympy.Basic) for s in sorted(e.free_symbols, key=str)}


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


Work: TypeAlias = Loop | ExternCall


@dataclass(slots=True)
class LoweredGraph:
    """Loops and calls in program order. layouts: of every buffer; inputs come first. outputs: Operands, SizeRefs or None.

    sizes: symbol -> (input, dim) that it is read from. templates: name -> (device, kind, parameters) of the plugins' own
    kernels that are called. op_names: graph node -> name of its operator, for kernel names. late: symbols that calls make.
    """

    inputs: list[ProgramInput] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    nodes: list[LoopNode] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    sizes: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    fallback_reasons: dict[str, str] = field(default_factory=dict)
    op_names: dict[str, str] = field(default_factory=dict)
    templates: dict[str, tuple[str, str, Mapping[str, Any]]] = field(default_factory=dict)
    late: dict[str, None] = field(default_factory=dict)


def stride_expr(value: Any) -> Expr:
    """A stride of a fake tensor as an expression.

    Of a size that may be 0 strides take the larger one of it and 1; where it is 0 nothing is read, so it stands for itself.
    """
    expr = as_expr(value)
    if isinstance(expr, int) or not expr.has(Max):
        return expr
    return normalize(expr.replace(lambda e: isinstance(e, Max) and 1 in e.args, lambda e: e.args[1] if e.args[0] == 1 else e.args[0]))


def as_expr(value: Any) -> Expr:
    """A size of a fake tensor as an expression."""
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    if node is None:
        return normalize(sympy.sympify(value))
    return normalize(sympy.sympify(node.expr))


class TooManyArguments(GraphRejected):
    """A loop takes more buffers and sizes than a kernel of its device has arguments."""


class Lowering:
    """State of one lowering. node: the graph node being lowered. trains: values are kept for a backward graph."""

    def __init__(
        self,
        codegens: Mapping[str, Codegen],
        options: InductorOptions,
        rules: Mapping[Any, Rule],
        keep_ir: bool,
        trains: bool = False,
    ) -> None:
        self.codegens = codegens
        self.options = options
        self.rules = rules
        self.out = LoweredGraph()
        self.env: dict[torch.fx.Node, Any] = {}
        self.node: torch.fx.Node | None = None
        self.keep_ir = keep_ir
        self.trains = trains
        self._uses: dict[torch.fx.Node, int] = {}
        self._count = 0
        self._float_names: dict[str, str] = {}  # symbols of floats -> names of the inputs that hold them
        self._floats: dict[tuple[str, str], Tensor] = {}
        self._mixed = False  # there are tensors on several devices
        #: buffers that hold a tensor without axes of the CPU, brought to the device of the others
        self.brought: set[str] = set()
        self._moved: dict[tuple[Operand, str], Tensor] = {}
        self._crowded: dict[torch.fx.Node, None] = {}  # nodes whose loop has too many arguments

    # ------------------------------------------------------------------------------------------------ the walk

    def run(self, gm: torch.fx.GraphModule) -> LoweredGraph:
        """Lower every node in order."""
        nodes = list(gm.graph.nodes)
        for node in reversed(nodes):
            self._uses[node] = self._count_uses(node)
        fakes = tree_leaves([meta.get_fake(node) for node in nodes if meta.has_fake(node)])
        self._mixed = len({fake.device for fake in fakes if isinstance(fake, torch.Tensor)}) > 1
        for node in nodes:
            self.node = node
            if isinstance(node.target, torch._ops.OpOverload):
                self.out.op_names[node.name] = node.target._opname.strip("_")
            if node.op != "placeholder" and meta.has_fake(node):
                self._compute_apart(meta.get_fake(node))
            match node.op:
                case "placeholder":
                    self.env[node] = self._input(node)
                case "get_attr":
                    self.env[node] = self._constant(node, _attribute(gm, str(node.target)))
                case "call_function":
                    try:
                        self._lower(node)
                    except OPERATOR_ERRORS as error:
                        raise refused(node, error) from error
                case "output":
                    self._outputs(node)
                case _:
                    raise InternalError("inductor.lower", f"unexpected {node.op} in an aten graph", node=str(node.format_node()))
        return self.out

    def _lower(self, node: torch.fx.Node) -> None:
        if self._uses[node] or _is_impure(node):
            self.env[node] = self._call(node)
        elif isinstance(node.target, torch._ops.OpOverload) and may_raise(node.target, meta.get_fake(node)):
            self.eager(node, library=True)  # for what it raises: no kernel would be made of it

    def _count_uses(self, node: torch.fx.Node) -> int:
        """How often the node's value is read, seen through views."""
        count = 0
        for user in node.users:
            if _is_view(user):
                count += self._uses[user]
            else:
                count += sum(1 for a in user.all_input_nodes if a is node) if user.op != "output" else 1
        return count

    def uses(self) -> int:
        """Reads of the current node's value."""
        return self._uses[self.current]

    @property
    def current(self) -> torch.fx.Node:
        if self.node is None:
            raise AssertionError("no node is being lowered")
        return self.node

    @property
    def fake(self) -> Any:
        """The fake value of the current node."""
        return meta.get_fake(self.current)

    def given(self, position: int, name: str) -> Any:
        """An argument of the current node as capture had it: a fake tensor, a number or a symbolic number."""
        node = self.current
        value = node.args[position] if position < len(node.args) else node.kwargs[name]
        return meta.get_fake(value) if isinstance(value, torch.fx.Node) else value

    def _input(self, node: torch.fx.Node) -> Any:
        fake = meta.get_fake(node)
        name = f"arg{len(self.out.inputs)}"
        if not isinstance(fake, torch.Tensor):
            self.out.inputs.append(ProgramInput(name))
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
        self.out.inputs.append(
            ProgramInput(name, layout.device, layout.dtype, layout.size, layout.stride, meta.is_static_address(node))
        )
        for dim, extent in enumerate(layout.size):
            self._bind(extent, name, dim)
            self._check_input(fake.size(dim), name, dim)
        self.out.layouts[name] = layout
        return Tensor(
            layout.size, layout.dtype, layout.device, buffer=name, layout=layout, cost=BodyCost(reads=frozenset([name]))
        )

    def _bind(self, expr: Expr, name: str, dim: int | None) -> None:
        if not isinstance(expr, int) and expr.is_Symbol:
            self.out.sizes.setdefault(expr.name, (name, dim))

    def _check_input(self, given: Any, name: str, dim: int | None) -> None:
        """Raise when the program runs, unless an input's number that no guard looks at is what later code takes it for."""
        if not isinstance(given, torch.SymInt):
            return
        env, raw, expr = given.node.env, str(given.node.poly), as_expr(given)
        symbol = env.symbols.get(raw)
        if symbol is None or symbol.hint is not None or str(expr) == raw or raw in self.out.sizes:
            return
        self.out.sizes[raw] = (name, dim)
        text = print_expr(expr)
        self.check(f"{raw} == {text}", env.complaint_about(raw) or f"{symbol.sources[0].name} is not {text}, as was asserted")

    def _constant(self, node: torch.fx.Node, value: Any) -> Tensor:
        if not isinstance(value, torch.Tensor):
            raise GraphRejected(node, f"constant of type {type(value).__name__}")
        return self.constant_tensor(value)

    def constant_tensor(self, value: torch.Tensor) -> Tensor:
        """A tensor known at compile time, kept by the program."""
        name = f"constant{len(self.out.constants)}"
        self.out.constants[name] = value
        layout = layout_of(value)
        self.out.layouts[name] = layout
        return Tensor(
            layout.size, layout.dtype, layout.device, buffer=name, layout=layout, cost=BodyCost(reads=frozenset([name]))
        )

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
            return self.effect(node)
        device = self._other_device(node, (args, kwargs)) if self._mixed else None
        if device is not None:
            args, kwargs = tree_map(lambda value: self._brought(value, device), (args, kwargs))
            if self._other_device(node, (args, kwargs)) is not None:
                rule = None  # indices on the CPU, say
        beyond = "" if _is_view(node) else self._beyond_kernels(node)
        if beyond and target not in (COMPLEX_RULES if beyond == _COMPLEX else ()) and rule is not library_call:
            rule = None
        result = NotImplemented if rule is None else self._apply(rule, args, kwargs)
        if result is NotImplemented:
            reason = "arguments on several devices" if device is not None else "the lowering declines these arguments"
            reason = "more arguments than a kernel of this device takes" if node in self._crowded else reason
            result = self.fallback(node, beyond or ("no lowering" if self.rules.get(target) is None else reason))
        self._settle(node, result)
        return result

    def _apply(self, rule: Rule, args: Any, kwargs: Any) -> Any:
        """What the rule makes of the arguments, stored first where its loop would take too many buffers; NotImplemented where it
        does so even then. What it made before it failed is read by nobody, and goes when kernels are made."""
        try:
            return rule(self, *args, **kwargs)
        except TooManyArguments:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, (Tensor, View)) and value.cost.reads:
                    self.realize(value)
        try:
            return rule(self, *args, **kwargs)
        except TooManyArguments:
            self._crowded[self.current] = None
            return NotImplemented

    def _value(self, node: torch.fx.Node) -> Any:
        return self.env[node]

    def _size_arithmetic(self, node: torch.fx.Node, args: Sequence[Any]) -> Any:
        from fxloom_inductor_core.lowering.sizes import SIZE_OPS

        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if isinstance(fake, torch.SymInt) and opaque_atoms(fake.node.poly):
            return as_expr(fake)
        rule = SIZE_OPS.get(node.target)
        if rule is None:
            raise GraphRejected(node, f"no lowering for {node.target} on sizes")
        return rule(*args)

    def _compute_apart(self, fake: Any) -> None:
        """Have the program work out the numbers in the sizes of a result that kernels can't (rounded floats, bits)."""
        for leaf in fake if isinstance(fake, (tuple, list)) else (fake,):
            numbers = (*leaf.size(), *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
            for number in numbers:
                if not isinstance(number, torch.SymInt):
                    continue
                for atom in opaque_atoms(number.node.env.facts.simplify(number.node.poly)):
                    name = opaque_name(atom)
                    if not self._is_bound(name):
                        self.number("int", (TorchRef(atom_text(atom, self._float_names)),), name)

    def float_tensor(self, value: Float, device: str) -> Tensor:
        """A float as a tensor without axes, for kernels to read."""
        key = (value.text, device)
        if key not in self._floats:
            layout = Layout(device, "float64", (), ())
            keywords = {"dtype": TorchRef("torch.float64"), "device": TorchRef(f"torch.device({device!r})")}
            (self._floats[key],) = self.library(
                "torch.scalar_tensor", (TorchRef(value.text),), [layout], keywords, out=False, op="scalar_tensor"
            )
        return self._floats[key]

    def _beyond_kernels(self, node: torch.fx.Node) -> str:
        """What no kernel can hold of the tensors among the node's arguments and results, in words; empty where there is nothing."""
        found = ""
        for part in (node, *node.all_input_nodes):
            for fake in tree_leaves(meta.get_fake(part)) if meta.has_fake(part) else ():
                if not isinstance(fake, torch.Tensor):
                    continue
                name, device = dtype_name(fake.dtype), str(fake.device)
                if self._in_kernels(name, device):
                    continue
                if not fake.dtype.is_complex:
                    return f"{name} on {device}, which kernels don't have"
                found = _COMPLEX
        return found

    def _in_kernels(self, dtype: str, device: str) -> bool:
        """Whether kernels for the device load and store the dtype."""
        codegen = self.codegens.get(device.partition(":")[0])
        return codegen is not None and dtype in codegen.capabilities.dtypes

    def _other_device(self, node: torch.fx.Node, arguments: Any) -> str | None:
        """The device of the node's result, when it is one tensor and some argument lies elsewhere."""
        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if not isinstance(fake, torch.Tensor):
            return None
        device = str(fake.device)
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, (Tensor, View))]
        return device if any(tensor.device != device for tensor in tensors) else None

    def _brought(self, value: Any, device: str) -> Any:
        """A tensor without axes brought to the device of the others, where eager reads it as a number; others as they are."""
        if not isinstance(value, (Tensor, View)) or value.device == device or value.size != ():
            return value
        operand = self.operand(value)
        key = (operand, device)
        if key not in self._moved:
            layout = Layout(device, value.dtype, (), ())
            args = (operand, TorchRef(f"torch.device({device!r})"))
            (self._moved[key],) = self.library("torch.Tensor.to", args, [layout], out=False, op="aten._to_copy")
            self.brought.add(str(self._moved[key].buffer))
        return self._moved[key]

    def _settle(self, node: torch.fx.Node, result: Any) -> None:
        """Give a new tensor its layout preference, and store it when recomputing it costs more."""
        if not isinstance(result, Tensor) or result.is_stored:
            return
        fake = meta.get_fake(node) if meta.has_fake(node) else None
        if result.order is None and isinstance(fake, torch.Tensor):
            order = fake_order(fake)
            if order is not None and len(order) == len(result.size):
                result.order = order
        cost = result.cost
        several = self._uses[node] > 1
        if (
            (several and (cost.heavy or cost.ops > 3 or len(cost.reads) > 1))
            or cost.ops > self.options.inline_ops
            or len(cost.reads) > self.options.inline_reads
        ):
            self.realize(result)

    # ------------------------------------------------------------------------------------------------ making tensors

    def compute(
        self,
        size: Index,
        dtype: str,
        device: str,
        body: Body,
        inputs: Sequence[AnyTensor] = (),
        *,
        ops: int = 1,
        heavy: bool = False,
    ) -> Tensor:
        """A tensor given by a body that loads `inputs`. TooManyArguments where a kernel can't take them, even stored."""
        self._check_arguments(self._arguments_of(size, inputs), device)
        cost = BodyCost(ops, heavy)
        order = None
        origins: dict[str, None] = {}
        for tensor in inputs:
            cost = cost + cost_of(tensor)
            if tensor.base.body is not None:
                origins.update(dict.fromkeys(tensor.base.origins))
            if order is None and len(tensor.size) == len(size) == 4 and tensor.size == size and is_channels_last(tensor):
                order = CHANNELS_LAST
        origins.update(dict.fromkeys(self._origins()))
        return Tensor(size, dtype, device, body=body, cost=cost, order=order, origins=tuple(origins), inputs=tuple(inputs))

    def _arguments_of(self, size: Index, inputs: Sequence[AnyTensor]) -> int:
        """Launch arguments of a loop over `size` that reads each input out of one buffer."""
        bases = {id(tensor.base): tensor.base for tensor in inputs if cost_of(tensor).reads}
        buffers = {base.buffer or number for number, base in bases.items()}
        sizes = {s for extents in (size, *(base.size for base in bases.values())) for e in extents for s in free_symbols(e)}
        return len(buffers) + 1 + len(sizes)

    def _check_arguments(self, count: int, device: str) -> None:
        most = self.most_arguments(device)
        if count > most:
            raise TooManyArguments(self.current, f"a kernel with {count} arguments; those of {device} take {most}")

    def most_arguments(self, device: str) -> int:
        """Launch arguments of a kernel on `device` at most."""
        plugin = self.codegens.get(device.split(":")[0])
        return Capabilities().max_arguments if plugin is None else plugin.capabilities.max_arguments

    def realize(self, tensor: AnyTensor, order: tuple[int, ...] | None = None) -> None:
        """Store the tensor (a view's base) in a buffer, unless it is stored."""
        base = tensor.base
        if base.is_stored or base.body is None:
            return
        wanted = order or base.order
        stride = contiguous_strides(base.size) if wanted is None else strides_in_order(base.size, wanted)
        layout = Layout(base.device, base.dtype, base.size, stride)
        name = self.new_buffer(layout)
        node = Pointwise(Buffer(name, layout), base.body, origins=base.origins or self._origins())
        self._add(node, lambda: self._store_an_input(base))
        base.store_at(name, layout)
        base.cost = BodyCost(reads=frozenset([name]))

    def new_buffer(self, layout: Layout) -> str:
        name = f"buf{self._count}"
        self._count += 1
        self.out.layouts[name] = layout
        return name

    def stored(self, name: str) -> Tensor:
        """The tensor that a buffer holds."""
        layout = self.out.layouts[name]
        return Tensor(
            layout.size,
            layout.dtype,
            layout.device,
            buffer=name,
            layout=layout,
            cost=BodyCost(reads=frozenset([name])),
            order=dim_order(layout),
        )

    def reduce(
        self,
        kind: ReductionKind,
        size: Index,
        reduction_size: Index,
        dtype: str,
        acc_dtype: str,
        device: str,
        body: Body,
        *,
        result: int = 0,
        order: tuple[int, ...] | None = None,
    ) -> Tensor:
        """out[i] = fold over r of body(i + r), stored."""
        stride = contiguous_strides(size) if order is None else strides_in_order(size, order)
        layout = Layout(device, dtype, size, stride)
        name = self.new_buffer(layout)
        node = Reduction(Buffer(name, layout), kind, size, reduction_size, acc_dtype, body, result, origins=self._origins())
        self._add(node)
        return self.stored(name)

    def _origins(self) -> tuple[str, ...]:
        return (str(self.current.name),)

    def _store_an_input(self, tensor: Tensor) -> bool:
        """Store the input that a tensor's body computes from most buffers; False where it computes none."""
        lazy = [value.base for value in tensor.inputs if value.base.body is not None and value.base.cost.reads]
        if not lazy:
            return False
        self.realize(max(lazy, key=lambda base: len(base.cost.reads)))
        return True

    def _add(self, node: Pointwise | Reduction, relieve: Callable[[], bool] = lambda: False) -> None:
        """Add a loop. relieve: has the body read fewer buffers, if it can, for when they are too many."""
        loop = self._trace(node)
        while loop.arguments() > self.most_arguments(loop.device) and relieve():
            loop = self._trace(node)
        if self.keep_ir:
            self.out.nodes.append(node)
        self.add_loop(loop)

    def _trace(self, node: Pointwise | Reduction) -> Loop:
        layout = node.out.layout
        outer = [(symbol(f"d{i}"), extent) for i, extent in enumerate(layout.size)]
        inner: list[tuple[sympy.Symbol, Expr]] = []
        index: Index = tuple(0 if extent == 1 else s for s, extent in outer)
        if isinstance(node, Reduction):
            inner = [(symbol(f"q{i}"), extent) for i, extent in enumerate(node.reduction_ranges)]
        recorder = self.recorder(dict([*outer, *inner]), layout.device)
        where = flat_index(index, layout.stride, layout.offset)
        inner_index: Index = tuple(0 if extent == 1 else s for s, extent in inner)
        ordered = False
        if isinstance(node, Reduction):
            value = node.body(recorder, (*index, *inner_index))
            results = recorder.reduction(node.kind, node.acc_dtype, value)
            recorder.store_reduction(node.out.name, where, results[node.result])
            ordered = node.kind in ("argmax", "argmin")
        else:
            recorder.store(node.out.name, where, node.body(recorder, index))
        return Loop(
            node.out.name,
            tuple((s, e) for s, e in outer if e != 1),
            tuple((s, e) for s, e in inner if e != 1) or tuple(inner[:1]),
            drop_dead(recorder.instructions),
            layout.device,
            node.origins,
            ordered,
        )

    def recorder(self, extents: Mapping[sympy.Symbol, Expr], device: str) -> Recorder:
        """A handler that records a loop of the graph on `device`."""
        return new_recorder(
            lambda name: self.out.layouts[name].dtype, extents, lambda value: str(self.float_tensor(value, device).buffer)
        )

    def add_loop(self, loop: Loop) -> None:
        """A loop that is traced (by a rule itself: scans)."""
        self._check_arguments(loop.arguments(), loop.device)
        self.out.work.append(loop)

    # ------------------------------------------------------------------------------------------------ calls

    def operand(
        self, tensor: AnyTensor, accept: Callable[[Layout], bool] | None = None, order: tuple[int, ...] | None = None
    ) -> Operand:
        """The tensor as a call's argument: stored, and copied when no layout expresses it or `accept` refuses it."""
        if tensor.base.body is not None and isinstance(tensor, View) and tensor.base.cost.ops == 0 and not tensor.base.cost.reads:
            pass  # a constant seen through a view: store the view, not the base
        else:
            self.realize(tensor)
        layout = tensor.stored_layout()
        if layout is None or tensor.buffer is None or (accept is not None and not accept(layout)):
            if not self._in_kernels(tensor.dtype, tensor.device):
                stride = contiguous_strides(tensor.size) if order is None else strides_in_order(tensor.size, order)
                return self._copied(tensor, stride)
            copy = self.copy_of(tensor)
            self.realize(copy, order)
            layout = copy.layout
            if layout is None or copy.buffer is None:
                raise AssertionError("a realized tensor has a layout")
            return Operand(copy.buffer, layout)
        return Operand(tensor.buffer, layout)

    def _copied(self, tensor: AnyTensor, stride: Index) -> Operand:
        """A copy with these strides, made by a library call: of what kernels can't hold."""
        layout = tensor.stored_layout()
        if layout is None or tensor.buffer is None:
            raise GraphRejected(self.current, f"a {tensor.dtype} tensor is needed in a layout that no strides of its memory express")
        source = Operand(tensor.buffer, layout)
        target = Layout(tensor.device, tensor.dtype, tensor.size, stride)
        (copy,) = self.library("torch.ops.aten.copy.out", (source, source), [target], out=True, op="aten.copy")
        return Operand(str(copy.buffer), target)

    def copy_of(self, tensor: AnyTensor) -> Tensor:
        """A new tensor with the same values, not stored yet."""
        return self.compute(tensor.size, tensor.dtype, tensor.device, tensor.load, [tensor], ops=0)

    def library(
        self,
        target: str,
        args: Sequence[Any],
        layouts: Sequence[Layout],
        kwargs: Mapping[str, Any] | None = None,
        *,
        out: bool,
        op: str,
        library: bool = True,
        unpack: bool = False,
        used: Sequence[bool] | None = None,
        aliases: bool = False,
    ) -> list[Tensor]:
        """Call `target`. out: it fills one new buffer through `out=`; else it returns tensors of `layouts`.

        Symbols in the layouts that nothing has told so far are those that the results tell.
        """
        args, kwargs = _spell(tuple(args)), {name: _spell(value) for name, value in (kwargs or {}).items()}
        names = [self.new_buffer(layout) for layout in layouts]
        keywords = dict(kwargs or {})
        if out:
            keywords["out"] = Operand(names[0], layouts[0])
        wanted = [True] * len(names) if used is None else list(used)
        binds = self._bind_late(names, layouts)
        self.out.work.append(
            ExternCall(
                target,
                tuple(args),
                tuple(keywords.items()),
                writes=tuple(names) if out else (),
                results=() if out else tuple(n if u else None for n, u in zip(names, wanted, strict=True)),
                unpack=unpack,
                library=library,
                op=op,
                device=layouts[0].device if layouts else "cpu",
                origins=self._origins(),
                aliases=aliases,
                binds=binds,
            )
        )
        if self.keep_ir:
            reads = tuple(o.buffer for o in _leaves(list(args)) if isinstance(o, Operand))
            printed = ", ".join(a.buffer if isinstance(a, Operand) else str(a) for a in _leaves(list(args)))
            for name, layout in zip(names, layouts, strict=True):
                self.out.nodes.append(Extern(Buffer(name, layout), target, printed, reads, library, origins=self._origins()))
        return [self.stored(name) for name in names]

    def _bind_late(self, names: Sequence[str], layouts: Sequence[Layout]) -> tuple[tuple[str, str, int], ...]:
        """(symbol, buffer, dim) for the symbols that are new with these buffers."""
        found: dict[str, tuple[str, str, int]] = {}
        for name, layout in zip(names, layouts, strict=True):
            for dim, extent in enumerate(layout.size):
                if not isinstance(extent, int) and extent.is_Symbol and not self._is_bound(extent.name):
                    found.setdefault(extent.name, (extent.name, name, dim))
        self.out.late.update(dict.fromkeys(found))
        for layout in layouts:
            unknown = sorted(s.name for e in layout.size for s in free_symbols(e) if not self._is_bound(s.name))
            if unknown:
                raise GraphRejected(self.current, f"nothing tells the size {unknown[0]}")
        return tuple(found.values())

    def _is_bound(self, name: str) -> bool:
        return name in self.out.sizes or name in self.out.late

    def number(
        self, target: str, args: Sequence[Any], name: str, kwargs: Mapping[str, Any] | None = None, *, library: bool = True
    ) -> None:
        """Call `target`, which gives the number `name` of the program."""
        keywords = tuple((kwargs or {}).items())
        self.out.late[name] = None
        self.out.work.append(ExternCall(target, tuple(args), keywords, (), (name,), False, library, target, "cpu", self._origins()))

    def told(
        self, value: Symbolic, target: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, library: bool = True
    ) -> Any:
        """Call `target`, which gives `value`: that number in what follows."""
        names = list(symbols_made(value.node.env, value)) or [str(value.node.expr)]
        if not names[0].isidentifier():  # made of sizes that are known without the call
            return as_expr(value)
        self.number(target, args, names[0], kwargs, library=library)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):  # truth values are 0 and 1 in arithmetic
            return Float(names[0])
        known = as_expr(value)
        if str(known) != names[0]:  # what the program asserted of the number is in what later code takes for it
            text = print_expr(known)
            why = value.node.env.complaint_about(names[0]) or f"a number told by {target} is not {text}, as was asserted"
            self.check(f"{names[0]} == {text}", why)
        return known

    def check_sizes(self, tensors: Sequence[Tensor], op: str) -> None:
        """Raise RuntimeError when the program runs, unless results whose sizes depend on values have the sizes that later
        code relies on: what the program asserted of them is in those sizes."""
        for tensor in tensors:
            if tensor.buffer is not None and tensor.layout is not None and tensor.size:
                args = (Operand(tensor.buffer, tensor.layout), [SizeRef(as_expr(extent)) for extent in tensor.size], op)
                self._add_check("check_sizes", args)

    def check(self, truth: str, message: str, error: str = "RuntimeError", numbers: Sequence[Any] = ()) -> None:
        """Raise an error with `message`, in which `{}` stands for `numbers`, when the program runs, unless the text `truth` holds."""
        spelled = [TorchRef(n.text) if isinstance(n, Float) else SizeRef(as_expr(n)) for n in numbers]
        self._add_check("check", (TorchRef(truth), message, *([TorchRef(error), *spelled] if spelled or error != "RuntimeError" else [])))

    def _add_check(self, target: str, args: tuple[Any, ...]) -> None:
        self.out.work.append(
            ExternCall(target, args, (), (), (), False, True, "check", "cpu", self._origins(), check=True, effect=True)
        )

    def effect(self, node: torch.fx.Node) -> None:
        """Call an operator that returns nothing, for what it does."""
        args, kwargs = self._eager_arguments(node)
        device = next((self.out.layouts[o.buffer].device for o in _leaves((args, tuple(kwargs.values()))) if isinstance(o, Operand)), "cpu")
        name = str(node.target).removesuffix(".default")
        self.out.work.append(
            ExternCall(
                f"torch.ops.{node.target}", args, tuple(kwargs.items()), (), (), False, True, name, device, self._origins(), effect=True
            )
        )

    def _eager_arguments(self, node: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The node's arguments for its own operator."""
        args = torch.fx.map_arg(node.args, lambda n: self._fallback_operand(n))
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: self._fallback_operand(n))
        return _spell(tuple(args)), {name: _spell(value) for name, value in kwargs.items()}

    def fallback(self, node: torch.fx.Node, reason: str) -> Any:
        """Run the node's eager kernel for lack of a lowering."""
        self.out.fallback_reasons[str(node.target)] = reason
        return self.eager(node, library=False)

    def eager(self, node: torch.fx.Node, *, library: bool) -> Any:
        """Call the node's own operator. library: on purpose (attention, convolution)."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise GraphRejected(node, f"cannot call {target}")
        fake = meta.get_fake(node)
        args, kwargs = self._eager_arguments(node)
        outputs = [fake] if isinstance(fake, torch.Tensor) else list(fake) if isinstance(fake, (list, tuple)) else None
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.told(fake, f"torch.ops.{target}", args, kwargs, library=library)
        # Numbers beside tensors (attention's longest sequences) follow from shapes, so the fake's are the kernel's.
        if outputs is None or not all(f is None or isinstance(f, (torch.Tensor, int)) for f in outputs):
            raise GraphRejected(node, f"its result is no tensor ({type(fake).__name__}), and it has no lowering")
        layouts = [layout_of(f) if isinstance(f, torch.Tensor) else Layout("cpu", "float32", (0,), (1,)) for f in outputs]
        single = isinstance(fake, torch.Tensor)
        tensors = self.library(
            f"torch.ops.{target}",
            args,
            layouts,
            kwargs,
            out=False,
            op=str(target).removesuffix(".default"),
            library=library,
            unpack=not single,
            used=[isinstance(f, torch.Tensor) for f in outputs],
            aliases=any(r.alias_info is not None for r in target._schema.returns),
        )
        if torch.Tag.dynamic_output_shape in target.tags or target.namespace not in ("aten", "prims", "fxloom"):
            read = {user.args[1] for user in node.users if user.target is operator.getitem}  # others may be left empty
            self.check_sizes([t for number, t in enumerate(tensors) if single or number in read], f"{target}{_place(node)}")
        if single:
            return tensors[0]
        return tuple(f if isinstance(f, int) else tensor for f, tensor in zip(outputs, tensors, strict=True))

    def _fallback_operand(self, node: torch.fx.Node) -> Any:
        value = self.env[node]
        if isinstance(value, (Tensor, View)):
            fake = meta.get_fake(node)
            strides = tuple(stride_expr(s) for s in fake.stride())
            found = self.operand(value, lambda layout: same_strides(layout, strides), order_or_plain(fake))
            # kernels of libraries check the strides of axes of one element as well (attention: alignment)
            return _exact(found, fake) if same_strides(found.layout, strides) else found
        if isinstance(value, (list, tuple)):
            return [self.operand(v) if isinstance(v, (Tensor, View)) else v for v in value]
        return value

    # ------------------------------------------------------------------------------------------------ outputs

    def _outputs(self, node: torch.fx.Node) -> None:
        values = node.args[0]
        if not isinstance(values, (list, tuple)):
            values = (values,)
        for value in values:
            self.out.outputs.append(self._output(value))

    def _output(self, value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        lowered = self.env[value]
        if not isinstance(lowered, (Tensor, View)):
            if isinstance(lowered, Float):
                return TorchRef(lowered.text)
            return lowered if isinstance(lowered, (bool, float)) or lowered is None else SizeRef(lowered)
        fake = meta.get_fake(value)
        strides = tuple(stride_expr(s) for s in fake.stride())
        if isinstance(lowered, View) and lowered.base.body is not None and self._uses[value] == 1:
            lowered = self.copy_of(lowered)  # nobody else needs the base
        order = order_or_plain(fake)
        if lowered.base.body is not None:
            self.realize(lowered, order if isinstance(lowered, Tensor) else None)
        result = self.operand(lowered, lambda layout: same_strides(layout, strides), order)
        if not same_strides(result.layout, strides):
            result = self._exactly(lowered, strides)
        return _exact(result, fake)

    def _exactly(self, tensor: AnyTensor, strides: Index) -> Operand:
        """A copy of the tensor with these strides, which are not dense; along axes of stride 0 it is stored once."""
        repeated = [s == 0 and e not in (0, 1) for s, e in zip(strides, tensor.size, strict=True)]
        if not self._in_kernels(tensor.dtype, tensor.device) and not any(repeated):
            return self._copied(tensor, strides)
        stored = tuple(1 if again else e for e, again in zip(tensor.size, repeated, strict=True))
        layout = Layout(tensor.device, tensor.dtype, stored, strides)
        name = self.new_buffer(layout)
        self._add(Pointwise(Buffer(name, layout), tensor.load, origins=self._origins()))
        return Operand(name, Layout(tensor.device, tensor.dtype, tensor.size, strides))


def _exact(operand: Operand, fake: Any) -> Operand:
    """The same memory with the fake's strides, also where they don't matter: along axes of one element or none."""
    exact = tuple(as_expr(s) for s in fake.stride())
    return operand if exact == operand.layout.stride else Operand(operand.buffer, replace(operand.layout, stride=exact))


CHANNELS_LAST = (0, 2, 3, 1)

_COMPLEX = "complex numbers, which kernels don't have"
#: operators whose rule takes complex numbers, beside views: library calls
COMPLEX_RULES = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default})


def is_channels_last(tensor: AnyTensor) -> bool:
    """True when the tensor prefers or has a channels-last layout that differs from a contiguous one."""
    return len(tensor.size) == 4 and tensor.order == CHANNELS_LAST


def cost_of(tensor: AnyTensor) -> BodyCost:
    if tensor.buffer is not None:
        return BodyCost(reads=frozenset([tensor.buffer]))
    return tensor.cost


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a (fake) tensor, from its first element."""
    return Layout(
        str(tensor.device),
        dtype_name(tensor.dtype),
        tuple(as_expr(s) for s in tensor.size()),
        tuple(stride_expr(s) for s in tensor.stride()),
    )


def fake_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Dims from outermost to innermost as a dense tensor of these strides has them; None when contiguous or not dense."""
    strides = [stride_expr(s) for s in fake.stride()]
    size = [as_expr(s) for s in fake.size()]
    if not all(isinstance(s, int) for s in [*strides, *size]):
        return None
    order = tuple(sorted(range(len(strides)), key=lambda d: (-strides[d], -size[d], d)))
    step = 1
    for dim in reversed(order):
        if size[dim] != 1:
            if strides[dim] != step:
                return None
            step *= size[dim]
    return None if order == tuple(range(len(order))) else order


def order_or_plain(fake: torch.Tensor) -> tuple[int, ...]:
    """The order of a fake's dims, which is the plain one where the fake is contiguous or not dense."""
    return fake_order(fake) or tuple(range(fake.dim()))


def same_strides(layout: Layout, strides: Index) -> bool:
    """True when strides agree wherever they matter."""
    return all(a == b or extent in (0, 1) for a, b, extent in zip(layout.stride, strides, layout.size, strict=True))


def _spell(value: Any) -> Any:
    """Arguments of an eager call as program values."""
    if isinstance(value, (Operand, SizeRef, TorchRef)) or value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_spell(v) for v in value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return TorchRef(str(value))
    if isinstance(value, torch.device):
        return TorchRef(f"torch.device({str(value)!r})")
    if isinstance(value, sympy.Basic):
        return SizeRef(value)
    if isinstance(value, Float):
        return TorchRef(value.text)
    raise InternalError("inductor.lower", f"argument {value!r} of type {type(value).__name__} of an eager call")


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _place(node: torch.fx.Node) -> str:
    """The user's line of a node, for messages; that of torch's own code where there is no other."""
    sites = meta.get_sites(node)
    own = [site for site in sites if not site.file.startswith(_TORCH)]
    return f" (at {(own or sites)[-1]})" if sites else ""


_TORCH = torch.__file__.removesuffix("__init__.py")


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    return isinstance(target, torch._ops.OpOverload) and any(
        r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns
    )


def _is_impure(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    schema = target._schema
    return draws_numbers(target) or schema.is_mutable or not schema.returns or target.namespace not in ("aten", "prims", "fxloom")
