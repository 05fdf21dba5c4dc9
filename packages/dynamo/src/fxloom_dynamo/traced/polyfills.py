"""Builtins written as plain Python, for the evaluator to trace when C code could not see what the program does.

In: the arguments of the builtin that a function replaces. Out: the same result, exceptions and order of calls of the program's methods.
Invariant: nothing here runs for real while capturing; each function is inlined like one of the program's, and so may use only what the
evaluator knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MISSING = object()


def iterate_by_index(sequence: Any) -> Iterator[Any]:
    index = 0
    while True:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def reverse_by_index(sequence: Any) -> Iterator[Any]:
    index = len(sequence)
    while index > 0:
        index -= 1
        yield sequence[index]


def iterate_until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    while True:
        item = function()
        if item == sentinel:
            return
        yield item


def map_(function: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
    if len(iterables) == 1:
        for item in iterables[0]:
            yield function(item)
    else:
        for items in zip(*iterables):  # map stops at the shortest
            yield function(*items)


def filter_(function: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if item if function is None else function(item):
            yield item


def any_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110  # this is what any() is made of
        if item:
            return True
    return False


def all_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110  # this is what all() is made of
        if not item:
            return False
    return True


def sum_(iterable: Iterable[Any], start: Any = 0) -> Any:
    for item in iterable:
        start = start + item
    return start


def _best(better: Callable[[Any, Any], Any], name: str, args: tuple[Any, ...], key: Any, default: Any) -> Any:
    if len(args) == 1:
        items = iter(args[0])
    else:
        if default is not _MISSING:
            raise TypeError(f"Cannot specify a default for {name}() with multiple positional arguments")
        items = iter(args)
    best = best_key = _MISSING
    for item in items:
        item_key = item if key is None else key(item)
        if best is _MISSING or better(item_key, best_key):
            best, best_key = item, item_key
    if best is _MISSING:
        if default is _MISSING:
            raise ValueError(f"{name}() iterable argument is empty")
        return default
    return best


def max_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(lambda a, b: a > b, "max", args, key, default)


def min_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(lambda a, b: a < b, "min", args, key, default)


def reduce_(function: Callable[[Any, Any], Any], iterable: Iterable[Any], initial: Any = _MISSING) -> Any:
    items = iter(iterable)
    if initial is _MISSING:
        try:
            value = next(items)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    else:
        value = initial
    for item in items:
        value = function(value, item)
    return value


class _Keyed:
    """An item under its key; sorting asks for `<` only."""

    __slots__ = ("item", "key")

    def __init__(self, key: Any, item: Any) -> None:
        self.key = key
        self.item = item

    def __lt__(self, other: _Keyed) -> Any:
        return self.key < other.key


def sort_list(target: list[Any], key: Callable[[Any], Any], reverse: bool) -> None:
    """list.sort with a key. The list is empty meanwhile, as in CPython."""
    items = target[:]
    target.clear()
    try:
        keyed = [_Keyed(key(item), item) for item in items]
        keyed.sort(reverse=reverse)
        items = [entry.item for entry in keyed]
    finally:
        changed = len(target) > 0
        target[:] = items
    if changed:
        raise ValueError("list modified during sort")


def groupby_(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    group: list[Any] = []
    group_key = _MISSING
    for item in iterable:
        item_key = item if key is None else key(item)
        if group_key is _MISSING or item_key == group_key:
            group.append(item)
        else:
            yield group_key, iter(group)
            group = [item]
        group_key = item_key
    if group_key is not _MISSING:
        yield group_key, iter(group)


def accumulate_(iterable: Iterable[Any], func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    items = iter(iterable)
    total = initial
    if initial is None:
        for first in items:
            total = first
            break
        else:
            return
    yield total
    for item in items:
        total = total + item if func is None else func(total, item)
        yield total


def starmap_(function: Callable[..., Any], iterable: Iterable[Any]) -> Iterator[Any]:
    for items in iterable:
        yield function(*items)


def takewhile_(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


def dropwhile_(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    items = iter(iterable)
    for item in items:
        if not predicate(item):
            yield item
            break
    yield from items


def filterfalse_(predicate: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not (item if predicate is None else predicate(item)):
            yield item


def dict_update(target: dict[Any, Any], *args: Any, **kwargs: Any) -> None:
    """dict.update for arguments that are no plain dicts."""
    for other in args:
        if hasattr(other, "keys"):
            for key in other.keys():  # noqa: SIM118  # the mapping protocol is keys() and []
                target[key] = other[key]
        else:
            for key, value in other:
                target[key] = value
    for key, value in kwargs.items():
        target[key] = value


def _namespace_get(names: dict[str, Any], name: str, default: Any = None) -> Any:
    return names[name] if name in names else default  # noqa: SIM401  # what get() is made of


def _namespace_setdefault(names: dict[str, Any], name: str, default: Any = None) -> Any:
    if name not in names:
        names[name] = default
    return names[name]


def _namespace_pop(names: dict[str, Any], name: str, *default: Any) -> Any:
    if name not in names and default:
        return default[0]
    value = names[name]
    del names[name]
    return value


def _namespace_update(names: dict[str, Any], *others: Any, **named: Any) -> None:
    added: dict[str, Any] = {}
    added.update(*others, **named)
    for name, value in added.items():
        names[name] = value


#: methods of a module's dict held as an object
NAMESPACE_METHODS: dict[str, Any] = {
    "get": _namespace_get, "setdefault": _namespace_setdefault, "pop": _namespace_pop, "update": _namespace_update,
}  # fmt: skip


def pass_through(iterator: Iterator[Any]) -> Iterator[Any]:
    """A generator over an iterator whose `__next__` is Python code, so that C code can iterate it."""
    for item in iterator:  # noqa: UP028  # `yield from` would hand over the very iterator
        yield item


def update_with_wide_steps(update: Callable[..., None], at: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An optimizer's update whose step counts (argument `at`) stay tensors; in float64, as the numbers are in eager."""
    steps = args[at]
    wide = [step.double() for step in steps]
    update(*args[:at], wide, *args[at + 1 :], **{**kwargs, "capturable": True})
    for step, counted in zip(steps, wide, strict=True):
        step.copy_(counted)


