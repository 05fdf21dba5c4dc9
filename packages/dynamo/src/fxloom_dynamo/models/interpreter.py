"""Models of what belongs to the interpreter: compiled text, frames, imports, its settings, output, pickles.

In: the evaluator and the arguments of the call. Out: what the call returns, or its exception as `Raised`; what the answer depends on is
guarded. The real function is not called where it would see a proxy or a fake for what it is. `load_all` imports this module, which fills
the tables of `interpreter.model_tables`.
"""

from __future__ import annotations
import __future__

import _pickle
import _warnings
import builtins
import contextvars
import functools
import gc
import logging
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter import frame_locals
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS, METHODS, Args, Kwargs, function
from fxloom_dynamo.objects.sentinels import FrameObject, Raised
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import c_calls, classes, context_variables, output, program_warnings
from fxloom_interfaces.replayer import begin_step
from fxloom_interfaces.sources import CallSource, Source

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


#: flags of code that `from __future__ import ...` sets and that compile() inherits
_FUTURE = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)) & ~0x10


@function(builtins.input, builtins.open, builtins.breakpoint)
def _unsupported(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    graph_break("native_call", "input, open or breakpoint")


@function(builtins.compile)
def _compile(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args or type(args[0]) not in (str, bytes):
        graph_break("native_call", "compile() of what is no text")
    kwargs.setdefault("dont_inherit", True)  # the evaluator's own future statements are not the program's
    future = ev.frames[-1].code.co_flags & _FUTURE
    if len(args) < 4:
        kwargs["flags"] = kwargs.get("flags", 0) | future
    return ev.native(compile, *args, **kwargs)


@function(builtins.exec)
def _exec(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    _run_text(ev, args, kwargs, "exec")


@function(builtins.eval)
def _eval(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _run_text(ev, args, kwargs, "eval")


def _run_text(ev: Interpreter, args: Args, kwargs: Kwargs, kind: str) -> Any:
    if not args or kwargs:
        graph_break("native_call", f"{kind} with keywords")
    code, *rest = args
    if type(code) in (str, bytes):
        text = code.lstrip(" \t" if type(code) is str else b" \t") if kind == "eval" else code
        flags = ev.frames[-1].code.co_flags & _FUTURE
        code = ev.native(compile, text, "<string>", kind, flags=flags, dont_inherit=True)
    if not isinstance(code, types.CodeType):
        return ev.native(exec if kind == "exec" else eval, code, {})  # raises
    return classes.run_code(ev, code, rest, kind)


@function(builtins.locals, arity=(0, 0))
def _locals(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return frame_locals.snapshot(ev, ev.frames[-1])


@function(builtins.globals)
def _globals(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.heap.expose(ev.global_namespace(ev.frames[-1]))


@function(sys._getframe, arity=(0, 1))
def _getframe(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    depth = len(ev.frames) - 1 - (args[0] if args else 0)
    if depth < 0 or not all(type(arg) is int and arg >= 0 for arg in args):
        graph_break("opaque_object", "a frame outside of the compiled region")
    return FrameObject(ev.frames[depth], depth)


@function(gc.collect)
def _collect(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    """Weak references and finalizers are breaks, so nothing in the program sees when garbage goes, nor how much there was."""
    ev.delayed.after_effects.append((gc.collect, tuple(args)))
    return 0


_FILTERS_MUTATED = getattr(_warnings, "_filters_mutated")  # noqa: B009  # the stubs lack it


@function(_FILTERS_MUTATED, arity=(0, 0))
def _filters_mutated(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.delayed.after_effects.append((_FILTERS_MUTATED, ()))


@function(_pickle.dumps)
def _dumps(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    for arg in (*args, *kwargs.values()):
        c_calls.check_reducible(ev, arg)
    return ev.native(_pickle.dumps, *args, **kwargs)


@function(_pickle.loads)
def _loads(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return c_calls.own_deep(ev, ev.native(_pickle.loads, *args, **kwargs))


def _setting(read: Callable[[], Any]) -> None:
    """A setting of the interpreter: read while capturing, and guarded."""

    def getter(_: Any) -> Any:
        return read()

    @function(read, arity=(0, 0))
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        value = read()
        if type(value) not in LITERALS:
            graph_break("native_call", f"{read.__name__}() while one is set")
        source = CallSource(ev.heap.object_source(read), getter=getter, label=f"{read.__name__}()")
        ev.heap.guard(source, GuardKind.EQUALITY, value)
        return value


for _read in (sys.get_int_max_str_digits, sys.gettrace, sys.getprofile, sys.getrecursionlimit, sys.getswitchinterval):
    _setting(_read)

METHODS[contextvars.ContextVar, "get"] = context_variables.get
METHODS[contextvars.ContextVar, "set"] = context_variables.put
METHODS[contextvars.ContextVar, "reset"] = context_variables.reset
FUNCTIONS[builtins.print] = output.print_
FUNCTIONS[begin_step] = lambda ev, args, kwargs: output.delay(ev, begin_step, args, kwargs)
FUNCTIONS[_warnings.warn] = program_warnings.warn
FUNCTIONS[_warnings.warn_explicit] = program_warnings.warn_explicit
FUNCTIONS[logging.getLogger] = output.get_logger
for _method in output.LOGGER_METHODS:
    FUNCTIONS[_method] = functools.partial(output.log, _method)


@function(builtins.__import__)
def _import(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return import_module(ev, *args)


def import_module(ev: Interpreter, name: str, global_names: Any = None, _: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """An import statement whose module is loaded already."""
    if level:
        package = global_names["__package__"] or global_names["__name__"].rpartition(".")[0]
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        name = f"{base}.{name}" if name else base
        if name not in sys.modules:
            graph_break("import", name)
    else:
        if name not in sys.modules:
            found = _find_spec(name)
            if not found:
                ev.heap.guard(_loaded_modules(ev), GuardKind.CONTAINS, (name, False), name)
                raise Raised(ModuleNotFoundError(f"No module named {name!r}", name=name))
            graph_break("import", name)
        name = name if fromlist else name.partition(".")[0]
    module = sys.modules[name]
    ev.heap.guard(ev.heap.key_source(_loaded_modules(ev), name), GuardKind.IDENTITY, module)
    for item in fromlist or ():
        if item != "*" and not hasattr(module, item) and f"{module.__name__}.{item}" not in sys.modules:
            if _find_spec(f"{module.__name__}.{item}"):
                graph_break("import", f"{module.__name__}.{item}")
    return ev.heap.adopt(module)


def _loaded_modules(ev: Interpreter) -> Source:
    return ev.heap.object_source(sys.modules, "sys.modules")


def _find_spec(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False
