"""Which C code may run while capturing: code whose only effects are on its operands, which are ours.

Everything that is not listed here is a graph break: soundness is the default, coverage is what is added.
"""

from __future__ import annotations

import _bisect
import _collections
import _heapq
import _operator
import _random
import _string
import _struct
import _thread
import array
import binascii
import builtins
import cmath
import collections
import datetime
import decimal
import fractions
import functools
import inspect
import io
import itertools
import math
import operator
import re
import struct
import sys
import threading
import types
import zlib
from pathlib import Path
from typing import Any

import torch

#: instances' operators and methods touch nothing but themselves and their arguments
PURE_TYPES: frozenset[type] = frozenset(
    {
        int, float, complex, bool, str, bytes, bytearray, type(None), type(...), type(NotImplemented), slice, range,
        list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict, collections.deque,
        types.MappingProxyType, types.GenericAlias, types.UnionType, types.SimpleNamespace, re.Pattern, re.Match,
        type({}.keys()), type({}.values()), type({}.items()),
        type(collections.OrderedDict().keys()), type(collections.OrderedDict().values()),
        type(collections.OrderedDict().items()),
        type(iter([])), type(iter(())), type(iter({})), type(iter({}.values())), type(iter({}.items())), type(iter(set())),
        type(iter("")), type(iter("é")), type(iter(b"")), type(iter(range(0))), type(iter(range(1 << 70))),
        type(reversed([])), type(reversed({})), type(iter(collections.deque())), type(reversed(collections.deque())),
        type(iter(collections.OrderedDict())), reversed, enumerate, zip, map, filter, type(iter(int, 1)),
        property, staticmethod, classmethod, BaseException, torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo,
        torch.layout, torch.memory_format, operator.itemgetter, operator.attrgetter, operator.methodcaller,
        types.CellType, memoryview,
        *(value for value in vars(itertools).values() if isinstance(value, type)),
    }
)  # fmt: skip

#: C types with a state of their own: instances that the program made are ours to use; others are not to be touched
STATEFUL_TYPES: frozenset[type] = frozenset(
    {
        io.StringIO, io.BytesIO, _random.Random, type(threading.RLock()), type(threading.Lock()), functools.partial,
        functools._lru_cache_wrapper, type(functools.cmp_to_key(lambda a, b: 0)), type(itertools.tee(())[0]), array.array,
        bytearray, memoryview, struct.Struct, type(_string.formatter_parser("")), type(_string.formatter_field_name_split("")[1]),
        type(functools.cmp_to_key(lambda a, b: 0)(0)),
    }
)  # fmt: skip

#: C types whose instances never change
CONSTANT_TYPES: frozenset[type] = frozenset(
    {
        decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, datetime.tzinfo,
        fractions.Fraction, type(collections.namedtuple("_Pair", "left right").left),  # type: ignore[attr-defined]  # a field
    }
)  # fmt: skip

#: builtins that are safe as they are once their containers are read
_BUILTIN_NAMES = (
    "abs", "ascii", "bin", "chr", "divmod", "hex", "oct", "ord", "pow", "round", "format",
)  # fmt: skip

PURE_FUNCTIONS: set[Any] = {
    *(getattr(builtins, name) for name in _BUILTIN_NAMES),
    *(value for module in (math, cmath) for value in vars(module).values() if callable(value)),
    *(
        value
        for name, value in vars(operator).items()
        if isinstance(value, types.BuiltinFunctionType)
        and not name.startswith("_")
        and name not in ("call",)
    ),
    *(
        value
        for module in (_bisect, _heapq, _struct, _string, _collections, binascii, zlib)
        for value in vars(module).values()
        if isinstance(value, types.BuiltinFunctionType)
    ),
    functools.cmp_to_key,
    itertools.tee,
    _operator.length_hint,
    _operator.countOf,
    _operator.indexOf,
    _thread.allocate_lock,
    threading.RLock,
    sys.getrecursionlimit,
    sys.intern,
    str.maketrans,
    dict.fromkeys,
    bytes.fromhex,
    float.fromhex,
    int.from_bytes,
    itertools.chain.from_iterable,
}

#: the same by module and name: a module of the interpreter that is loaded anew has new function objects
PURE_NAMES: frozenset[tuple[str, str]] = frozenset(
    (fn.__module__, fn.__name__)
    for fn in PURE_FUNCTIONS
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, types.ModuleType) and fn.__module__ != "builtins"
)


