"""What one capture attempt knows beyond the shadow heap and the graph, in named parts.

The evaluator makes the parts; handlers, models and semantics read and change them. They hold objects of the program and are
cleared when the attempt ends; an attempt that fails is thrown away with all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fxloom_dynamo.interpreter.warning_filter import WarningFilter
from fxloom_interfaces.errors import Site
from fxloom_shapes import FakeTensor


@dataclass(eq=False)
class Exceptions:
    """Exceptions of the program, each dict by the identity of the exception."""

    #: that the program handles, since it entered the frame
    current: BaseException | None = None
    #: that was handled when the frame was entered
    before: BaseException | None = None
    #: step at which the program began to handle `current`
    handled_since: int = 0
    #: last raised into C code that called back
    thrown: BaseException | None = None
    tracebacks: dict[int, tuple[BaseException, Any]] = field(default_factory=dict)
    #: that operators raised on fakes; when and where
    of_operators: dict[int, tuple[BaseException, int, Site | None]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Gradient:
    """`.grad` of `tensor`, an input: as it was read (ABSENT: never) and as the program left it."""

    tensor: FakeTensor
    read: Any
    now: Any


@dataclass(eq=False)
class TensorState:
    """What hangs on tensors and no fake shows, each dict by the identity of the fake."""

    #: `.grad` of inputs that the program read or wrote
    gradients: dict[int, Gradient] = field(default_factory=dict)
    #: `__dict__` of tensors with attributes that the program reads or sets
    dicts: dict[int, tuple[FakeTensor, dict[str, Any]]] = field(default_factory=dict)
    #: attributes of torch's that the program set on tensors that existed before
    leaf_writes: dict[int, tuple[FakeTensor, dict[str, Any]]] = field(default_factory=dict)
    #: times that the program asked whether gradients are on
    grad_mode_queries: int = 0
    #: transforms of torch.func that enclose what is evaluated
    transforms: int = 0


@dataclass(frozen=True, slots=True)
class DelayedCall:
    """A call that replacement code makes after the graph. caller: makes it, see `semantics.output.caller_at`."""

    caller: Any
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(eq=False)
class DelayedCalls:
    """Calls of the program that replacement code makes."""

    #: in order, once the graph has run
    after_graph: list[DelayedCall] = field(default_factory=list)
    #: that nothing in the program can tell from being made at its end: made once the effects are written
    after_effects: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)


@dataclass(eq=False)
class Origins:
    """Where objects were made."""

    #: step of the captured frame, by identity
    steps: dict[int, int] = field(default_factory=dict)
    #: steps at which what can't be made again was made
    not_rebuilt: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Warnings:
    """Warnings while capturing."""

    filter: WarningFilter
    #: (text, category) that were issued while capturing, in this attempt or an earlier one
    issued: set[tuple[str, type[Warning]]]
