"""Why a fake tensor can't answer: what `propagation`, shape rules and the symbol environment raise.

All but `ConstraintViolated`, which is the user's to mend, are graph breaks when they reach capture.
"""

from __future__ import annotations

from fxloom_interfaces.errors import GraphBreak, Site, UserError


class DataDependent(GraphBreak):
    """The answer depends on the values of a tensor (`.item()`, `nonzero`, `if tensor:`). op: the operator asked.

    violated: what to raise rather than break, where a dimension is looked at that the user said nothing may look at.
    """

    def __init__(self, op: str, details: str = "", violated: ConstraintViolated | None = None) -> None:
        super().__init__("data_dependent", details or f"{op} needs the values of a tensor")
        self.op = op
        self.violated = violated


class NoFakeKernel(GraphBreak):
    """The operator has neither a shape rule nor a registered Meta kernel."""

    def __init__(self, op: str, details: str = "") -> None:
        super().__init__("no_fake_kernel", details or f"{op} has no shape rule and no Meta kernel")
        self.op = op


class Specialized(GraphBreak):
    """An operator takes a plain number where one changes from call to call, and code for several values is there already."""

    def __init__(self, place: str, value: object) -> None:
        super().__init__("specialized", f"the value of {place}, now {value}, is needed as a plain number")


class UnsupportedTensor(GraphBreak):
    """A real tensor of a kind that fakes don't model (sparse, quantized, conjugated view, subclass)."""

    def __init__(self, details: str) -> None:
        super().__init__("unsupported_tensor", details)


class ConstraintViolated(UserError):
    """A number that was marked dynamic is used in a way that holds for one value only. site: the line that did it."""

    def __init__(self, place: str, statement: str, site: Site | None, remedy: str = "") -> None:
        where = f" at {site}" if site is not None else ""
        super().__init__(f"{place} is marked dynamic, but the program needs {statement}{where}. {remedy or _SPECIALIZED}")
        self.dimension, self.statement, self.site = place, statement, site


_SPECIALIZED = 'Use maybe_mark_dynamic (in dynamic_shapes: "auto") to allow it to be specialized, or mark_static (in dynamic_shapes: None).'