def is_pure_function(fn: Any) -> bool:
    """True for C functions that look at nothing but their arguments."""
    try:
        if fn in PURE_FUNCTIONS:
            return True
    except TypeError:  # an unhashable receiver
        return False
    return (
        type(fn) is types.BuiltinFunctionType
        and isinstance(fn.__self__, types.ModuleType)
        and (fn.__module__, fn.__name__) in PURE_NAMES
    )


#: types whose constructor only looks at its arguments
PURE_CONSTRUCTORS: frozenset[type] = frozenset(
    {
        int, float, complex, bool, str, bytes, bytearray, slice, range, list, tuple, dict, set, frozenset,
        collections.OrderedDict, collections.defaultdict, collections.deque, types.MappingProxyType, types.SimpleNamespace,
        types.MethodType, types.CellType, types.GenericAlias, property, staticmethod, classmethod, object, enumerate, zip, reversed,
        functools.partial, torch.Size, torch.device, torch.finfo, torch.iinfo, operator.itemgetter, operator.attrgetter,
        operator.methodcaller,
        *(value for value in vars(itertools).values() if isinstance(value, type)),
    }
)  # fmt: skip

#: constructors that iterate over their arguments, which may run Python code
ITERATING_CONSTRUCTORS: frozenset[type] = frozenset(
    {
        list, tuple, dict, set, frozenset, bytes, bytearray, collections.OrderedDict, collections.defaultdict, collections.deque,
        enumerate, zip, reversed, torch.Size,
        *(value for value in vars(itertools).values() if isinstance(value, type)),
    }
    - {itertools.repeat, itertools.count}
)  # fmt: skip

#: methods of builtins that iterate over their arguments; other methods keep or compare them
ITERATING_METHODS = frozenset(
    {"__init__", "__new__", "extend", "extendleft", "update", "join", "union", "intersection", "difference", "symmetric_difference",
     "intersection_update", "difference_update", "symmetric_difference_update", "issubset", "issuperset", "isdisjoint", "__iadd__",
     "__ior__", "fromkeys"}
)  # fmt: skip

#: methods that change the receiver by equality or order of its elements: the receiver has to be read completely
DEEP_METHODS = frozenset({"index", "count", "remove", "sort", "__contains__", "__eq__", "__lt__", "copy", "__repr__"})

_TORCH_ROOT = torch.__file__.rsplit("/", 1)[0] + "/"
#: Python files of torch whose functions work on the program's objects and are inlined
_INLINED_PARTS = (
    "nn/modules/", "nn/parameter.py", "nn/utils/", "autograd/grad_mode.py", "utils/_contextlib.py", "utils/_pytree.py",
    "amp/", "nn/parallel/", "utils/checkpoint.py", "testing/", "distributions/", "ao/", "fx/", "optim/", "func/",
    "nn/attention/", "nn/init.py", "utils/data/", "overrides.py", "_functorch/functional_call.py", "autograd/functional.py",
)  # fmt: skip
_REFUSED_PARTS = (
    "_dynamo/", "_inductor/", "_functorch/", "_higher_order_ops/", "_export/", "export/", "onnx/", "jit/_trace",
    "jit/_script", "hub.py", "serialization.py", "multiprocessing/", "profiler/", "random.py", "utils/cpp_extension",
    "autograd/forward_ad.py", "distributed/c10d_logger.py",
)  # fmt: skip
_QUERIES = ("is_", "has_")
_REFUSED_PREFIXES = (
    "set_", "manual_seed", "seed", "save", "load", "_set", "use_deterministic", "synchronize", "empty_cache", "reset_",
    "autocast_", "clear_autocast", "_push_", "_pop_", "_enter_", "_exit_", "make_dual", "_make_dual", "unpack_dual", "_unpack_dual",
)  # fmt: skip


_STDLIB = inspect.__file__.rsplit("/", 1)[0] + "/"


def in_stdlib(filename: str) -> bool:
    """True for the standard library's files, its own tests aside."""
    return filename.startswith(_STDLIB) and "site-packages" not in filename and not filename.startswith(_STDLIB + "test/")