class UnseenLabel:
    """`torch.autograd.profiler.record_function` while no profiler runs."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args

    def __enter__(self) -> UnseenLabel:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing was begun."""


class IdleBackwardHook:
    """`torch.utils.hooks.BackwardHook` where nothing requires grad."""

    def __init__(self, module: Any, user_hooks: Any, user_pre_hooks: Any) -> None:
        """There is nothing to keep."""

    def setup_input_hook(self, args: Any) -> Any:
        return args

    def setup_output_hook(self, args: Any) -> Any:
        return args


class WithoutOverrides:
    """`torch._C.DisableTorchFunctionSubclass`"""

    def __enter__(self) -> None:
        enter_plain()

    def __exit__(self, *exc: object) -> None:
        leave_plain()


class InferenceMode:
    """`torch._C._InferenceMode`"""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.before: Any = None

    def __enter__(self) -> None:
        self.before = enter_inference(self.mode)

    def __exit__(self, *exc: object) -> None:
        leave_inference(self.before)


def enter_inference(mode: bool) -> Any:
    """Modelled: the beginning of a region in inference mode; what `leave_inference` needs."""
    raise NotImplementedError


def leave_inference(before: Any) -> None:
    """Modelled: the end of it."""
    raise NotImplementedError


def enter_plain() -> None:
    """Modelled: from here on no class overrides torch functions."""
    raise NotImplementedError


def leave_plain() -> None:
    """Modelled: the end of what `enter_plain` began."""
    raise NotImplementedError


