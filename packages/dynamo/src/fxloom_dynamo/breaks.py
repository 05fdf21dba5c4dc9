"""The catalogue of graph breaks: every key with what happened, in the user's terms, and what to change.

In: a key of the catalogue and `details`, what differs from case to case. Out: a GraphBreak, which capture turns into the end of a graph,
and the text that users see. Invariant: no key is used that is not in the catalogue. The catalogue has what all breaks of a kind have in
common; the words after the key in a message are `details` and stand where a break begins: at a `graph_break(...)` or `Break(...)` here,
in `fxloom_shapes.errors` and what raises those, at a `GraphRejected(...)` of a backend. Grep the text in `packages/` to find the place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from fxloom_interfaces.errors import GraphBreak, Site


@dataclass(frozen=True, slots=True)
class BreakKind:
    """explanation: what happened. hint: what to change so that it does not."""

    key: str
    explanation: str
    hint: str


_KINDS = (
    BreakKind(
        "data_dependent",
        "Python asked for the values of a tensor, which are known only when the graph has run.",
        "Keep the decision in tensors (torch.where, masks), or move the question out of the compiled region. Numbers (.item(), .tolist()) "
        "and shapes (nonzero, masks) stay in the graph with the options capture_scalar_outputs and capture_dynamic_output_shape_ops, "
        "which fullgraph=True sets for backends that take integers.",
    ),
    BreakKind(
        "specialized",
        "An operator, or a text, takes a plain number where the program has one that keeps changing; it was compiled for before.",
        "Pass the number as a tensor, or keep it constant.",
    ),
    BreakKind(
        "no_fake_kernel",
        "The operator can't tell its result's shape without running.",
        "Register a fake (Meta) kernel for the operator, or call it outside of the compiled region.",
    ),
    BreakKind(
        "unsupported_tensor",
        "The tensor is of a kind that capture does not model (sparse, quantized, a lazy view, a subclass).",
        "Convert it to a plain strided tensor first.",
    ),
    BreakKind(
        "uninitialized",
        "A lazy module has not run yet. The first call runs as it is; this one meets such a module again.",
        "Run the model once before it is compiled, or leave modules out that are never used.",
    ),
    BreakKind(
        "native_call",
        "The program calls a function written in C of which capture does not know that it is pure.",
        "Call it outside of the compiled region.",
    ),
    BreakKind(
        "not_captured",
        "The function that was to be compiled is of a kind that is never captured: it runs as it is, what it calls may be captured.",
        "Compile the functions that it calls.",
    ),
    BreakKind(
        "cached_function",
        "The program calls a function with an lru_cache and gives it an object, or a number that changes from call to call: what the cache "
        "holds for that is known at run time only.",
        "Give it numbers that stay (mark_static, dynamic=False), texts or types, or call what it wraps (its __wrapped__).",
    ),
    BreakKind(
        "torch_call",
        "The program calls a function of torch that changes global state or that capture does not model.",
        "Call it outside of the compiled region.",
    ),
    BreakKind(
        "opaque_object",
        "The program uses an object whose state capture can't see.",
        "Pass what is needed of it as tensors or plain Python values.",
    ),
    BreakKind(
        "interrupted_loop",
        "A break within a loop leaves the loop's iterator outside of the graph: each round is captured by itself.",
        "Mend the break within the loop.",
    ),
    BreakKind(
        "warns",
        "A warning is issued in a way, or at a place, that capture can't delay to the end of the graph.",
        "Mend what is warned of, or warn outside of the compiled region.",
    ),
    BreakKind(
        "writes_and_raises",
        "The program writes into a tensor that it was given, and an operator may raise for a tensor's values amid other effects.",
        "Write to the tensor, or have the effects, outside of the function; or give up the effects before the operator.",
    ),
    BreakKind(
        "finalizer",
        "Code of the program runs when an object dies (__del__, the callback of a weak reference): when that is belongs to its meaning.",
        "Make the object, or drop it, outside of the compiled region.",
    ),
    BreakKind(
        "cannot_rebuild",
        "An object made while capturing outlives the graph, and capture does not know how to make it again.",
        "Use it up before the graph ends, or return plain containers and tensors.",
    ),
    BreakKind(
        "unsupported_opcode",
        "The Python instruction is not modelled.",
        "Write the statement in another way, or move it out of the compiled region.",
    ),
    BreakKind(
        "class_definition",
        "A class is defined inside the compiled region.",
        "Define the class at module level.",
    ),
    BreakKind(
        "async",
        "The program awaits or makes a coroutine or an async generator.",
        "Compile the functions that it calls instead.",
    ),
    BreakKind(
        "import",
        "A module is imported for the first time.",
        "Import it before the first compiled call.",
    ),
    BreakKind(
        "identity",
        "The program asks for the address of an object (`id`, the default `repr` or `hash`).",
        "Don't let results depend on addresses.",
    ),
    BreakKind(
        "exception_group",
        "The program uses `except*`.",
        "Handle exception groups outside of the compiled region.",
    ),
    BreakKind(
        "long_running",
        "Python computed for long without calling an operator; evaluating it would take far longer than running it.",
        "Compute it outside of the compiled region, or raise step_limit.",
    ),
    BreakKind(
        "recursion",
        "Calls nest too deep to be inlined.",
        "Compile the function that does the tensor work, not the recursion around it.",
    ),
    BreakKind(
        "mutates_foreign_state",
        "The program changes an object of the interpreter or of a library that capture can't write back.",
        "Make the change outside of the compiled region.",
    ),
    BreakKind(
        "dict_key",
        "A dictionary has a key that capture can't follow.",
        "Use strings, numbers, enum members, classes or functions as keys.",
    ),
    BreakKind(
        "asked_for",
        "The program called graph_break(), or a function that is not to be captured.",
        "Nothing, if that is wanted.",
    ),
    BreakKind(
        "capture_fault",
        "Capture itself failed on this code: a fault of fxloom's. The code runs as it is.",
        "Report it with the program; meanwhile disable() the function keeps capture away from it.",
    ),
    BreakKind(
        "operator_raises",
        "An operator raised on fake tensors, which have a shape but no values; whether it does on real ones, running it tells.",
        "Nothing, if it raises in eager too; else write it with other operators.",
    ),
    BreakKind(
        "backend_rejected",
        "The backend can't treat an operation soundly, so it runs eager between two graphs.",
        "See the details; often another operator does the same.",
    ),
)

CATALOGUE: dict[str, BreakKind] = {kind.key: kind for kind in _KINDS}


def graph_break(key: str, details: str = "", site: Site | None = None) -> NoReturn:
    """Raise a GraphBreak of the catalogue."""
    raise break_error(key, details, site)


def break_error(key: str, details: str = "", site: Site | None = None) -> GraphBreak:
    """A GraphBreak of the catalogue, to be raised later, or from another exception. KeyError for a key that it lacks."""
    if key not in CATALOGUE:
        raise KeyError(f"graph break key {key!r} is not in the catalogue")
    return GraphBreak(key, details, site)


def describe_break(error: GraphBreak) -> str:
    """The text that users see: what happened, where, and what to change."""
    kind = CATALOGUE.get(error.key)
    lines = [f"{error.key}: {error.details}" if error.details else error.key]
    if kind is not None:
        lines += [f"  what happened: {kind.explanation}", f"  what to change: {kind.hint}"]
    if error.site is not None:
        lines.append(f"  where: {error.site}")
    return "\n".join(lines)