def is_the_programs(value: Any) -> bool:
    """True for a Python function that is neither the standard library's nor an installed library's."""
    filename = getattr(getattr(value, "__code__", None), "co_filename", "<")
    return not filename.startswith("<") and not in_stdlib(filename) and not _is_installed(filename)


@functools.cache
def _is_installed(filename: str) -> bool:
    """Whether the file lies in a folder that installers put packages into: it says which ones are there."""
    folders = [folder for folder in sys.path if folder and Path(filename).is_relative_to(folder)]
    return any(next(Path(folder).glob("*.dist-info"), None) is not None for folder in folders)


def in_torch(filename: str) -> bool:
    return filename.startswith(_TORCH_ROOT)


def is_other_compiler(filename: str) -> bool:
    """True for the functions that torch's own compiler puts around what it compiles: two compilers don't share a frame."""
    return filename == _TORCH_ROOT + "_dynamo/eval_frame.py"


def is_inlined_torch(filename: str) -> bool:
    """True for torch's Python code that is evaluated like the program's own."""
    return filename[len(_TORCH_ROOT) :].startswith(_INLINED_PARTS)


def marked_by_torch(fn: types.FunctionType) -> Any:
    """The function of torch's that `fn` keeps away from torch's own compiler, or counts for it; None for other functions."""
    filename = fn.__code__.co_filename[len(_TORCH_ROOT) :]
    if filename == "_dynamo/mutation_guard.py":  # in the place of Module.__init__ once torch's own compiler has run
        held = (cell.cell_contents for cell in fn.__closure__ or ())
        return next((inner for inner in held if isinstance(inner, types.FunctionType) and is_module_code(inner.__code__.co_filename)), None)
    name = {"_compile.py": "__wrapped__", "_dynamo/eval_frame.py": "_torchdynamo_orig_callable"}.get(filename)
    inner = fn.__dict__.get(name) if name is not None else None
    return inner if isinstance(inner, types.FunctionType) and in_torch(inner.__code__.co_filename) else None


def reads_steps(fn: types.FunctionType) -> bool:
    """True for an optimizer's function that reads its step counts as numbers unless its argument `capturable` is true."""
    code = fn.__code__
    return is_update(code) and "capturable" in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def is_update(code: types.CodeType) -> bool:
    """True for an optimizer's function that updates parameters."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_filename.startswith(f"{_TORCH_ROOT}optim/") and "state_steps" in names


def splits_torch_graph(fn: types.FunctionType) -> bool:
    """True for the function by which torch's code asks torch's own compiler for a graph break."""
    return fn.__code__.co_name == "graph_break" and fn.__code__.co_filename == f"{_TORCH_ROOT}_dynamo/decorators.py"


def is_module_code(filename: str) -> bool:
    """True for torch's Python code whose frames are captured in their own right: modules and what calls them.

    Not so for their autograd functions, which the autograd engine calls.
    """
    return filename[len(_TORCH_ROOT) :].startswith("nn/modules/") and not filename.endswith("/_functions.py")


def is_refused_torch(filename: str, name: str) -> bool:
    """True for torch's Python code that must not run while capturing."""
    rest = filename[len(_TORCH_ROOT) :]
    if name.startswith(_QUERIES):
        return False
    return rest.startswith(_REFUSED_PARTS) or name.startswith(_REFUSED_PREFIXES)


def is_torch_builtin(fn: Any) -> bool:
    """True for C functions of torch's namespaces."""
    module = getattr(fn, "__module__", None)
    if isinstance(module, str):
        return module == "torch" or module.startswith("torch.")
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    owner = owner if isinstance(owner, type) else type(owner)
    return getattr(owner, "__module__", "").split(".")[0] == "torch"


def is_past_dispatcher(fn: Any) -> bool:
    """True for C functions of torch that are no operators and may work on the memory of tensors: fakes have none.

    Operators are functions of `torch` itself or of `torch._C`'s modules by family (`_nn`, `_linalg`); these are of `torch._C` or bound by
    pybind11 (jiterator's kernels, DLPack).
    """
    bound = type(getattr(fn, "__self__", None)).__name__.startswith("pybind11")
    return (fn.__module__ == "torch._C" or bound) and not fn.__name__.lstrip("_").startswith(_QUERIES)


def refused_torch_builtin(fn: Any) -> bool:
    name = getattr(fn, "__name__", "")
    return name.startswith(_REFUSED_PREFIXES)
