"""Which functions of torch, in Python or C, may run while capturing, and which ones capture treats in a way of their own.

In: a function, or the file and name of its code. Out: true or false (for `marked_by_torch` the function that is meant). Refused
are functions that change torch's state for the whole process, or that belong to torch's own compile stack.
"""

from __future__ import annotations

import types
from typing import Any

from fxloom_dynamo.libraries.files import TORCH_ROOT, in_torch, is_module_code

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


def marked_by_torch(fn: types.FunctionType) -> Any:
    """The function of torch's that `fn` keeps away from torch's own compiler, or counts for it; None for other functions."""
    filename = fn.__code__.co_filename[len(TORCH_ROOT) :]
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
    return code.co_filename.startswith(f"{TORCH_ROOT}optim/") and "state_steps" in names


def splits_torch_graph(fn: types.FunctionType) -> bool:
    """True for the function by which torch's code asks torch's own compiler for a graph break."""
    return fn.__code__.co_name == "graph_break" and fn.__code__.co_filename == f"{TORCH_ROOT}_dynamo/decorators.py"


def is_refused_torch(filename: str, name: str) -> bool:
    """True for torch's Python code that must not run while capturing."""
    rest = filename[len(TORCH_ROOT) :]
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
