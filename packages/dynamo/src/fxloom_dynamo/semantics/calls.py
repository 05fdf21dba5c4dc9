"""What calling something means, by the kind of the callee.

In: the callee and its arguments, as the evaluator holds them. Out: what the call returns, or the program's exception as `Raised`;
GraphBreak where the callee can be neither evaluated nor run safely.

Python functions are inlined, wherever they come from; C functions run when `libraries.pure_functions` knows them to be pure, torch's run
under the recording mode; builtins that call back or look at identities have a model in `models`; the rest is a break.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.directives import directive_for
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter import budget, model_tables
from fxloom_dynamo.interpreter.frame import Frame
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.libraries import files, pure_functions, torch_functions
from fxloom_dynamo.objects import setting_queries
from fxloom_dynamo.objects.sentinels import ABSENT, Raised, RestartCapture
from fxloom_dynamo.objects.value_types import HEAPTYPE, is_plain
from fxloom_dynamo.semantics import cached_functions, type_values
from fxloom_dynamo.semantics.binding import ASYNC, bind_arguments, closure_of
from fxloom_dynamo.semantics.c_calls import call_builtin
from fxloom_dynamo.semantics.construction import call_class
from fxloom_dynamo.semantics.directed_calls import call_as_directed
from fxloom_dynamo.semantics.program_warnings import has_warned
from fxloom_dynamo.symbolic_numbers import registry
from fxloom_dynamo.tensors import numpy_calls
from fxloom_dynamo.traced import polyfills, scans
from fxloom_shapes import DataDependent, FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]

#: the program sets this attribute on functions that are not to be captured
DISABLED = "_fxloom_disabled"


def call(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """fn(*args, **kwargs)"""
    kind = type(fn)
    if kind is types.FunctionType:
        return call_function(ev, fn, args, kwargs)
    if kind is types.MethodType:
        return call(ev, fn.__func__, [fn.__self__, *args], kwargs)
    if isinstance(fn, type):
        return call_class(ev, fn, args, kwargs)
    if kind in _C_FUNCTIONS or issubclass(kind, types.BuiltinFunctionType):
        return call_builtin(ev, fn, args, kwargs)
    if kind in pure_functions.STATEFUL_TYPES and ev.heap.is_fresh(fn) and kind is not functools.partial:
        ev.heap.fill_deep(args)
        if any(type(arg) is FakeTensor for arg in (*args, *kwargs.values())):
            graph_break("native_call", f"a {kind.__qualname__} called on a tensor")
        return ev.native(fn, *args, **kwargs)
    if kind is functools.partial:
        merged = {**fn.keywords, **kwargs}
        return call(ev, fn.func, [*fn.args, *args], merged)
    if kind is functools._lru_cache_wrapper:
        return cached_functions.call(ev, fn, args, kwargs)
    if kind is _native.Uncaptured:
        graph_break("asked_for", f"{getattr(fn, '__qualname__', type(fn.__wrapped__).__qualname__)} is not to be captured")
    if kind is _native.CompiledCallable:  # compiled for itself; here it is part of what is being compiled
        return call(ev, ev.getattr(fn, "__wrapped__"), args, kwargs)
    if kind is staticmethod or kind is classmethod:
        return call(ev, fn.__func__, args, kwargs)
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return ev.torch_native(fn, *args, **kwargs)
    model = model_tables.OBJECT_CALLS.get(kind)
    if model is not None:
        return model(ev, fn, args, kwargs)
    raw = ev.heap.class_lookup(kind, "__call__")
    if isinstance(raw, types.FunctionType):
        return call_function(ev, ev.heap.class_value(kind, "__call__", raw), [fn, *args], kwargs)
    if raw is ABSENT:
        raise Raised(TypeError(f"'{ev.type_of(fn).__name__}' object is not callable"))
    if kind.__flags__ & HEAPTYPE and not isinstance(raw, types.WrapperDescriptorType):
        return call(ev, ev.getattr(fn, "__call__"), args, kwargs)
    graph_break("native_call", f"call of a {kind.__module__}.{kind.__qualname__}")


_C_FUNCTIONS = frozenset(
    {types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType,
     types.ClassMethodDescriptorType}
)  # fmt: skip


# ---------------------------------------------------------------------- Python functions


def call_function(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """A call of a Python function: its model if it has one."""
    directive = directive_for(fn)
    if directive is not None:
        return call_as_directed(ev, fn, directive, args, kwargs)
    model = model_tables.FUNCTIONS.get(fn)
    if model is not None:
        return model(ev, args, kwargs)
    inner = model_tables.INNER.get(fn.__code__) if fn.__code__.co_flags & inspect.CO_NESTED else None
    if inner is not None:
        return inner(ev, fn, args, kwargs)
    return inline_function(ev, fn, args, kwargs)


def call_bound(ev: Interpreter, fn: types.FunctionType, values: Kwargs) -> Any:
    """A call that C code made: its parameters are bound. Defaults are left out again, since they are no proxies."""
    code = fn.__code__
    names = code.co_varnames
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    at = total
    args = [values[name] for name in names[:count]]
    if code.co_flags & inspect.CO_VARARGS:
        args += values[names[at]]
        at += 1
    if len(args) == count:
        defaults = fn.__defaults__ or ()
        while args and count - len(args) < len(defaults) and args[-1] is defaults[len(args) - count - 1]:
            args.pop()
    named = fn.__kwdefaults__ or {}
    kwargs = {name: values[name] for name in names[count:total] if values[name] is not named.get(name, ABSENT)}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[names[at]])
    if args:
        _guard_special_method(ev, fn, args[0])
    return call_function(ev, fn, args, kwargs)


def _guard_special_method(ev: Interpreter, fn: types.FunctionType, receiver: Any) -> None:
    """C code found `fn` in the receiver's class, behind our back: note the lookup."""
    cls = receiver if isinstance(receiver, type) else type(receiver)
    if cls.__flags__ & HEAPTYPE and getattr(cls, fn.__name__, None) is fn:
        ev.heap.class_lookup(cls, fn.__name__)


