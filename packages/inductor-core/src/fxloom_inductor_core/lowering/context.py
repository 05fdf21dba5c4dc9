"""What a lowering rule works with: its first argument, `cx`.

In: calls of rules. Out: loops (from `LoopBuilder`) and calls of libraries and eager kernels in the lowered graph, in the order in
which they are asked for. Invariant: an operator without a lowering runs its eager kernel, which is counted and named.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from fxloom_inductor_core.ir.cost import BodyCost
from fxloom_inductor_core.ir.graph import ExternCall, Operand, leaves, with_strides_of
from fxloom_inductor_core.ir.layouts import as_expr, layout_of, order_or_plain, same_strides, stride_expr
from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.ir.tensors import AnyTensor, Index, Tensor, View, contiguous_strides, strides_in_order
from fxloom_inductor_core.lowering.loops import LoopBuilder
from fxloom_inductor_core.options import InductorOptions
from fxloom_interfaces import meta
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.errors import GraphRejected, InternalError
from fxloom_interfaces.expr import free_symbols, print_expr
from fxloom_interfaces.loop_ir import Buffer, Extern, Layout, Pointwise
from fxloom_interfaces.program import SizeRef, TorchRef
from fxloom_shapes.fake.size_nodes import Symbolic, symbols_made
from fxloom_shapes.symbols.messages import value_failure_message


class LoweringContext(LoopBuilder):
    """State of one lowering that rules see. trains: values are kept for a backward graph."""

    def __init__(self, codegens: Mapping[str, Codegen], options: InductorOptions, keep_ir: bool, trains: bool = False) -> None:
        super().__init__(codegens, keep_ir)
        self.options = options
        self.trains = trains
        self.env: dict[torch.fx.Node, Any] = {}
        #: buffers that hold a copy of a tensor without axes on the device that it is used on
        self.moved_scalars: set[str] = set()
        self._floats: dict[tuple[str, str], Tensor] = {}

    def given(self, position: int, name: str) -> Any:
        """An argument of the current node as capture had it: a fake tensor, a number or a symbolic number."""
        node = self.current
        value = node.args[position] if position < len(node.args) else node.kwargs[name]
        return meta.get_fake(value) if isinstance(value, torch.fx.Node) else value

    def constant_tensor(self, value: torch.Tensor) -> Tensor:
        """A tensor known at compile time, kept by the program."""
        name = f"constant{len(self.out.constants)}"
        self.out.constants[name] = value
        layout = layout_of(value)
        self.out.layouts[name] = layout
        return Tensor(layout.size, layout.dtype, layout.device, buffer=name, layout=layout, cost=BodyCost(reads=frozenset([name])))

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

    def in_kernels(self, dtype: str, device: str) -> bool:
        """Whether kernels for the device load and store the dtype."""
        codegen = self.codegens.get(device.partition(":")[0])
        return codegen is not None and dtype in codegen.capabilities.dtypes

    def operand(self, tensor: AnyTensor, accept: Callable[[Layout], bool] | None = None, order: tuple[int, ...] | None = None) -> Operand:
        """The tensor as a call's argument: stored, and copied when no layout expresses it or `accept` refuses it."""
        if tensor.base.body is not None and isinstance(tensor, View) and tensor.base.cost.ops == 0 and not tensor.base.cost.reads:
            pass  # a constant seen through a view: store the view, not the base
        else:
            self.realize(tensor)
        layout = tensor.stored_layout()
        if layout is None or tensor.buffer is None or (accept is not None and not accept(layout)):
            if not self.in_kernels(tensor.dtype, tensor.device):
                stride = contiguous_strides(tensor.size) if order is None else strides_in_order(tensor.size, order)
                return self.copied_by_library(tensor, stride)
            copy = self.copy_of(tensor)
            self.realize(copy, order)
            layout = copy.layout
            if layout is None or copy.buffer is None:
                raise AssertionError("a realized tensor has a layout")
            return Operand(copy.buffer, layout)
        return Operand(tensor.buffer, layout)

    def copied_by_library(self, tensor: AnyTensor, stride: Index) -> Operand:
        """A copy with these strides, made by a library call: of what kernels can't hold."""
        layout = tensor.stored_layout()
        if layout is None or tensor.buffer is None:
            raise GraphRejected(self.current, f"a {tensor.dtype} tensor is needed in a layout that no strides of its memory express")
        source = Operand(tensor.buffer, layout)
        target = Layout(tensor.device, tensor.dtype, tensor.size, stride)
        (copy,) = self.library("torch.ops.aten.copy.out", (source, source), [target], out=True, op="aten.copy")
        return Operand(str(copy.buffer), target)

    def stored_with_strides(self, tensor: AnyTensor, strides: Index) -> Operand:
        """A copy of the tensor with these strides, which are not dense; along axes of stride 0 it is stored once."""
        repeated = [s == 0 and e not in (0, 1) for s, e in zip(strides, tensor.size, strict=True)]
        if not self.in_kernels(tensor.dtype, tensor.device) and not any(repeated):
            return self.copied_by_library(tensor, strides)
        stored = tuple(1 if again else e for e, again in zip(tensor.size, repeated, strict=True))
        layout = Layout(tensor.device, tensor.dtype, stored, strides)
        name = self.new_buffer(layout)
        self.add(Pointwise(Buffer(name, layout), tensor.load, origins=self.origins_of_current()))
        return Operand(name, Layout(tensor.device, tensor.dtype, tensor.size, strides))

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
        binds = self._bind_unbacked(names, layouts)
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
                origins=self.origins_of_current(),
                aliases=aliases,
                binds=binds,
            )
        )
        if self.keep_ir:
            reads = tuple(o.buffer for o in leaves(list(args)) if isinstance(o, Operand))
            printed = ", ".join(a.buffer if isinstance(a, Operand) else str(a) for a in leaves(list(args)))
            for name, layout in zip(names, layouts, strict=True):
                self.out.nodes.append(Extern(Buffer(name, layout), target, printed, reads, library, origins=self.origins_of_current()))
        return [self.stored(name) for name in names]

    def template(self, kind: str, name: str, parameters: Mapping[str, Any], device: str) -> str | None:
        """Have the code generator for the device build its template `kind` as `name`, a target of `library`; the name of the operator
        that is counted. None where it has no such template, or options don't let templates compete.
        """
        device_type = device.partition(":")[0]
        plugin = self.codegens.get(device_type)
        if not self.options.templates or plugin is None or kind not in plugin.capabilities.templates:
            return None
        self.out.templates[name] = (device_type, kind, parameters)
        return f"{plugin.name}.{name}"

    def _bind_unbacked(self, names: Sequence[str], layouts: Sequence[Layout]) -> tuple[tuple[str, str, int], ...]:
        """(symbol, buffer, dim) for the symbols that are new with these buffers."""
        found: dict[str, tuple[str, str, int]] = {}
        for name, layout in zip(names, layouts, strict=True):
            for dim, extent in enumerate(layout.size):
                if not isinstance(extent, int) and extent.is_Symbol and not self.is_bound(extent.name):
                    found.setdefault(extent.name, (extent.name, name, dim))
        self.out.unbacked.update(dict.fromkeys(found))
        for layout in layouts:
            unknown = sorted(s.name for e in layout.size for s in free_symbols(e) if not self.is_bound(s.name))
            if unknown:
                raise GraphRejected(self.current, f"nothing tells the size {unknown[0]}")
        return tuple(found.values())

    def is_bound(self, name: str) -> bool:
        return name in self.out.sizes or name in self.out.unbacked

    def number(self, target: str, args: Sequence[Any], name: str, kwargs: Mapping[str, Any] | None = None, *, library: bool = True) -> None:
        """Call `target`, which gives the number `name` of the program."""
        keywords = tuple((kwargs or {}).items())
        self.out.unbacked[name] = None
        self.out.work.append(
            ExternCall(target, tuple(args), keywords, (), (name,), False, library, target, "cpu", self.origins_of_current())
        )

    def runtime_scalar(
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
            why = value_failure_message(value.node.env, names[0]) or f"a number told by {target} is not {text}, as was asserted"
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
            ExternCall(target, args, (), (), (), False, True, "check", "cpu", self.origins_of_current(), check=True, effect=True)
        )

    def effect(self, node: torch.fx.Node) -> None:
        """Call an operator that returns nothing, for what it does."""
        args, kwargs = self._eager_arguments(node)
        device = next((self.out.layouts[o.buffer].device for o in leaves((args, tuple(kwargs.values()))) if isinstance(o, Operand)), "cpu")
        name = str(node.target).removesuffix(".default")
        self.out.work.append(
            ExternCall(
                f"torch.ops.{node.target}",
                args,
                tuple(kwargs.items()),
                (),
                (),
                False,
                True,
                name,
                device,
                self.origins_of_current(),
                effect=True,
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
            return self.runtime_scalar(fake, f"torch.ops.{target}", args, kwargs, library=library)
        # Numbers beside tensors (attention's longest sequences) follow from shapes, so the fake's are the kernel's.
        if outputs is None or not all(f is None or isinstance(f, (torch.Tensor, int)) for f in outputs):
            raise GraphRejected(node, f"its result is not a tensor ({type(fake).__name__}), and it has no lowering")
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
            return with_strides_of(found, fake) if same_strides(found.layout, strides) else found
        if isinstance(value, (list, tuple)):
            return [self.operand(v) if isinstance(v, (Tensor, View)) else v for v in value]
        return value


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


def _place(node: torch.fx.Node) -> str:
    """The user's line of a node, for messages; that of torch's own code where there is no other."""
    sites = meta.get_sites(node)
    own = [site for site in sites if not site.file.startswith(_TORCH)]
    return f" (at {(own or sites)[-1]})" if sites else ""


_TORCH = torch.__file__.removesuffix("__init__.py")
