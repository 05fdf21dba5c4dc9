"""The calling convention of an aten-dialect graph: what each flat input and each flat output *is*.

Written once, by aot; every index that a compiler, a replayer or the runtime wrapper needs comes from here. Order of
inputs: the caller's flat inputs (those that are left), storages, constants; in a backward graph saved values, then tangents.
Order of outputs: new values of mutated inputs, user outputs, bases of aliased outputs, then gradients or saved values.
`results` says how the wrapper makes what the user gets back; a compiler need not look at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from fxloom_interfaces.errors import IRError

if TYPE_CHECKING:
    import torch

    from fxloom_interfaces.sources import Source


class InputKind(Enum):
    """What a placeholder stands for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    USER = "user"
    #: a whole storage as one flat tensor, given in place of several inputs that share it
    STORAGE = "storage"
    #: a tensor that belongs to the graph and never changes
    CONSTANT = "constant"
    #: an integer: a size, stride or number
    NUMBER = "number"
    #: backward only: a value that the forward graph saved
    SAVED = "saved"
    #: backward only: the gradient of a forward output
    TANGENT = "tangent"


class OutputKind(Enum):
    """What a flat output stands for."""

    #: the value that mutated input `index` has afterwards; a compiler may write it over the old one, and return the input itself
    NEW_VALUE = "new value"
    #: a result for the user
    USER = "user"
    #: memory that several results are views of
    BASE = "base"
    #: forward only: a value for the backward graph
    SAVED = "saved"
    #: the gradient of caller input `index`, or of a result that others are computed from: these are numbered after the caller's inputs
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One placeholder. index: position among the caller's flat inputs (USER, PARAMETER, BUFFER, NUMBER), of the forward
    output it belongs to (TANGENT, SAVED; a TANGENT behind the last one belongs to a value that the graph does not return), or of the
    caller input whose storage it is (STORAGE); -1 for CONSTANT.

    static_address: its memory stays where it is between calls. mutated: some output is its new value.
    constant: the tensor of a CONSTANT. of_input: the SAVED value is placeholder `index` of the forward graph, no output.
    symbol: name of the symbol in sizes that a NUMBER (or a saved one) is.
    """

    kind: InputKind
    name: str
    index: int = -1
    source: Source | None = None
    static_address: bool = False
    mutated: bool = False
    constant: torch.Tensor | None = None
    of_input: bool = False
    symbol: str = ""

    def __post_init__(self) -> None:
        if (self.kind is InputKind.CONSTANT) != (self.constant is not None):
            raise IRError(f"input {self.name}: kind {self.kind.value} with constant {self.constant is not None}")
        if self.kind is not InputKind.CONSTANT and self.index < 0:
            raise IRError(f"input {self.name}: kind {self.kind.value} needs an index")


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One flat output. index: caller input (NEW_VALUE, GRADIENT), else -1. input: placeholder that NEW_VALUE updates.

    differentiable: gradients may flow into it, so a backward graph has a tangent for it. symbol: it is this symbolic number,
    which steps of other results use. quiet: eager's write does not count as a new version of the input (`Tensor._version`).
    """

    kind: OutputKind
    index: int = -1
    input: int = -1
    differentiable: bool = False
    symbol: str = ""
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator of a replay: `op(x, *args)`, then `[item]` of its result where `item` is not None.

    tracked: False where it is to be applied with grad mode off, as the program did.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None
    tracked: bool = True


@dataclass(frozen=True, slots=True)
class FromOutput:
    """The result is flat output `output`, or the view of it that `steps` describe; the rest as in `FromInput`."""

    output: int
    steps: tuple[ViewStep, ...] = ()
    requires_grad: bool = True
    apart: bool = False


@dataclass(frozen=True, slots=True)
class FromInput:
    """The result is caller input `index` itself, or the view of it that `steps` describe.

    requires_grad: whether the view was made with autograd looking. apart: autograd knows nothing of the shared memory; writes to
    the one are no new version of the other (`Tensor.data`).
    """

    index: int
    steps: tuple[ViewStep, ...] = ()
    requires_grad: bool = True
    apart: bool = False


@dataclass(frozen=True, slots=True)
class FromConstant:
    """The result is a constant of the graph: a number, None, or a tensor that the graph holds."""

    value: Any


@dataclass(frozen=True, slots=True)
class SameResult:
    """The result is the very object of an earlier result."""

    result: int


@dataclass(frozen=True, slots=True)
class FromResult:
    """The result is a view, which `steps` describe, of another result, and its history goes by that one; as in `FromInput`."""

    result: int
    steps: tuple[ViewStep, ...]
    requires_grad: bool = True
    apart: bool = False


Result = FromOutput | FromInput | FromConstant | SameResult | FromResult


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """After the write-back caller input `index` gets this size, stride and storage offset (`t_`, `unsqueeze_`, ...)."""

    index: int
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """See the module's docstring. caller_inputs: how many flat inputs the caller gives.

    results is empty for a backward graph. metadata: in-place changes of shape, applied after the new values were copied.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    results: tuple[Result, ...] = ()
    metadata: tuple[MetadataChange, ...] = ()
    caller_inputs: int = 0
    backward: bool = False

    def __post_init__(self) -> None:
        for number, output in enumerate(self.outputs):
            if output.kind is OutputKind.NEW_VALUE and not self.inputs[output.input].mutated:
                raise IRError(f"output {number} is a new value of input {output.input}, which is not said to be mutated")
        for number, result in enumerate(self.results):
            if isinstance(result, FromOutput) and not 0 <= result.output < len(self.outputs):
                raise IRError(f"result {number} is made from output {result.output} of {len(self.outputs)}")
            if isinstance(result, SameResult) and not 0 <= result.result < number:
                raise IRError(f"result {number} is said to be the same as result {result.result}, which is no earlier one")
            if isinstance(result, FromResult):
                self.root(number)  # raises for a circle

    def root(self, number: int) -> tuple[Result, int]:
        """What a result is computed from in the end, by way of other results, and over how many of them."""
        result, others = self.results[number], 0
        while isinstance(result, (FromResult, SameResult)):
            others += 1
            if not 0 <= result.result < len(self.results) or others > len(self.results):
                raise IRError(f"result {number} is computed from result {result.result} of {len(self.results)}, or of itself")
            result = self.results[result.result]
        return result, others

    def mutated(self) -> tuple[int, ...]:
        """Placeholders that the write-back writes to."""
        return tuple(position for position, spec in enumerate(self.inputs) if spec.mutated)

    def static_inputs(self) -> tuple[int, ...]:
        """Placeholders whose memory stays where it is between calls."""
        return tuple(
            position for position, spec in enumerate(self.inputs) if spec.static_address or spec.kind is InputKind.CONSTANT
        )

    def outputs_of(self, kind: OutputKind) -> tuple[int, ...]:
        return tuple(position for position, spec in enumerate(self.outputs) if spec.kind is kind)
