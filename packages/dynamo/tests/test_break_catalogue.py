"""Every key of the break catalogue is reached by a small program, and its text leads the user to the line."""

from __future__ import annotations

import copy
import functools
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fxloom_dynamo import graph_break, optimize
from fxloom_dynamo.breaks import CATALOGUE
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import GraphRejected, Unsupported

PROGRAMS: dict[str, Callable[..., Any]] = {}


def reaches(key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(program: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[key] = program
        return program

    return note


@reaches("warns")
def _(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("recorded")  # here
    return x + len(found)


@reaches("writes_and_raises")
def _(x: torch.Tensor) -> Any:
    NOTED.append(1)
    LARGE.add_(1)  # here
    return x + LARGE[x.to(torch.int64)]


class Finalized:
    def __del__(self) -> None:
        pass


class Odd:
    def __hash__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return self is other


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


ODD = {Odd(): 1}
LARGE, NOTED = torch.zeros(70_000), []
MOVED = OrderedDict(a=1, b=2)
SPARSE = torch.eye(2).to_sparse()


async def waits() -> int:
    return 1


@reaches("data_dependent")
def branch_on_values(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1  # here


@reaches("unsupported_tensor")
def sparse_tensor(x: torch.Tensor) -> torch.Tensor:
    return SPARSE + x  # here


@reaches("native_call")
def calls_c(x: torch.Tensor) -> torch.Tensor:
    return x + len(os.listdir("/"))  # here


@reaches("torch_call")
def sets_global_state(x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(torch.get_num_threads())  # here
    return x + 1


@reaches("opaque_object")
def reads_opaque(x: torch.Tensor) -> torch.Tensor:
    return x + next(OPAQUE)  # here


OPAQUE = filter(None, [1] * 100)


@reaches("finalizer")
def makes_finalized(x: torch.Tensor) -> torch.Tensor:
    Finalized()  # here
    return x + 1


@reaches("cannot_rebuild")
def returns_what_cant_be_made(x: torch.Tensor) -> Any:
    return x + 1, memoryview(b"abc")  # here


@reaches("class_definition")
def defines_class(x: torch.Tensor) -> Any:
    class Inner:
        pass

    return x + 1, Inner  # here


@reaches("async")
def makes_coroutine(x: torch.Tensor) -> torch.Tensor:
    waits().close()  # here
    return x + 1


@reaches("import")
def imports(x: torch.Tensor) -> torch.Tensor:
    import stringprep  # noqa: F401  # here

    return x + 1


@reaches("identity")
def asks_identity(x: torch.Tensor) -> torch.Tensor:
    return x + id(object()) % 7  # here


@reaches("exception_group")
def lets_group_go(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ExceptionGroup("two", [ValueError(1), TypeError(2)])
    except* ValueError:  # here
        x = x + 1
    return x


@reaches("long_running")
def counts_for_long(x: torch.Tensor) -> torch.Tensor:
    return x + len([number for number in range(1_000_000)])  # here


@reaches("recursion")
def recurses(x: torch.Tensor, depth: int = 400) -> torch.Tensor:
    return x if depth == 0 else recurses(x + 1, depth - 1)  # here


@reaches("mutates_foreign_state")
def writes_to_c_function(x: torch.Tensor) -> torch.Tensor:
    OPAQUE_FUNCTION.__doc__ = "other"  # here
    return x + 1


def named() -> None:
    """To be changed."""


OPAQUE_FUNCTION = property(named)


@reaches("dict_key")
def reads_odd_dict(x: torch.Tensor) -> torch.Tensor:
    return x + sum(ODD.values())  # here


@reaches("asked_for")
def asks_for_break(x: torch.Tensor) -> torch.Tensor:
    graph_break()  # here
    return x + 1


@reaches("backend_rejected")
def backend_rejects(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1  # here


def rejecting(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    for node in gm.graph.nodes:
        if "sin" in str(node.target):
            raise GraphRejected(node, "no sines here")
    return gm.forward


@reaches("unsupported_opcode")
def throws_into_delegation(x: torch.Tensor) -> torch.Tensor:
    def outer() -> Any:
        yield from [1, 2]

    made = outer()
    next(made)
    try:
        made.throw(ValueError(1))  # here
    except ValueError:
        pass
    return x + 1


@reaches("no_fake_kernel")
def operator_without_shape_rule(x: torch.Tensor) -> torch.Tensor:
    return shapeless(x) + 1  # here


def mistaken(x: torch.Tensor) -> torch.Tensor:
    return x


@reaches("capture_fault")
def calls_what_capture_models_wrongly(x: torch.Tensor) -> torch.Tensor:
    return mistaken(x) + 1  # here


def _mistake(ev: Any, args: Any, kwargs: Any) -> None:
    raise ZeroDivisionError("a mistake of capture's")


FUNCTIONS[mistaken] = _mistake

def looks_at_its_frame(x: torch.Tensor) -> Any:  # here
    return x + 1, locals()


PROGRAMS["not_captured"] = looks_at_its_frame


@functools.lru_cache
def remembers(thing: Any) -> Any:
    return [thing]


@reaches("cached_function")
def asks_a_cache_for_an_object(x: torch.Tensor) -> Any:
    return x + 1, remembers(x)  # here


LIBRARY = torch.library.Library("fxloom_catalogue", "DEF")
LIBRARY.define("shapeless(Tensor x) -> Tensor")
LIBRARY.impl("shapeless", lambda x: x.clone(), "CPU")
shapeless = torch.ops.fxloom_catalogue.shapeless
LIBRARY.define("pessimist(Tensor x) -> Tensor")
LIBRARY.impl("pessimist", lambda x: x.clone(), "CPU")
pessimist = torch.ops.fxloom_catalogue.pessimist


@torch.library.register_fake("fxloom_catalogue::pessimist")
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("a fake that is wrong")


@reaches("operator_raises")
def handles_what_only_the_fake_raises(x: torch.Tensor) -> Any:
    try:
        y = pessimist(x + 1)  # here
    except RuntimeError:
        y = x - 1000
    return y * 2


def first_break(key: str) -> str:
    program = PROGRAMS[key]
    sys.modules.pop("stringprep", None)
    backend = rejecting if key == "backend_rejected" else None
    compiled = compile_callable(program, CaptureConfig(backend=backend, fullgraph=True))
    with pytest.raises(Unsupported) as caught:
        compiled(torch.ones(2, 2))
    return str(caught.value)


def test_every_key_has_a_program() -> None:
    # these are reached by later calls, or after another break, only
    assert sorted([*PROGRAMS, "interrupted_loop", "specialized", "uninitialized"]) == sorted(CATALOGUE)


def test_a_loop_that_a_break_interrupts_says_so() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for number in range(4):  # here
            x = x + number
            graph_break()
        return x

    events: list[telemetry.Event] = []
    with telemetry.listen(events.append):
        assert optimize()(program)(torch.zeros(1)).item() == 6
    broke = [event for event in events if isinstance(event, telemetry.GraphBroke) and event.key != "asked_for"]
    assert {event.key for event in broke} == {"interrupted_loop"}
    assert all("range_iterator" in event.details and "# here" in str(event.site.code) for event in broke if event.site is not None)


def test_a_number_that_an_operator_insists_on_is_named() -> None:
    def program(x: torch.Tensor, p: int) -> torch.Tensor:
        return x.sum(p - 5) + p  # here

    events: list[telemetry.Event] = []
    with telemetry.listen(events.append):
        compiled = optimize()(program)
        for p in (5, 6, 4, 3):
            compiled(torch.zeros(3, 3), p)
    broke = [event for event in events if isinstance(event, telemetry.GraphBroke)]
    assert [event.key for event in broke] == ["specialized"]
    assert "L['p']" in broke[0].details and broke[0].site is not None and "# here" in str(broke[0].site.code)


def test_a_lazy_module_that_is_never_run_is_named() -> None:
    late = torch.nn.LazyLinear(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + late.weight.requires_grad  # here

    compiled = optimize(fullgraph=True)(program)
    compiled(torch.ones(2))  # runs as it is
    with pytest.raises(Unsupported, match="(?s)^uninitialized: .*weight.*runs for the first time.*# here"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("key", sorted(PROGRAMS))
def test_break_is_reached_and_says_where_and_what_to_do(key: str) -> None:
    text = first_break(key)
    assert text.startswith(key), text
    kind = CATALOGUE[key]
    assert kind.explanation in text and kind.hint in text
    assert __file__ in text, text
    lines = Path(__file__).read_text(encoding="utf-8").split("\n")
    start = PROGRAMS[key].__code__.co_firstlineno - 1
    number = next(at for at in range(start, len(lines)) if lines[at].endswith("# here")) + 1
    assert f":{number}" in text or f"line {number}" in text, text
    assert lines[number - 1].split("  #")[0].strip() in text, text


@pytest.mark.parametrize("key", ["asked_for", "data_dependent", "dict_key", "finalizer", "opaque_object"])
def test_program_with_the_break_does_what_eager_does(key: str) -> None:
    x = torch.ones(2, 2)
    assert torch.equal(optimize()(PROGRAMS[key])(x), PROGRAMS[key](x))


def test_a_break_within_a_library_names_the_programs_line() -> None:
    def program(x: torch.Tensor) -> Any:
        return copy.deepcopy(x + 1)  # here

    with pytest.raises(Unsupported, match="(?s)copy.deepcopy of a Tensor.*test_break_catalogue.py.*# here"):
        optimize(fullgraph=True)(program)(torch.ones(1))
