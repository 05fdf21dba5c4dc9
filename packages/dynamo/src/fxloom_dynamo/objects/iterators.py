"""Iterators that the program made before the frame, or before a break: where they are, what stands in for them, and how
the real ones catch up.

In: an iterator of a builtin kind. Out: its `state`, a constant that says how far it is, and its `parts`, the objects that
it goes over; `proxy_of` makes an iterator of the same kind over other parts. Asking changes nothing and runs no code of the
program's. Generators, `map`, `filter` and itertools are not here: they run code of the program's, or can't say where they are.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

#: index into a sequence; None at the end
_INDEXED: dict[type, Callable[[Any], Any]] = {
    type(iter([])): list.__iter__,
    type(iter(())): tuple.__iter__,
    type(reversed([])): list.__reversed__,
    reversed: reversed,
}
#: what is left is a constant; of each kind, one that goes over nothing
_CONSTANT: dict[type, Callable[[], Any]] = {
    type(iter(range(0))): lambda: iter(range(0)),
    type(iter(range(1 << 70))): lambda: iter(range(1 << 70, 1 << 70)),
    type(iter("")): lambda: iter(""),
    type(iter("é")): lambda: iter("é"),
    type(iter(b"")): lambda: iter(b""),
}


def is_readable(iterator: Any) -> bool:
    """True for iterators that this module knows, all the way down."""
    kind = type(iterator)
    if kind in _CONSTANT:
        return type(proxy_of(iterator, ())) is kind
    if kind in _INDEXED:
        return kind is not reversed or all(type(over) is tuple for over in _over(iterator))
    if kind.__name__ in ITERATORS and kind.__name__ != "set_iterator":
        return _is_sound(iterator)
    return (kind is enumerate or kind is zip) and all(map(is_readable, parts(iterator)))


def parts(iterator: Any) -> tuple[Any, ...]:
    """The objects that it goes over; none at its end, and none for constants."""
    kind = type(iterator)
    if kind in _INDEXED:
        return _over(iterator)
    if kind is enumerate:
        return (iterator.__reduce__()[1][0],)
    if kind is zip:
        return tuple(iterator.__reduce__()[1])
    return _dicts(iterator)


@functools.cache
def part(index: int) -> Callable[[Any], Any]:
    """What gives one of the parts."""
    return lambda iterator: parts(iterator)[index]


def state(iterator: Any) -> Any:
    """A constant: how far it is. None: it has ended."""
    kind = type(iterator)
    if kind in _INDEXED:
        reduced = iterator.__reduce__()
        return reduced[2] if len(reduced) > 2 else None
    if kind is enumerate:
        return iterator.__reduce__()[1][1]
    if kind is zip:
        return len(iterator.__reduce__()) > 2  # strict
    if kind in _CONSTANT:
        return _rest(iterator)
    if not _is_sound(iterator):
        return -1  # no place that a proxy could be at
    over = _dicts(iterator)
    return len(over[0]) - iterator.__length_hint__() if over else None


def goes_over_dict(iterator: Any) -> bool:
    """True for an iterator of a dict's, and for one that goes over such an iterator."""
    if type(iterator) is enumerate or type(iterator) is zip:
        return any(map(goes_over_dict, parts(iterator)))
    return type(iterator).__name__ in ITERATORS


def proxy_of(iterator: Any, over: tuple[Any, ...]) -> Any:
    """An iterator of the same kind and state over other parts."""
    kind, now = type(iterator), state(iterator)
    if kind is enumerate:
        return enumerate(over[0], now)
    if kind is zip:
        return zip(*over, strict=now)
    if now is None:
        return _ended(kind)
    if kind in _CONSTANT:
        return iter(range(*now)) if isinstance(now, tuple) else iter(now)
    if kind not in _INDEXED:
        return iterator_at(kind.__name__, over[0], now)
    made = _INDEXED[kind](over[0])
    made.__setstate__(now)
    return made


def catch_up(iterator: Iterator[Any], wanted: Any) -> None:
    """Advance a real iterator to the state that its proxy came to. Nested ones: from the outermost in."""
    if type(iterator) in _INDEXED and wanted is not None:
        iterator.__setstate__(wanted)  # type: ignore[attr-defined]
        return
    for _ in range(wanted - state(iterator) if type(iterator) is enumerate else 0):
        next(iterator, None)
    while state(iterator) != wanted:
        try:
            next(iterator)
        except StopIteration:
            return


def _over(iterator: Any) -> tuple[Any, ...]:
    reduced = iterator.__reduce__()
    return reduced[1] if len(reduced) > 2 else ()


def _dicts(iterator: Any) -> tuple[Any, ...]:
    """The dict that an iterator of its keys, values or items goes over."""
    if type(iterator).__name__ not in ITERATORS:
        return ()
    return tuple(held for held in gc.get_referents(iterator) if isinstance(held, dict))[:1]


def _is_sound(iterator: Any) -> bool:
    """False when keys of the dict have changed meanwhile: an item to come is an error."""
    over = _dicts(iterator)
    try:
        return not over or type(over[0]) is dict and len(iterator.__reduce__()[1][0]) == iterator.__length_hint__()
    except RuntimeError:
        return False


def _rest(iterator: Any) -> Any:
    """What is left of a range, as its arguments, or of a text."""
    reduced = iterator.__reduce__()
    over = reduced[1][0] if reduced[1] else ""
    given = reduced[2] if len(reduced) > 2 and reduced[2] is not None else 0
    rest = over[given:]
    if isinstance(rest, tuple):
        return None
    return (rest.start, rest.stop, rest.step) if isinstance(rest, range) else rest


def _ended(kind: type) -> Any:
    if kind in _INDEXED:
        iterator: Any = _INDEXED[kind]([] if kind in (type(iter([])), type(reversed([]))) else ())
    else:
        iterator = _CONSTANT[kind]() if kind in _CONSTANT else ITERATORS[kind.__name__]({})
    for _ in iterator:
        pass
    return iterator


#: by name of the type: what makes one
ITERATORS: dict[str, Callable[[Any], Any]] = {
    "dict_keyiterator": dict.__iter__,
    "dict_valueiterator": lambda container: iter(dict.values(container)),
    "dict_itemiterator": lambda container: iter(dict.items(container)),
    "set_iterator": set.__iter__,
}


def iterator_at(kind: str, container: Any, given: int) -> Any:
    """An iterator of a dict or set that has given some of its items."""
    iterator = ITERATORS[kind](container)
    for _ in range(given):
        next(iterator)
    return iterator


#: names of the types of iterators that can be made again
REBUILT = frozenset(
    {"list_iterator", "tuple_iterator", "range_iterator", "longrange_iterator", "str_iterator", "str_ascii_iterator",
     "bytes_iterator", "list_reverseiterator", "reversed", "enumerate", "zip", "dict_keyiterator", "dict_valueiterator",
     "dict_itemiterator", "set_iterator", "odict_iterator", "_deque_iterator", "callable_iterator"}
)  # fmt: skip
