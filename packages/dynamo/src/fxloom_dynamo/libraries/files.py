"""Whose a Python file is: the program's, an installed library's, the standard library's, torch's or our own.

In: a file name, as code objects have it. Out: true or false; capture decides by it what is inlined, called as it is, or refused.
Invariant: no file is opened. Its path tells whose it is; an installed library is known by the `*.dist-info` folders that
installers leave beside it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import torch

import fxloom_shapes

#: folder of this package, and the one in it whose files are evaluated like the program's
_OWN = __file__.rsplit("/", 2)[0] + "/"
_TRACED = _OWN + "traced/"
TORCH_ROOT = torch.__file__.rsplit("/", 1)[0] + "/"
_SHAPES = fxloom_shapes.__file__.rsplit("/", 1)[0] + "/"
#: Python files of torch whose functions work on the program's objects and are inlined
_INLINED_PARTS = (
    "nn/modules/", "nn/parameter.py", "nn/utils/", "autograd/grad_mode.py", "utils/_contextlib.py", "utils/_pytree.py",
    "amp/", "nn/parallel/", "utils/checkpoint.py", "testing/", "distributions/", "ao/", "fx/", "optim/", "func/",
    "nn/attention/", "nn/init.py", "utils/data/", "overrides.py", "_functorch/functional_call.py", "autograd/functional.py",
)  # fmt: skip
_STDLIB = inspect.__file__.rsplit("/", 1)[0] + "/"


def in_stdlib(filename: str) -> bool:
    """True for the standard library's files, its own tests aside."""
    return filename.startswith(_STDLIB) and "site-packages" not in filename and not filename.startswith(_STDLIB + "test/")


def is_program_code(value: Any) -> bool:
    """True for a Python function that is neither the standard library's nor an installed library's."""
    filename = getattr(getattr(value, "__code__", None), "co_filename", "<")
    return not filename.startswith("<") and not in_stdlib(filename) and not _is_installed(filename)


@functools.cache
def _is_installed(filename: str) -> bool:
    """Whether the file lies in a folder that installers put packages into: it says which ones are there."""
    folders = [folder for folder in sys.path if folder and Path(filename).is_relative_to(folder)]
    return any(next(Path(folder).glob("*.dist-info"), None) is not None for folder in folders)


def is_own(filename: str) -> bool:
    """True for files of this package."""
    return filename.startswith(_OWN)


def is_ours(filename: str) -> bool:
    """True for files of this package and of the one that makes fakes."""
    return filename.startswith((_OWN, _SHAPES))


def is_traced(filename: str) -> bool:
    """True for our own files whose functions are evaluated like the program's."""
    return filename.startswith(_TRACED)


def in_torch(filename: str) -> bool:
    return filename.startswith(TORCH_ROOT)


def is_other_compiler(filename: str) -> bool:
    """True for the functions that torch's own compiler puts around what it compiles: two compilers don't share a frame."""
    return filename == TORCH_ROOT + "_dynamo/eval_frame.py"


def is_inlined_torch(filename: str) -> bool:
    """True for torch's Python code that is evaluated like the program's own."""
    return filename[len(TORCH_ROOT) :].startswith(_INLINED_PARTS)


def is_module_code(filename: str) -> bool:
    """True for torch's Python code whose frames are captured in their own right: modules and what calls them.

    Not so for their autograd functions, which the autograd engine calls.
    """
    return filename[len(TORCH_ROOT) :].startswith("nn/modules/") and not filename.endswith("/_functions.py")


@functools.lru_cache(maxsize=4096)
def is_of_others(name: str) -> bool:
    """True for files that places in messages don't lead to: the standard library's, torch's and our own."""
    return is_own(name) or name.startswith((TORCH_ROOT, "<frozen")) or in_stdlib(name)


def may_run_for_c_code(name: str, code: types.CodeType) -> bool:
    """Whether C code may call this Python function as it is: it looks at no object of the program's."""
    if name.startswith(TORCH_ROOT):
        return not is_inlined_torch(name) or code.co_name == "__instancecheck__"
    if name == "<frozen _collections_abc>" or name.endswith(("/typing.py", "/typing_extensions.py", "<frozen abc>", "/abc.py")):
        return True  # generic aliases and abstract classes
    return name.startswith("<string>") and code.co_name == "__new__"  # a namedtuple's constructor
