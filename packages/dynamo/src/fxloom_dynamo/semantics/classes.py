"""Classes defined inside the captured region, and other code that runs in a namespace (`exec`, `eval`).

In: the arguments of `__build_class__`, of `type.__new__`, or of `exec` and `eval`. Out: the class, or what the code gives. A
class body is evaluated like a function, its names in the namespace that the metaclass prepared; the class is then really made,
once per capture. It is fresh: its attributes are read and written directly, and what leaves the frame can't refer to it (a call
has to make its own), which is a break at the definition.
"""

from __future__ import annotations

import builtins
import inspect
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter import special_methods
from fxloom_dynamo.interpreter.frame import Frame
from fxloom_dynamo.interpreter.frame_locals import snapshot
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.semantics import binding, subscripts

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]


def build_class(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> Any:
    """builtins.__build_class__(body, name, *bases, metaclass=..., **keywords)"""
    body, name, *given = args
    if not isinstance(body, types.FunctionType):
        return ev.native(builtins.__build_class__, *args, **kwargs)
    bases = _resolve_bases(ev, given)
    keywords = dict(kwargs)
    meta = keywords.pop("metaclass", ABSENT)
    if meta is ABSENT:
        meta = type(bases[0]) if bases else type
    if isinstance(meta, type):
        meta = winner(meta, bases)
    prepare = ev.getattr_or(meta, "__prepare__", ABSENT)
    namespace = {} if prepare is ABSENT or meta is type else ev.call(prepare, [name, bases], dict(keywords))
    if not hasattr(type(namespace), "__getitem__"):
        owner = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        raise Raised(TypeError(f"{owner}.__prepare__() must return a mapping, not {ev.type_of(namespace).__name__}"))
    cell = run_in_namespace(ev, body.__code__, body, body.__globals__, binding.closure_of(ev, body), namespace)
    if bases != tuple(given):
        subscripts.store_subscript(ev, namespace, "__orig_bases__", tuple(given))
    cls = ev.call(meta, [name, bases, namespace], keywords)
    if isinstance(cls, type) and isinstance(cell, types.CellType):
        content = ev.heap.cell_get(cell)
        if content is ABSENT:
            raise Raised(RuntimeError(f"__class__ not set defining {name!r} as {cls!r}. Was __classcell__ propagated to type.__new__?"))
        if content is not cls:
            raise Raised(TypeError(f"__class__ set to {content!r} defining {name!r} as {cls!r}"))
    return cls


def winner(meta: type, bases: tuple[Any, ...]) -> type:
    """The most derived metaclass; TypeError if there is none."""
    for base in bases:
        other = type(base)
        if issubclass(meta, other):
            continue
        if issubclass(other, meta):
            meta = other
            continue
        raise Raised(
            TypeError(
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses of all "
                "its bases"
            )
        )
    return meta


def _resolve_bases(ev: Interpreter, given: list[Any]) -> tuple[Any, ...]:
    bases: list[Any] = []
    for base in given:
        if isinstance(base, type):
            bases.append(base)
            continue
        entries = ev.getattr_or(base, "__mro_entries__", ABSENT)
        if entries is ABSENT:
            bases.append(base)
            continue
        found = ev.call(entries, [tuple(given)])
        if not isinstance(found, tuple):
            raise Raised(TypeError("__mro_entries__ must return a tuple"))
        bases.extend(found)
    return tuple(bases)


def make_class(ev: Interpreter, meta: type, args: list[Any], kwargs: Kwargs) -> Any:
    """type.__new__(meta, name, bases, namespace, **keywords)"""
    if len(args) != 3:
        return ev.native(type.__new__, meta, *args, **kwargs)
    name, bases, namespace = args
    if not isinstance(bases, tuple) or not isinstance(namespace, dict) or not isinstance(name, str):
        return ev.native(type.__new__, meta, name, bases, namespace, **kwargs)
    heap = ev.heap
    heap.fill(namespace)
    for base in bases:
        if isinstance(base, type):
            heap.class_lookup(base, "__init_subclass__")
    for value in dict.values(namespace):
        special_methods.python_method(ev, value, "__set_name__")
    outer, heap.making = heap.making, (name, bases)
    try:
        cls = ev.native(type.__new__, meta, name, bases, namespace, **kwargs)
    finally:
        heap.making = outer
    return heap.add_fresh(cls)


def run_in_namespace(
    ev: Interpreter,
    code: types.CodeType,
    function: types.FunctionType | None,
    global_names: dict[str, Any],
    closure: tuple[types.CellType, ...],
    names: Any,
) -> Any:
    """Evaluate code that keeps its variables in the mapping `names`; what it returns."""
    frame = Frame(code, function, global_names, closure, {}, 0)
    frame.names = names
    return ev.run(frame)


def run_code(ev: Interpreter, code: types.CodeType, args: list[Any], kind: str) -> Any:
    """exec(code, globals, locals) and eval(...)."""
    frame = ev.frames[-1]
    global_names = args[0] if args and args[0] is not None else None
    names = args[1] if len(args) > 1 and args[1] is not None else None
    if code.co_freevars or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        graph_break("native_call", f"{kind} of code with free variables or that suspends")
    if global_names is None:
        if names is None:
            names = snapshot(ev, frame)
        global_names = frame.globals
    else:
        if type(global_names) is not dict:
            raise Raised(TypeError(f"{kind}() globals must be a dict, not {ev.type_of(global_names).__name__}"))
        if ev.heap.record(global_names) is not None:
            graph_break("native_call", f"{kind} with a namespace that existed before")
        if id(global_names) not in ev.heap.namespaces:  # the program's own dict
            builtin_names = global_names.setdefault("__builtins__", frame.builtins)
            ev.heap.own_namespace(global_names)
            if type(builtin_names) is dict and builtin_names is not frame.builtins:
                ev.heap.own_namespace(builtin_names)
        if names is None:
            names = global_names
    return run_in_namespace(ev, code, None, global_names, (), names)
