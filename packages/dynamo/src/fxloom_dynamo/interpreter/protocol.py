"""What handlers, models and rules need of the evaluator: its parts, and Python's own operations on values of the program.

In and out, for all methods: values as the evaluator holds them, that is proxies, fakes and objects made while capturing. What the program
raises comes as `Raised`, what can't be captured as GraphBreak.

Everything that gives meaning to Python takes an `Interpreter`; the evaluator is the only implementation. It stands at the
bottom so that meaning never imports what runs it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.graph.modes import Modes
from fxloom_dynamo.graph.recorder import Recorder
from fxloom_dynamo.guard.history import History
from fxloom_dynamo.interpreter.state import DelayedCalls, Exceptions, Origins, TensorState, Warnings
from fxloom_dynamo.objects.sentinels import Raised, Sentinel
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_interfaces.errors import Site

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.generators import TracedGenerator


class Interpreter(Protocol):
    """One capture attempt, as the code that it calls sees it.

    frames: the stack, captured frame first. steps: instructions of the captured frame that have begun. parameters: of the
    captured frame, as it was called. finalizable_locals: its variables at whose values' end code of the program may run.
    context_variables: those that the program has set, with their values, by identity. callee: of the last instruction CALL.
    cached_calls: calls of functions with a cache so far.
    """

    config: CaptureConfig
    history: History
    recorder: Recorder
    heap: ShadowHeap
    modes: Modes
    exceptions: Exceptions
    tensors: TensorState
    delayed: DelayedCalls
    origins: Origins
    warnings: Warnings
    frames: list[Frame]
    generators: list[TracedGenerator]
    parameters: dict[str, Any]
    finalizable_locals: set[str]
    context_variables: dict[int, tuple[Any, Any]]
    callee: Any
    cached_calls: int
    steps: int

    # ------------------------------------------------------------------ operations on values of the program

    def call(self, fn: Any, args: list[Any], kwargs: dict[str, Any] | None = None) -> Any:
        """fn(*args, **kwargs)"""

    def inline(self, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate the body of a Python function, without the model that it may have."""

    def type_of(self, value: Any) -> type:
        """The class that the program sees."""
        ...

    def getattr(self, obj: Any, name: str) -> Any:
        """obj.name"""

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        """The attribute, or `default` where reading it raises AttributeError."""

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        """obj.name = value"""

    def truth(self, value: Any) -> bool:
        """bool(value)"""
        ...

    def iter(self, value: Any) -> Any:
        """iter(value)"""

    def next(self, iterator: Any) -> Any:
        """The next item, ABSENT at the end."""

    def list_of(self, value: Any) -> list[Any]:
        """All items of an iterable."""
        ...

    # ------------------------------------------------------------------ running code that is not evaluated

    def native(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call C code. What it raises is the program's exception; Python functions that it calls back are evaluated."""

    def torch_native(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch; its operators are recorded by the mode."""

    def record_call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Record a call of `fn` itself (an operator, a class), run on fakes."""

    def run_untraced(self, act: Callable[[], Any]) -> Any:
        """Run our own code that C code calls back (a traced generator's `__next__`)."""

    def run_stdlib(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call Python code of the standard library that gives constants, without evaluating it; what it raises is the program's."""

    def run_real(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the program's on real values, as the program itself would: what it makes is no fake."""

    def call_after_graph(self, function: Callable[..., Any], *args: Any) -> None:
        """Have replacement code make this call of the program's once the graph has run, in its place."""

    # ------------------------------------------------------------------ frames and names

    def run(self, frame: Frame) -> Any:
        """Run an inlined frame to its end and return its result."""

    def resume(self, frame: Frame) -> Any:
        """Run an inlined frame from where it stands to its next signal: RETURN or YIELD."""

    def throw_into(self, frame: Frame, exc: BaseException) -> Sentinel:
        """Resume a suspended generator frame by raising at its yield; the loop's signal."""
        ...

    def unwind(self, frame: Frame, index: int, raised: Raised) -> bool:
        """Go to the handler of the instruction at `index`; False when there is none: the exception leaves the frame."""
        ...

    def load_local(self, frame: Frame, name: str) -> Any:
        """A local variable, ABSENT if unbound."""

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global or builtin; NameError if there is none."""

    def global_namespace(self, frame: Frame) -> Any:
        """The names that are global to the frame."""

    def site(self) -> Site | None:
        """Where the program is, in the user's terms: not within the standard library, torch or fxloom if it can be helped."""

    def note_made(self, obj: Any) -> None:
        """Remember where the program made an object, for a break there."""

    def drop_reference(self, name: str) -> NoReturn:
        """Break: the frame drops its reference to a variable's value, whose end may call the program."""
        ...

    def may_have_dropped_references(self) -> bool:
        """True when the program may have dropped the last reference to an object that existed before."""
        ...

    # ------------------------------------------------------------------ exceptions

    def handled(self) -> BaseException | None:
        """The exception that the program handles: also one whose handler has called the frame."""

    def traceback_of(self, exc: BaseException) -> Any:
        """`exc.__traceback__` as the program sees it."""

    def throw_to_native(self, exc: BaseException) -> NoReturn:
        """Raise the program's exception into the C code that called back."""
        ...

    def raised_by_program(self, exc: BaseException) -> bool:
        """True for what the program raised, GeneratorExit and its like included, and not for a break or a fault of fxloom."""
        ...

    def clean(self, exc: BaseException) -> BaseException:
        """A program's exception without the evaluator's frames, in the context of what the program handles."""
        ...
