"""Record a torch-dialect graph: run it once on fakes and log every operator that arrives below autograd.

In: a GraphModule, fakes for its placeholders. Out: the raw log, one `Entry` per operator, in order, with its arguments
and results as they were: views alias, in-place operators mutate. Each entry knows the node of the torch-dialect graph that
caused it. Not here: functionalization, decompositions (`functionalize`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from fxloom_aot._torch_private import (
    TorchDispatchMode,
    current_autograd_name,
    current_autograd_number,
    next_autograd_number,
    plain_batch_norm,
)
from fxloom_aot.log import adopted
from fxloom_interfaces import regions
from fxloom_interfaces.errors import OPERATOR_ERRORS, FxloomError, GraphBreak, GraphRejected, InternalError, Site, refused
from fxloom_interfaces.meta import get_site
from fxloom_interfaces.node_text import node_text
from fxloom_interfaces.number_checks import CHECK
from fxloom_shapes import QUESTIONS, Descriptor, FakeMode, FakeStorage, FakeTensor, propagate
from fxloom_shapes.fake.devices import with_requested_device
from fxloom_shapes.fake.operators import Op, decompose, facts_of
from fxloom_shapes.symbols.messages import check_arguments
from fxloom_shapes.symbols.nodes import BoolNode

#: derivatives that take a shorter way for some sizes. Products: the layout of the factors says which one is transposed.
#: Sums along an axis of one element are that element.
_EITHER_WAY = frozenset({"MmBackward0", "AddmmBackward0", "CumsumBackward0"})

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

    def starts(self, node: torch.fx.Node) -> None:
        """The program reaches `node`."""
        self.node = node
        if node.op == "output":  # makes nothing: what autograd works out only now belongs to what came before
            return
        if self.fake_mode.env is not None:
            self.fake_mode.env.guesses.clear()
        self._first_numbers.append(next_autograd_number())
        self._numbered.append((node, self.checkpoint))

    def site(self) -> Site | None:
        """The user's line that the current operator belongs to."""
        cause = self.cause()
        return None if cause is None else get_site(cause)

    def either_way(self) -> bool:
        """What is asked of sizes now chooses between two ways to the same result."""
        return self.in_backward and current_autograd_name() in _EITHER_WAY

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
        if func in QUESTIONS:
            return propagate(func, args, kwargs, self.fake_mode)
        if func.namespace == "profiler":  # names a stretch of the trace, computes nothing
            return func(*args, **kwargs)
        facts = facts_of(func)
        if facts.composite:
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
        if facts.inplace_view:
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

    def asserts(self, statement: Any) -> None:
        """The program asserts `statement` of numbers that only running it tells."""
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
        return adopted(value, self.constant)


_DETACHING = ("detach_", torch.detach_)


def run_graph(gm: torch.fx.GraphModule, inputs: list[Any], recorder: Recorder) -> list[Any]:
    """Run `gm` on fakes under `recorder`; the flat outputs. GraphRejected for what operators raise."""
    with recorder, plain_batch_norm(), _rejecting(recorder):
        outputs = _run(gm, inputs, recorder)
        recorder.node = None
        return outputs


def _run(gm: torch.fx.GraphModule, inputs: Sequence[Any], recorder: Recorder) -> list[Any]:
    values: dict[torch.fx.Node, Any] = {}
    position = 0

    def look_up(argument: Any) -> Any:
        return torch.fx.node.map_arg(argument, values.__getitem__)

    last_use = _last_uses(gm.graph)
    for node in gm.graph.nodes:
        recorder.starts(node)
        match node.op:
            case "placeholder":
                values[node] = inputs[position]
                position += 1
            case "get_attr":
                value = _attribute(gm, str(node.target))
                values[node] = recorder.constant(value) if isinstance(value, torch.Tensor) else value
            case "call_function" if node.target is checkpoint and isinstance(look_up(node.args[0]), torch.fx.GraphModule):
                values[node] = _run_checkpoint(node, look_up(node.args), recorder)
            case "call_function" | "call_method" if recorder.inference and node.target in _DETACHING:
                values[node] = look_up(node.args[0])  # nothing to detach it from; autograd would refuse views
            case "call_function" if node.target in regions.LABELS:
                raise GraphRejected(node, "a record_function region, while a profiler runs that is to see what runs in it")
            case "call_function":
                values[node] = node.target(*look_up(node.args), **look_up(node.kwargs))
            case "call_method":
                target, *rest = look_up(node.args)
                values[node] = getattr(target, node.target)(*rest, **look_up(node.kwargs))
            case "call_module":
                values[node] = gm.get_submodule(str(node.target))(*look_up(node.args), **look_up(node.kwargs))
            case "output":
                outputs = look_up(node.args[0])
                return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        made = values.get(node)
        if type(made) is FakeTensor and made.requires_grad and not has_history(made) and node.op != "placeholder":
            recorder.leaves.setdefault(id(made), node)
        if recorder.replaces is not None and node in values:
            old, new = recorder.replaces(node, made)
            if old is not new:
                values.update([(one, new) for one, value in values.items() if value is old])
        for dead in last_use.get(node, ()):
            del values[dead]
    raise InternalError("aot", "the graph has no output node")


def has_history(fake: FakeTensor) -> bool:
    """True when autograd recorded what made the tensor."""
    try:
        return fake.grad_fn is not None
    except RuntimeError:  # one of several views, written through another: whoever uses it gets to see this
        return True


def history_is_error(fake: FakeTensor) -> bool:
    """True for a view that was written in a way which autograd refuses, once somebody looks at its history."""
    try:
        fake.grad_fn  # noqa: B018  # working it out is what raises
    except RuntimeError:
        return True
    return False


def _run_checkpoint(node: torch.fx.Node, args: Sequence[Any], recorder: Recorder) -> tuple[Any, ...]:
    """Run the body once, with gradients; the partitioner lets backward make again what it needs of it."""
    body, *inputs = args
    if recorder.checkpoint:  # within another, which is computed again as a whole
        return tuple(_run(body, inputs, recorder))
    first = len(recorder.log)
    recorder.checkpoint = len(recorder.checkpoints) + 1
    options = node.kwargs
    try:
        outputs = tuple(_run(body, inputs, recorder))
    finally:
        recorder.checkpoint = 0
    recorder.node = node
    reentrant, preserve = bool(options["use_reentrant"]), bool(options["preserve_rng_state"])
    recorder.checkpoints.append(Checkpoint(node, reentrant, preserve, first, len(recorder.log)))
    return outputs


def _last_uses(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """For every node the values that nothing needs after it, so that autograd can free what the program frees."""
    seen: set[torch.fx.Node] = set()
    result: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in reversed(graph.nodes):
        dead = [used for used in node.all_input_nodes if used not in seen]
        if dead and node.op != "output":
            result[node] = dead
        seen.update(dead)
    return result


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for name in path.split("."):
        value = getattr(value, name)
    return value


@contextmanager
def _rejecting(recorder: Recorder) -> Iterator[None]:
    """What fakes can't answer, and what an operator raises, becomes the rejection of the node that asked."""
    try:
        yield
    except GraphBreak as error:
        if recorder.node is None:
            raise
        raise GraphRejected(recorder.node, str(error)) from error
    except FxloomError:
        raise
    except Exception as error:
        if recorder.node is None:
            raise
        site = get_site(recorder.node)
        error.add_note(f"while aot ran {recorder.node.format_node()}" + (f"\n  from: {site}" if site else ""))
        if isinstance(error, OPERATOR_ERRORS):
            raise refused(recorder.node, error) from error
        raise