def _call_torchs(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """A Python function of torch's that is one call in the graph, or a break; ABSENT where it is to be evaluated after all."""
    marked = torch_functions.marked_by_torch(fn)
    if marked is not None:
        return call(ev, ev.heap.adopt(marked), args, kwargs)
    if fn.__dict__.get("_torchdynamo_disable"):
        graph_break("asked_for", f"{fn.__qualname__} is not to be captured (torch.compiler.disable)")
    if torch_functions.splits_torch_graph(fn) and files.in_torch(ev.frames[-1].code.co_filename):
        return None
    named = model_tables.NAMED.get((fn.__module__, fn.__qualname__))
    if named is not None:
        return named(ev, args, kwargs)
    if torch_functions.is_refused_torch(fn.__code__.co_filename, fn.__code__.co_name):
        graph_break("torch_call", f"{fn.__module__}.{fn.__qualname__}")
    if not all(is_plain(arg) for arg in (*args, *kwargs.values())):
        return ABSENT
    try:
        answer = ev.torch_native(fn, *args, **kwargs)
    except DataDependent as error:
        if fn.__code__ in ev.history.evaluated or files.is_own(fn.__code__.co_filename):
            raise
        ev.history.evaluated.add(fn.__code__)  # evaluated, a branch that only raises becomes a check
        raise RestartCapture(f"{fn.__qualname__}, which looks at values") from error
    setting_queries.guard_answer(ev.heap, fn, args, kwargs, answer)
    return answer


def inline_function(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """Evaluate a Python function's body, or leave it to torch where it is torch's own."""
    code = fn.__code__
    filename = code.co_filename
    if fn.__module__ in numpy_calls.MODULES and numpy_calls.is_function(fn):
        return numpy_calls.call(ev, fn, args, kwargs)
    if type_values.runs_untraced(ev, fn, args, kwargs):
        return type_values.call(ev, fn, args, kwargs)
    if files.is_own(filename) and not files.is_traced(filename):
        return _call_ours(ev, fn, args, kwargs)
    if files.in_torch(filename) and not files.is_inlined_torch(filename):
        # what has warned is evaluated, to warn for the program, unless a rule knows what its body would ask of sizes
        evaluated = has_warned(code) or code in ev.history.evaluated
        if not evaluated or registry.find(fn, tuple(args), kwargs) is not None:
            found = _call_torchs(ev, fn, args, kwargs)
            if found is not ABSENT:
                return found
    if kwargs.get("capturable") is False and torch_functions.reads_steps(fn) and _steps_can_stay(fn, args, kwargs):
        at = fn.__code__.co_varnames.index("state_steps")
        return call(ev, polyfills.update_with_wide_steps, [fn, at, tuple(args), kwargs], {})
    if DISABLED in fn.__dict__:
        graph_break("asked_for", f"{fn.__qualname__} is not to be captured")
    if budget.is_long(code):
        graph_break("long_running", f"{fn.__qualname__}, which took too long before")
    if code.co_flags & ASYNC:
        graph_break("async", f"{fn.__qualname__} is asynchronous")
    record = ev.heap.record(fn)
    if record is not None and record.kind == "function":
        record.kind = "inlined"
        _guard_code(ev, fn, record)
    elif record is None and id(fn) not in ev.heap.fresh and fn.__module__ not in (polyfills.__name__, scans.__name__):
        ev.heap.translate(fn, ev.heap.object_source(fn))
    values = bind_arguments(ev, fn, args, kwargs)
    frame = Frame(code, fn, fn.__globals__, closure_of(ev, fn), values, 0)
    return ev.run(frame)


def _steps_can_stay(fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> bool:
    """Whether an optimizer's update would do with tensors what it does with the numbers in them."""
    at = fn.__code__.co_varnames.index("state_steps")
    if not fn.__name__.startswith(("_single_tensor_", "_multi_tensor_")) or at >= len(args) or not isinstance(args[at], list):
        return False
    if any(type(value) is FakeTensor for value in kwargs.values()):  # a tensor as learning rate: some refuse it
        return False
    if kwargs.get("differentiable") is True and fn.__name__.endswith("radam"):  # of the branch that is not taken the gradient is NaN
        return False
    steps = args[at]
    params = args[0] if isinstance(args[0], list) else []
    if not steps or not all(type(step) is FakeTensor and not step.requires_grad for step in steps):
        return False
    pairs = zip(params, steps, strict=True)
    # on the CPU, as eager has them unless told otherwise, they are numbers for operators on any device
    return all(type(param) is FakeTensor and (param.device == step.device or step.is_cpu and not step.dim()) for param, step in pairs)


def _guard_code(ev: Interpreter, fn: types.FunctionType, record: Any) -> None:
    ev.heap.guard(record.source, GuardKind.FUNCTION_CODE, fn.__code__)


def _call_ours(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """A method of one of our own proxies (a traced generator), or fxloom's user functions."""
    if args and type(args[0]) is TracedGenerator:
        try:
            return ev.run_untraced(lambda: fn(*args, **kwargs))
        except BaseException as exc:
            if not ev.raised_by_program(exc):
                raise
            raise Raised(exc) from None
    graph_break("asked_for", f"calls {fn.__module__}.{fn.__qualname__}")
