"""A compiled nn.Module that still is the module: same parameters, buffers, hooks, training flag, `state_dict` keys.

In: the module, and what compiles it. Out: a module that shares the original's `__dict__`, so every method of nn.Module works on
the same storage from either side; what the original's class defines is reached through the original. Invariant: only the call
differs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch


class OptimizedModule(torch.nn.Module):
    """`original` with its call replaced. `_orig_mod` is the original."""

    __slots__ = ("_compile", "_compiled_call", "_orig_mod")  # beside the shared __dict__

    _orig_mod: torch.nn.Module
    _compiled_call: Callable[..., Any]
    _compile: Callable[[Any], Any]

    def __init__(self, original: torch.nn.Module, compile_: Callable[[Any], Any]) -> None:
        """compile_: makes the compiled callable of a module; kept so that copies can be compiled too."""
        object.__setattr__(self, "__dict__", original.__dict__)
        object.__setattr__(self, "_orig_mod", original)
        object.__setattr__(self, "_compile", compile_)
        object.__setattr__(self, "_compiled_call", compile_(original))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled_call(*args, **kwargs)

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]  # nn.Module declares it as an attribute
        """The original's, uncompiled: hooks run in the call."""
        return self._orig_mod.forward

    @property
    def fxloom_region(self) -> Any:
        """The region that holds what was compiled."""
        return self._compiled_call.fxloom_region  # type: ignore[attr-defined]  # a C type

    def __getattr__(self, name: str) -> Any:
        # what nn.Module.__getattr__ finds in the shared dict, the original finds too, and its class's own attributes
        return getattr(object.__getattribute__(self, "_orig_mod"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]  # TypeError for a module without length is what it should be

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload]  # as above

    def __getitem__(self, index: Any) -> Any:
        return self._orig_mod[index]  # type: ignore[index]  # as above

    def __contains__(self, item: Any) -> bool:
        return item in self._orig_mod  # type: ignore[operator]  # as above

    def __dir__(self) -> list[str]:
        return dir(self._orig_mod)

    def __repr__(self) -> str:
        return f"OptimizedModule({self._orig_mod!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        return OptimizedModule(copy.deepcopy(self._orig_mod, memo), self._compile)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the original: compiled code stays in its process."""
        return _same, (self._orig_mod,)


def _same(module: torch.nn.Module) -> torch.nn.Module:
    return module
