"""Record a torch-dialect graph: run it once on fakes and log every operator that arrives below autograd.

In: a GraphModule, fakes for its placeholders. Out: the raw log, one `Entry` per operator, in order, with its arguments
and results as they were: views alias, in-place operators mutate. Each entry knows the node of the torch-dialect graph that
caused it. Not here: functionalization, decompositions (`functionalize`).
Invariant: an operator is logged once, after it has run, and what it returned to the program is what the entry holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.fx

from fxloom_aot._torch_private import TorchDispatchMode, current_autograd_name, current_autograd_number, next_autograd_number
from fxloom_aot.nests import replace_real_tensors
from fxloom_interfaces.errors import Site
from fxloom_interfaces.meta import get_site
from fxloom_interfaces.node_text import node_text
from fxloom_ops.assertions import CHECK
from fxloom_ops.schema import Op, decompose, schema_info
from fxloom_shapes import SIZE_QUERIES, Descriptor, FakeMode, FakeStorage, FakeTensor, propagate
from fxloom_shapes.fake.devices import with_requested_device
from fxloom_shapes.symbols.messages import check_arguments
from fxloom_shapes.symbols.nodes import BoolNode

#: derivatives that take a shorter way for some sizes. Products: the layout of the factors says which one is transposed.
#: Sums along an axis of one element are that element.
_EQUIVALENT_ANSWERS = frozenset({"MmBackward0", "AddmmBackward0", "CumsumBackward0"})
Where = tuple[Descriptor, FakeStorage]


@dataclass(slots=True)
class Entry:
    """One operator of the raw log.

    node: torch-dialect node that caused it; in the backward part the one whose derivative it computes, None if unknown.
    before, after: metadata of the first argument around an in-place change of metadata, else None.
    region: entries of different regions are never merged (0 for the program itself, else the number of a recomputation).
    checkpoint: number of the checkpointed function that it is part of, 0 for none; backward is to make its results again.
    tracked: grad mode was on.
    """

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    node: torch.fx.Node | None
    before: Where | None = None
    after: Where | None = None
    region: int = 0
    checkpoint: int = 0
    tracked: bool = True


@dataclass(slots=True)
class Checkpoint:
    """One call of `torch.utils.checkpoint.checkpoint`, not within another. first, last: its part of the raw log."""

    node: torch.fx.Node
    reentrant: bool
    preserve_rng_state: bool
    first: int
    last: int


class Recorder(TorchDispatchMode):
    """The mode that logs. One per trace."""

    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, fake_mode: FakeMode, inference: bool = False) -> None:
        """inference: the program runs in inference mode, in which there is no autograd, though its fakes don't know."""
        super().__init__()
        self.fake_mode = fake_mode
        self.inference = inference
        self.log: list[Entry] = []
        self.constants: dict[int, tuple[FakeTensor, torch.Tensor]] = {}
        self.made: dict[int, Descriptor] = {}  # metadata, when it was made, of what changed it in place
        self.node: torch.fx.Node | None = None
        self.in_backward = False
        self.checkpoint = 0
        self.checkpoints: list[Checkpoint] = []
        #: tensors of the program's own that it lets gradients be accumulated in, by identity, with the node that did
        self.leaves: dict[int, torch.fx.Node] = {}
        #: after a node of the graph gave something: which value to replace, wherever it is held, and by which
        self.replaces: Callable[[torch.fx.Node, Any], tuple[Any, Any]] | None = None
        # autograd numbers what it records: the first number of each node of the graph finds a backward operator's cause
        self._first_numbers: list[int] = []
        self._numbered: list[tuple[torch.fx.Node, int]] = []  # and the checkpoint that it is part of

    def start_node(self, node: torch.fx.Node) -> None:
        """The program reaches `node`."""
        self.node = node
        if node.op == "output":  # makes nothing: operators that autograd calls only now belong to earlier nodes
            return
        if self.fake_mode.env is not None:
            self.fake_mode.env.assumptions.clear()
        self._first_numbers.append(next_autograd_number())
        self._numbered.append((node, self.checkpoint))

    def site(self) -> Site | None:
        """The user's line that the current operator belongs to."""
        cause = self.cause()
        return None if cause is None else get_site(cause)

    def answers_equivalent(self) -> bool:
        """True while a question about sizes only chooses between two ways to compute the same result."""
        return self.in_backward and current_autograd_name() in _EQUIVALENT_ANSWERS

    def expression(self) -> str:
        """The program's expression that the current operator belongs to."""
        cause = self.cause()
        return "" if cause is None else node_text(cause)

    def cause(self) -> torch.fx.Node | None:
        """The node that the current operator belongs to."""
        return self._cause()[0]

    def maker(self, grad_fn: Any) -> torch.fx.Node | None:
        """The node that autograd recorded `grad_fn` for."""
        return self._numbered_as(grad_fn._sequence_nr())[0]

    def place_of(self, grad_fn: Any) -> tuple[str, int, str]:
        """Where the program made it: the node, how many nodes of autograd this had recorded before, and its name."""
        place = bisect_right(self._first_numbers, grad_fn._sequence_nr()) - 1
        if place < 0:
            return "", 0, grad_fn.name()
        return self._numbered[place][0].name, grad_fn._sequence_nr() - self._first_numbers[place], grad_fn.name()

    def is_checkpointed(self, grad_fn: Any) -> bool:
        """True when that node is part of a checkpointed function."""
        return bool(self.checkpoints) and self._numbered_as(grad_fn._sequence_nr())[1] > 0

    def last_node(self) -> torch.fx.Node | None:
        """The last node that did something."""
        return next((entry.node for entry in reversed(self.log) if entry.node is not None), None)

    def _cause(self) -> tuple[torch.fx.Node | None, int]:
        """The node that the current operator belongs to, and the checkpoint that this is part of."""
        if not self.in_backward:
            return self.node, self.checkpoint
        return self._numbered_as(current_autograd_number())

    def _numbered_as(self, number: int | None) -> tuple[torch.fx.Node | None, int]:
        place = bisect_right(self._first_numbers, number) - 1 if number is not None else -1
        return self._numbered[place] if place >= 0 else (None, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = with_requested_device(kwargs or {})
        if func is torch.ops.aten._conj.default and isinstance(args[0], complex):  # a number that autograd conjugates
            func, args = torch.ops.aten.scalar_tensor.default, (args[0].conjugate(),)
            kwargs = {"dtype": torch.complex128}  # of no axes: results are of the type of what it meets
        if func in SIZE_QUERIES:
            return propagate(func, args, kwargs, self.fake_mode)
        if func.namespace == "profiler":  # names a stretch of the trace, computes nothing
            return func(*args, **kwargs)
        info = schema_info(func)
        if info.composite:
            # only under inference mode or from within another operator: autograd takes these apart otherwise
            with self:
                result = decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if func is not torch.ops.aten.lift_fresh.default:
            args, kwargs = self._adopt(args), {name: self._adopt(value) for name, value in kwargs.items()}
        tracked = torch.is_grad_enabled()
        # a recomputation (checkpoint) runs the forward program, with grad mode on, inside of the backward pass
        region = 1 if self.in_backward and tracked else 0
        cause, checkpoint = self._cause()
        if info.inplace_view:
            target = args[0]
            before = (target.desc, target.storage_token)
            out = propagate(func, args, kwargs, self.fake_mode)
            after = (target.desc, target.storage_token)
            self.made.setdefault(id(target), before[0])
            self.log.append(Entry(func, args, kwargs, out, cause, before, after, region, checkpoint, tracked))
            return out
        out = propagate(func, args, kwargs, self.fake_mode)
        self.log.append(Entry(func, args, kwargs, out, cause, region=region, checkpoint=checkpoint, tracked=tracked))
        return out

    def record_assertion(self, statement: Any) -> None:
        """The program asserts `statement` about unbacked numbers."""
        assert self.fake_mode.env is not None
        text, *rest = check_arguments(self.fake_mode.env, statement)
        truth = torch.SymBool(BoolNode(self.fake_mode.env, statement))
        if rest:
            error, *numbers = rest
            self.log.append(Entry(CHECK, (truth, text, error, numbers), {}, None, self.cause()))
        else:
            self.log.append(Entry(torch.ops.aten._assert_scalar.default, (truth, text), {}, None, self.cause()))

    def constant(self, real: torch.Tensor) -> FakeTensor:
        """The fake that stands for a tensor belonging to the graph."""
        fake = self.fake_mode.from_tensor(real, as_stored=True)
        self.constants[id(fake)] = (fake, real)
        return fake

    def _adopt(self, value: Any) -> Any:
        return replace_real_tensors(value, self.constant)
