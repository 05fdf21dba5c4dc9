"""NumPy arrays as tensors: calls of NumPy on arrays and tensors become operators of the graph.

In: calls of NumPy's functions, methods and operators on `Array`s, the proxies of arrays. Out: `Array`s over fakes. The
tensor operators are those of `torch._numpy`, torch's own reading of NumPy. That the two agree on what comes out is not
taken on trust: every call is first made for real, on small samples of the same shapes and dtypes, and its kind of result
(array or scalar, shape, dtype, whether it shares memory with an argument) is what the graph's has to be, else the call is a
break. Equal values up to rounding is what is left to `torch._numpy`.

Invariant: an `Array` is untraceable to everything else in capture (`ShadowHeap.untraceable`), so code that does not know of
arrays breaks the graph instead of seeing a proxy. A graph that writes into arrays which existed before is not built.
"""

from __future__ import annotations

import functools
import math
import operator
import types
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import outside_modes, tensor_numpy
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS
from fxloom_dynamo.libraries.numpy_numbers import numpy
from fxloom_dynamo.objects.array_values import ARRAY_DTYPES, TORCH_DTYPES, Array, is_ordinary, make, numpy_dtype, type_of
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.symbolic_numbers.values import concrete, settled
from fxloom_interfaces.errors import FxloomError
from fxloom_interfaces.sources import CallSource
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: samples larger than this are not made
_LARGEST_SAMPLE = 1 << 22
#: what depends on the order of equal elements, on memory, or on integers that NumPy lets wrap or divides by zero
_REFUSED = frozenset(
    {"argsort", "argpartition", "partition", "empty", "empty_like", "resize", "view", "tobytes", "tofile", "dump", "setflags"}
)
_REFUSED_ON_INTEGERS = frozenset(
    {"floor_divide", "floordiv", "remainder", "mod", "divmod", "power", "pow", "fmod", "left_shift", "right_shift", "lshift", "rshift",
     "ifloordiv", "imod", "ipow", "ilshift", "irshift", "reciprocal", "float_power"}
)  # fmt: skip
_INDICES = frozenset({torch.bool, torch.int8, torch.int16, torch.int32, torch.int64})
_DIVISIONS = frozenset({"truediv", "divide", "true_divide"})
_CONVERSIONS = frozenset({"__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "tolist"})
MODULES = ("numpy", "numpy.linalg", "numpy.fft")


# ---------------------------------------------------------------------- calls


def is_function(fn: Any) -> bool:
    """Whether `fn` is a function of NumPy's of which `torch._numpy` has one, too."""
    return numpy is not None and _counterpart(fn) is not None


def _counterpart(fn: Any) -> Callable[..., Any] | None:
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str) or name in _REFUSED:
        return None
    module = getattr(fn, "__module__", None) if not isinstance(fn, numpy.ufunc) else "numpy"
    if module not in MODULES:
        return None
    own, real = tensor_numpy(), numpy
    for part in module.split(".")[1:]:
        own, real = getattr(own, part, None), getattr(real, part)
    found = getattr(own, name, None) if getattr(real, name, None) is fn else None
    return found if callable(found) else None


def as_index(ev: Interpreter, key: Any) -> Any:
    """An index of a tensor, with tensors in the place of arrays: torch reads one of integers or bools as such a tensor."""
    if type(key) is tuple:
        return tuple([as_index(ev, part) for part in key])
    if type(key) is not Array or key.scalar or not key.tensor.dim() or key.tensor.dtype not in _INDICES:
        return key
    return key.tensor if key.tensor.dtype is torch.bool else ev.torch_native(torch.Tensor.to, key.tensor, torch.int64)


def involved(values: Iterable[Any]) -> bool:
    """Whether an array is among `values`, or in a list or tuple of them."""
    return any(type(value) is Array or isinstance(value, (list, tuple)) and involved(value) for value in values)


def call(ev: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """fn(*args, **kwargs) of a function for which `is_function` holds."""
    if fn in (numpy.array, numpy.asarray) and len(args) == 1 and not kwargs and type(args[0]) is FakeTensor:
        found = from_tensor(ev, args[0])
        return found if fn is numpy.asarray else call_method(ev, "copy", [found], {})
    if not involved((*args, *kwargs.values())):
        return _constant(ev, fn, args, kwargs)
    if _errors_are_seen(numpy):
        graph_break("native_call", f"numpy.{fn.__name__} where floating-point errors raise or call (numpy.seterr)")
    asked = CallSource(ev.heap.object_source(numpy, "numpy"), getter=_errors_are_seen, label="whether floating-point errors of {} raise")
    ev.heap.guard(asked, GuardKind.TRUTH, False)
    own = _counterpart(fn)
    assert own is not None
    return _apply(ev, fn, own, args, kwargs)


def _errors_are_seen(module: Any) -> bool:
    return not {*module.geterr().values()} <= {"warn", "ignore"}


def _constant(ev: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What `fn` makes of numbers alone: made now, and copied in the graph."""
    ev.heap.fill_deep(args)
    ev.heap.fill_deep(kwargs)
    given = [_replaced(value, _same, concrete, fn.__name__) for value in args]
    named = {key: _replaced(value, _same, concrete, fn.__name__) for key, value in kwargs.items()}
    made = ev.run_real(fn, *given, **named)
    if isinstance(made, numpy.ndarray):
        if not is_ordinary(made):
            graph_break("native_call", f"numpy.{fn.__name__} makes an array that no tensor can be")
        with outside_modes():
            tensor = torch.from_numpy(made)
        return make(ev.heap, ev.torch_native(torch.Tensor.clone, ev.heap.translate(tensor, ev.heap.object_source(tensor))))
    if type(made) in LITERALS:
        return made
    graph_break("native_call", f"numpy.{fn.__name__}, whose result is a {type(made).__qualname__}")


def call_operator(ev: Interpreter, function: Callable[..., Any], *operands: Any) -> Any:
    """function(*operands) of a function of the module `operator`."""
    return _apply(ev, function, function, list(operands), {})


def call_method(ev: Interpreter, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """args[0].name(*args[1:], **kwargs)"""
    if name in _CONVERSIONS and not args[1:] and not kwargs:
        return ev.torch_native(getattr(torch.Tensor, name), args[0].tensor)
    own = getattr(tensor_numpy().ndarray, name, None)
    if own is None or name in _REFUSED:
        graph_break("native_call", f"ndarray.{name}")
    return _apply(ev, getattr(numpy.ndarray, name), own, args, kwargs)


def attribute(ev: Interpreter, array: Array, name: str) -> Any:
    """array.name"""
    if name == "__class__":
        return type_of(array)
    if name == "shape":
        return tuple(array.tensor.shape)
    if name == "size":
        return array.tensor.numel()
    if name == "ndim":
        return array.tensor.dim()
    if name in ("dtype", "itemsize"):
        return getattr(_sample(array), name)
    if name in ("T", "real", "imag"):
        return _apply(ev, operator.attrgetter(name), operator.attrgetter(name), [array], {})
    if callable(getattr(numpy.ndarray, name, None)):
        return types.MethodType(_method(name), array)
    graph_break("native_call", f"ndarray.{name}")


_METHODS: dict[str, types.FunctionType] = {}
#: name of the method for which a function stands
METHOD_NAMES: dict[types.FunctionType, str] = {}


def _method(name: str) -> types.FunctionType:
    """A function that stands for a method of arrays; its model makes the call."""
    found = _METHODS.get(name)
    if found is not None:
        return found
    def method(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    assert isinstance(method, types.FunctionType)
    METHOD_NAMES[method] = name
    FUNCTIONS[method] = lambda ev, args, kwargs: call_method(ev, name, args, kwargs)
    _METHODS[name] = method
    return method


def iterate(ev: Interpreter, array: Array) -> Any:
    """iter(array)"""
    if not array.tensor.dim():
        graph_break("native_call", "iteration over an array of no dimensions")
    return iter([call_operator(ev, operator.getitem, array, place) for place in range(int(array.tensor.shape[0]))])


def from_tensor(ev: Interpreter, tensor: Any) -> Array:
    """tensor.numpy()"""
    if type(tensor) is not FakeTensor or tensor.requires_grad or tensor.device.type != "cpu" or tensor.dtype not in ARRAY_DTYPES:
        graph_break("torch_call", "Tensor.numpy of a tensor that is no plain one on the CPU, or needs a gradient")
    if tensor.is_conj() or tensor.is_neg():
        graph_break("torch_call", "Tensor.numpy of a lazily conjugated or negated view")
    return make(ev.heap, tensor)


def to_tensor(ev: Interpreter, array: Array, copied: bool) -> Any:
    """torch.from_numpy(array), or a copy."""
    if array.scalar:
        graph_break("torch_call", "a tensor computed from one of NumPy's numbers")
    return ev.torch_native(torch.Tensor.clone if copied else torch.Tensor.detach, array.tensor)


# ---------------------------------------------------------------------- both at once


def _apply(ev: Interpreter, real: Callable[..., Any], own: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call `own` on arrays over fakes, with the kind of result that `real` has on samples."""
    name = getattr(real, "__name__", str(real))
    ev.heap.fill_deep([value for value in (*args, *kwargs.values()) if not involved((value,))])
    pairs: list[tuple[Any, Array]] = []
    sampled = [_replaced(value, _sampler(pairs), _now, name) for value in args]
    sampled_named = {key: _replaced(value, _sampler(pairs), _now, name) for key, value in kwargs.items()}
    if name in _REFUSED_ON_INTEGERS and not all(array.tensor.is_floating_point() for _, array in pairs):
        graph_break("native_call", f"numpy.{name} of integers")
    try:
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = real(*sampled, **sampled_named)
    except Exception as error:
        graph_break("native_call", f"numpy.{name} ({type(error).__name__} on a sample: {error})")
    if name in _DIVISIONS and not any(array.tensor.is_floating_point() or array.tensor.is_complex() for _, array in pairs):
        args = [_replaced(value, functools.partial(_to_float, ev), settled, name) for value in args]  # torch's would be float32
    given: dict[int, Array] = {}
    converted = [_replaced(value, _converter(given), settled, name) for value in args]
    named = {key: _own(_replaced(value, _converter(given), settled, name)) for key, value in kwargs.items()}
    try:
        result = ev.torch_native(own, *map(_own, converted), **named)
    except FxloomError:
        raise
    except Exception as error:  # Raised, too: NumPy's own error would be another one
        graph_break("native_call", f"numpy.{name} ({type(error).__name__}: {error})")
    return _wrapped(ev, expected, result, pairs, given, name)


def _same(array: Array) -> Any:
    return array


def _now(value: Any) -> Any:
    """A number as it is now, without a guard: what depends on it is tried on a sample and done for every size."""
    if type(value) not in SYMBOLIC:
        return value
    if not value.node.has_hint():
        graph_break("data_dependent", "a size of an array depends on the values of a tensor")
    return value.node.hint


def _replaced(value: Any, replace: Callable[[Array], Any], number: Callable[[Any], Any], name: str) -> Any:
    """`value` with every array in it replaced, and `number` of every number."""
    if type(value) is Array:
        return replace(value)
    if type(value) is FakeTensor:
        graph_break("native_call", f"numpy.{name} of a tensor")
    if type(value) in (list, tuple):
        return type(value)([_replaced(item, replace, number, name) for item in value])
    if type(value) is slice:
        return slice(number(value.start), number(value.stop), number(value.step))
    value = number(value)
    if type(value) in SYMBOLIC:
        return value
    if type(value) in LITERALS or value is None or value is Ellipsis or isinstance(value, (numpy.dtype, type)):
        return value
    graph_break("native_call", f"numpy.{name} of a {type(value).__qualname__}")


def _sampler(pairs: list[tuple[Any, Array]]) -> Callable[[Array], Any]:
    def sample(array: Array) -> Any:
        pairs.append((_sample(array), array))
        return pairs[-1][0]

    return sample


def _sample(array: Array) -> Any:
    """A real array of the same shape and dtype: small random numbers, zeros for integers (indices, repetitions)."""
    shape = tuple(map(_now, array.tensor.shape))
    if math.prod(shape) > _LARGEST_SAMPLE:
        graph_break("native_call", "a NumPy array that is too large to try calls on a sample of it")
    dtype = numpy_dtype(array)
    if dtype.kind in "iub":
        sample = numpy.zeros(shape, dtype)
    else:
        sample = numpy.random.RandomState(0).rand(*shape).astype(dtype) if shape else numpy.array(0.5, dtype)
    return sample[()] if array.scalar else sample


def _to_float(ev: Interpreter, array: Array) -> Array:
    return make(ev.heap, ev.torch_native(torch.Tensor.to, array.tensor, torch.float64), array.scalar)


def _converter(given: dict[int, Array]) -> Callable[[Array], Any]:
    def convert(array: Array) -> Any:
        made = tensor_numpy().ndarray(array.tensor)
        given[id(made)] = array
        return made

    return convert


def _own(value: Any) -> Any:
    """A number or dtype of NumPy's as `torch._numpy` has it; other values as they are."""
    if isinstance(value, numpy.generic) and value.dtype in TORCH_DTYPES:
        return tensor_numpy().ndarray(torch.tensor(value.item(), dtype=TORCH_DTYPES[value.dtype], device="cpu"))
    if isinstance(value, numpy.dtype) or isinstance(value, type) and issubclass(value, numpy.generic):
        return getattr(tensor_numpy(), numpy.dtype(value).name)
    return value


def _wrapped(ev: Interpreter, expected: Any, result: Any, pairs: list[tuple[Any, Array]], given: dict[int, Array], name: str) -> Any:
    """The result as the program sees it."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(expected):
            graph_break("native_call", f"numpy.{name}: results in another form")
        items = [_wrapped(ev, *both, pairs, given, name) for both in zip(expected, result, strict=True)]
        return type(expected)(*items) if hasattr(expected, "_fields") else type(expected)(items)  # named tuples of numpy.linalg
    if expected is None and result is None:
        return None
    if not isinstance(expected, (numpy.ndarray, numpy.generic)):
        graph_break("native_call", f"numpy.{name}, whose result is a {type(expected).__qualname__}")
    known = given.get(id(result))
    same = next((array for sample, array in pairs if sample is expected), None)
    if same is not None:
        if known is not same:
            graph_break("native_call", f"numpy.{name} returns its argument")
        return same
    tensor = getattr(result, "tensor", None)
    if type(tensor) is not FakeTensor:
        graph_break("native_call", f"numpy.{name}: no tensor for its result")
    if tuple(map(_now, tensor.shape)) != expected.shape or TORCH_DTYPES.get(expected.dtype) is not tensor.dtype:
        graph_break("native_call", f"numpy.{name}: {tensor.dtype}{list(tensor.shape)} for {expected.dtype}{list(expected.shape)}")
    shares = isinstance(expected, numpy.ndarray) and any(
        isinstance(sample, numpy.ndarray) and numpy.may_share_memory(expected, sample) for sample, _ in pairs
    )
    aliases = any(tensor.storage_token is array.tensor.storage_token for _, array in pairs)  # type: ignore[attr-defined]
    if shares and not aliases:
        graph_break("native_call", f"numpy.{name}: a copy for a view")
    if aliases and not shares:
        tensor = ev.torch_native(torch.Tensor.clone, tensor)
    return make(ev.heap, tensor, isinstance(expected, numpy.generic))
