"""Functions that replacement code calls: to make objects again, and to write to the real heap what the program changed.

In: real objects and constants, from the replacement code's stack. Out: the object made, or the real one changed.

They run once the graph has, on real objects. Writes go below the program's own methods (`__setattr__`, `__setitem__`):
those ran while capturing.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import Any

from fxloom_dynamo.objects.sentinels import own_dict
from fxloom_dynamo.objects.value_types import container_base
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import FxloomError, Site


def write_list(target: list[Any], items: list[Any]) -> None:
    list.__setitem__(target, slice(None), items)


def add_items(target: list[Any] | deque[Any], items: list[Any]) -> None:
    (list if isinstance(target, list) else deque).extend(target, items)  # type: ignore[arg-type]  # the class of the target


def write_set(target: set[Any], items: list[Any]) -> None:
    set.clear(target)
    set.update(target, items)


def write_deque(target: deque[Any], items: list[Any]) -> None:
    deque.clear(target)
    deque.extend(target, items)


def write_dict(target: dict[Any, Any], removed: tuple[Any, ...], changed: dict[Any, Any]) -> None:
    """Old keys keep their places, new ones follow in order."""
    base = _dict_base(target)
    for key in removed:
        base.__delitem__(target, key)
    for key, value in changed.items():
        base.__setitem__(target, key, value)


def write_dict_in_order(target: dict[Any, Any], order: tuple[Any, ...], changed: dict[Any, Any]) -> None:
    base = _dict_base(target)
    old = {key: dict.__getitem__(target, key) for key in dict.keys(target)}
    base.clear(target)
    for key in order:
        base.__setitem__(target, key, changed[key] if key in changed else old[key])


def _dict_base(target: dict[Any, Any]) -> Any:
    return container_base(type(target))


def write_slot(target: Any, slot: Any, value: Any) -> None:
    slot.__set__(target, value)


def write_cell(cell: types.CellType, value: Any) -> None:
    cell.cell_contents = value


def clear_cell(cell: types.CellType) -> None:
    del cell.cell_contents


def write_class(cls: type, name: str, value: Any) -> None:
    type.__setattr__(cls, name, value)


def delete_class(cls: type, name: str) -> None:
    type.__delattr__(cls, name)


def new_instance(cls: type, base: type, args: tuple[Any, ...]) -> Any:
    """An instance without running the program's `__new__` or `__init__`."""
    return base.__new__(cls, *args)


def new_exception(cls: type, base: type, made_of: tuple[Any, ...], args: tuple[Any, ...], state: tuple[Any, ...]) -> Any:
    """An exception without running the program's code; base: the class written in C whose layout it has.

    made_of: arguments of its `__new__`. args: the exception's own. state: (descriptor, value, ...) of what C code keeps
    beside them, such as `OSError.filename`.
    """
    exc = base.__new__(cls, *made_of)
    exc.args = args
    for at in range(0, len(state), 2):
        state[at].__set__(exc, state[at + 1])
    return exc


def reruns(error: BaseException) -> bool:
    """Whether the function runs from its start after a graph of it raised this: no interrupt, no refusal of fxloom."""
    if not isinstance(error, Exception) or isinstance(error, FxloomError):
        return False
    telemetry.emit(telemetry.GraphRaised(describe_exception(error)))
    return True


def describe_exception(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class EagerDidNotRaise:
    """Is called when a function returns that ran from its start since its graph had raised, if nothing raised this time.

    Results are eager's, but every such call runs both; the warning says so once.
    """

    def __init__(self, site: Site) -> None:
        """site: of the function."""
        self.site = site
        self.warned = False

    def __call__(self, raised: str) -> None:
        """raised: by the graph, in words; empty where the program has handled an exception, which it may have been."""
        if not raised:
            return
        cause = f"its graph raised what eager did not: {raised}"
        if self.warned:
            telemetry.emit(telemetry.RanEager("graph_alone_raised", cause, self.site))
            return
        self.warned = True
        place = f"{self.site.function} ({self.site.file}:{self.site.line})"
        text = f"fxloom runs {place} in eager after its graph, at every call like this one: {cause}"
        telemetry.ran_eager("graph_alone_raised", cause, text, self.site)


def fill_instance(obj: Any, attributes: dict[str, Any] | None, slots: tuple[Any, ...], contents: Any) -> None:
    """slots: (descriptor, value, ...). contents: of the builtin container that the class derives from, or None."""
    if attributes is not None:
        own_dict(obj).update(attributes)
    for at in range(0, len(slots), 2):
        slots[at].__set__(obj, slots[at + 1])
    if contents is None:
        return
    if isinstance(obj, dict):
        base = _dict_base(obj)
        for key, value in contents.items():
            base.__setitem__(obj, key, value)
    elif isinstance(obj, list):
        list.extend(obj, contents)
    elif isinstance(obj, set):
        set.update(obj, contents)
    else:
        deque.extend(obj, contents)


def new_function(
    code: types.CodeType, global_names: dict[str, Any], closure: tuple[types.CellType, ...] | None, state: dict[str, Any]
) -> types.FunctionType:
    """A function without state; `fill_function` follows, since defaults and attributes may refer to the function."""
    return types.FunctionType(code, global_names, state["__name__"], None, closure)


def fill_function(fn: types.FunctionType, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(fn, name, value)


def call_reduced(function: Callable[..., Any], args: tuple[Any, ...], state: Any, has_state: bool) -> Any:
    """An iterator or other C object, from what its `__reduce__` says."""
    obj = function(*args)
    if has_state:
        obj.__setstate__(state)
    return obj


def set_state(iterator: Any, state: Any) -> None:
    """Put an iterator of a list where the program had it, now that the list is as the program left it."""
    iterator.__setstate__(state)


def finished_generator() -> Any:
    """A generator that has ended."""
    generator: Any = (item for item in "")
    generator.close()
    return generator
