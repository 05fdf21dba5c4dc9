"""Which C code may run while capturing: code whose only effects are on its operands, which capture owns.

Everything that is not listed here is a graph break: soundness is the default, coverage is what is added.

In: a C function, method descriptor or type. Out: whether capture may call it on proxies. Invariant: what is listed reads nothing but its
arguments and the objects that they hold, changes nothing else, and calls back no code but methods of those, which the evaluator
intercepts.
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
