"""Functions that stand in torch dialect graphs for changes of mode and for regions; each runs in eager as it stands.

Capture records calls of them; aot, and whoever else traces or runs the graph, calls them. A mode change is a node of its own at
the place where the program makes it, so a graph stays a straight line of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxloom_interfaces import _torch_private


def set_grad_enabled(mode: bool) -> None:
    """Turn grad mode on or off from here to the next such node."""
    _torch_private.set_grad_enabled(mode)


def enter_autocast(device_type: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> Any:
    """Enter an autocast region; the result is the token of the matching `exit_autocast`."""
    region = torch.amp.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    region.__enter__()
    return region


def exit_autocast(region: Any) -> None:
    """Leave the autocast region that `enter_autocast` entered."""
    region.__exit__(None, None, None)


def set_attention_kernel(name: str, enabled: bool) -> None:
    """Let `scaled_dot_product_attention` use a kernel (flash, mem_efficient, math, cudnn, overrideable) from here on, or not."""
    _torch_private.ATTENTION_KERNELS[name][1](enabled)


def begin_label(name: str, args: str | None = None) -> Any:
    """Begin a region that a profiler shows by name; the result is the token of the matching `end_label`."""
    region = torch.autograd.profiler.record_function(name, args)
    region.__enter__()
    return region


def end_label(region: Any) -> None:
    """End the region that `begin_label` began."""
    region.__exit__(None, None, None)


def choose(predicate: torch.Tensor, if_true: Any, if_false: Any, inputs_true: Sequence[Any], inputs_false: Sequence[Any]) -> Any:
    """`torch.cond`: what one of two bodies makes of its inputs."""
    return if_true(*inputs_true) if predicate else if_false(*inputs_false)


class GraphFunction:
    """A function of the program that stands in graphs as one call; `function` is run as it is, with its own gradient.

    That is what `allow_in_graph` asks for, and what the `apply` of a custom autograd function is.
    """

    def __init__(self, function: Callable[..., Any], label: str = "") -> None:
        """label: for printed graphs; any text."""
        self.function = function
        name = label or getattr(function, "__qualname__", type(function).__name__)
        self.__name__ = "".join(char if char.isalnum() else "_" for char in name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"GraphFunction({self.__name__})"


@dataclass(frozen=True)
class Transform:
    """A function transform of `torch.func` applied to a body: `transform(body, *arguments)`, results flat.

    A node calls it with the body (a `get_attr` of a GraphModule), the tensors among the arguments, in order, then what
    the body takes beside them. arguments, outputs: how the tensors are nested (with the constants among them) in the
    arguments and in what the body returns.
    """

    name: str
    transform: Callable[..., Any]
    arguments: pytree.TreeSpec
    leaves: tuple[Any, ...]
    outputs: pytree.TreeSpec
    results: tuple[Any, ...]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, body: Callable[..., Any], *tensors: Any) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(self.nested(body, *tensors)))

    def nested(self, body: Callable[..., Any], *tensors: Any) -> Any:
        """What the transformed function returns, as it returns it."""
        count = sum(leaf is HOLE for leaf in self.leaves)
        lifted = tensors[count:]

        def function(*args: Any) -> Any:
            given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            return pytree.tree_unflatten(filled(self.results, body(*given, *lifted)), self.outputs)

        return self.transform(function, *pytree.tree_unflatten(filled(self.leaves, tensors), self.arguments))


class _Hole:
    """Where a tensor stands among flat leaves."""

    def __repr__(self) -> str:
        return "HOLE"


HOLE = _Hole()


def filled(leaves: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The leaves with `tensors`, in order, in the holes."""
    rest = iter(tensors)
    return [next(rest) if leaf is HOLE else leaf for leaf in leaves]


#: Regions with names for a profiler. Graphs have such nodes only while one runs, and only operators that run one by one can
#: stand in them: who fuses operators rejects the graph.
LABELS = frozenset({begin_label, end_label})
#: Nodes calling these are kept by dead-code removal. torch's own are what its autocast regions are made of.
MODE_CHANGES = frozenset(
    {
        set_grad_enabled,
        enter_autocast,
        exit_autocast,
        set_attention_kernel,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled,
        torch.autocast_increment_nesting,
        torch.autocast_decrement_nesting,
        torch.clear_autocast_cache,
    }
)