class FunctionContext:
    """`ctx` of a custom autograd function while it is evaluated: keeps what it is given."""

    needs_input_grad: tuple[bool, ...]
    materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.saved_for_forward = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """A graph break: see `models`."""

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def deepcopy(value: Any, known: list[tuple[Any, Any]] | None = None) -> Any:
    """copy.deepcopy, its memo kept by identity without asking for addresses."""
    if known is None:
        known = []
    for old, new in known:
        if old is value:
            return new
    kind: Any = type(value)
    if value is None or kind in (int, float, bool, complex, str, bytes, type, range) or isinstance(value, type) or callable_atom(value):
        return value
    if kind is tuple:
        items = [deepcopy(item, known) for item in value]
        return value if all(new is old for new, old in zip(items, value)) else tuple(items)
    if kind is list:
        copied: Any = []
        known.append((value, copied))
        for item in value:
            copied.append(deepcopy(item, known))
        return copied
    if kind is dict:
        copied = {}
        known.append((value, copied))
        for key, item in value.items():
            copied[deepcopy(key, known)] = deepcopy(item, known)
        return copied
    if hasattr(kind, "__deepcopy__") or hasattr(kind, "__reduce__") and kind.__reduce__ is not object.__reduce__:
        return refuse_copy(value)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or hasattr(kind, "__getstate__") and kind.__getstate__ is not object.__getstate__:
        return refuse_copy(value)
    if hasattr(kind, "__setstate__") or not is_plain_instance(value):
        return refuse_copy(value)
    copied = kind.__new__(kind)
    known.append((value, copied))
    for key, item in value.__dict__.items():
        copied.__dict__[key] = deepcopy(item, known)
    return copied


def callable_atom(value: Any) -> bool:
    """Modelled: functions, enum members, dtypes and the like are their own copies."""
    raise NotImplementedError


def refuse_copy(value: Any) -> Any:
    """Modelled: a graph break."""
    raise NotImplementedError


def is_plain_instance(value: Any) -> bool:
    """Modelled: an instance of a Python class whose state is its `__dict__`."""
    raise NotImplementedError


def transformed(run: Callable[..., Any], transform: Callable[..., Any], function: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """What a transform of `torch.func` returns."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return run(transform, function, options, args, kwargs)

    return wrapper


def pulled_back(pull: Callable[..., Any], function: Any, primals: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The second result of `torch.func.vjp`."""

    def vjp_function(*cotangents: Any) -> Any:
        return pull(function, primals, options, cotangents)

    return vjp_function


def cached_property_get(prop: Any, instance: Any, owner: Any = None) -> Any:
    """functools.cached_property.__get__ as it is from CPython 3.12 on: without a lock of the class around the function."""
    if instance is None:
        return prop
    if prop.attrname is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    try:
        cache = instance.__dict__
    except AttributeError:
        message = f"No '__dict__' attribute on {type(instance).__name__!r} instance to cache {prop.attrname!r} property."
        raise TypeError(message) from None
    value = cache.get(prop.attrname, _MISSING)
    if value is _MISSING:
        value = prop.func(instance)
        cache[prop.attrname] = value
    return value


def dispatching_method(prop: Any, obj: Any, cls: Any = None) -> Any:
    """functools.singledispatchmethod.__get__ of CPython 3.13 without its cache by weak references to objects."""

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            name = getattr(prop.func, "__name__", "singledispatchmethod method")
            raise TypeError(f"{name} requires at least 1 positional argument")
        return prop.dispatcher.dispatch(args[0].__class__).__get__(obj, cls)(*args, **kwargs)

    method.__isabstractmethod__ = prop.__isabstractmethod__  # type: ignore[attr-defined]  # functions take attributes
    method.register = prop.register  # type: ignore[attr-defined]
    functools.update_wrapper(method, prop.func)
    return method


def dispatch_on_class(registry: Any, find: Callable[..., Any], cls: Any) -> Any:
    """The function `dispatch` inside of functools.singledispatch, without its cache."""
    if cls in registry:
        return registry[cls]
    return find(cls, registry)


def show(function: Callable[[Any], str], value: Any) -> str:
    """A `__repr__` that stops at itself: its frame says that `value` is being shown."""
    return function(value)


def assert_(condition: Any, message: Any) -> None:
    """`torch._assert`"""
    if not condition:
        raise AssertionError(message)
