"""Fake tensors: metadata, autograd and aliasing of a tensor, without its elements.

A `FakeTensor` is a wrapper subclass without storage. Its metadata is a `Descriptor`, its memory a `FakeStorage` token: two fakes
alias exactly when they have the same token, save where that is known only at run time (`AmbiguousCopy`). Operators on fakes arrive
below autograd, so `requires_grad`, `grad_fn` and version counters are torch's own. A small fake made from known numbers may know its
value (`constant`).

In: a descriptor and a storage token. Out: a `FakeTensor`. Invariant: a fake's metadata as torch sees it is its descriptor's, also after it
was changed in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_shapes._torch_private import disabled_torch_function, make_wrapper, set_lazy_bits
from fxloom_shapes.errors import DataDependent
from fxloom_shapes.fake.descriptor import CONJ, NEG, Descriptor
from fxloom_shapes.symbols.options import QueryOrigin

_identities = itertools.count()


@dataclass(frozen=True, slots=True)
class AmbiguousCopy:
    """Why a result was assumed to have new memory: `reshape`, `contiguous` and `to` copy only where they can't give a view of `origin`.

    assumptions: statements about unbacked sizes that decided between the two, each with the answer that was assumed.
    """

    origin: FakeStorage
    assumptions: tuple[tuple[Any, bool], ...]


class FakeStorage:
    """Identity of a piece of memory. writes: how many operators wrote to it; a known value is void after one.

    ambiguous_copy: None where it is certain that the memory is that of no other. pinned: a device can read it. ident: a number that
    no other has; most pieces of memory are never asked for one, and making one for each would be a good part of what a fake
    operator costs.
    """

    writes: int = 0
    ambiguous_copy: AmbiguousCopy | None = None
    pinned: bool = False
    ident: int

    def __getattr__(self, name: str) -> int:
        if name != "ident":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        number = self.ident = next(_identities)
        return number

    def __repr__(self) -> str:
        return f"storage{self.ident}"


_DATA: Any = torch.Tensor.data
_strided = torch.strided


class FakeTensor(torch.Tensor):
    """See the module's docstring. Made by `make_fake` and `FakeMode.from_tensor` only."""

    __slots__ = ("_constant", "_constant_writes", "desc", "storage_token")

    desc: Descriptor
    storage_token: FakeStorage
    _constant: torch.Tensor | None
    _constant_writes: int

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]  # torch declares a classmethod

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stubs have a placeholder
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _dispatcher[0](func, args, kwargs)

    @property
    def constant(self) -> torch.Tensor | None:
        """The real value when it is known and nothing has written over it; treat as read-only."""
        value: torch.Tensor | None = getattr(self, "_constant", None)
        if value is not None and self._constant_writes != self.storage_token.writes:
            return None
        return value

    def set_constant(self, value: torch.Tensor) -> None:
        self._constant = value
        self._constant_writes = self.storage_token.writes

    @property
    def data(self) -> torch.Tensor:
        """As of any tensor. Setting it is `set_` without grad: the two share memory from then on."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        with torch.no_grad():
            torch.ops.aten.set_.source_Tensor(self, value)

    def tolist(self) -> Any:
        known = self.constant
        if known is None:
            raise DataDependent("tolist", "reading the numbers of a tensor (.tolist())")
        return known.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise DataDependent("numpy", "the numbers of a tensor as an array (.numpy())")

    def data_ptr(self) -> int:
        raise DataDependent("data_ptr", "the address of a tensor's memory (.data_ptr())")

    # mypy: torch declares these as attributes
    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.numel() * self.desc.dtype.itemsize

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.desc.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.desc.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self.desc.device.type == "cpu"

    def get_device(self) -> int:
        index = self.desc.device.index
        return -1 if index is None else index

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return self.desc.device.type == "meta"

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's stubs differ
        grad = ", requires_grad" if self.requires_grad else ""
        return f"FakeTensor({getattr(self, 'desc', '?')}{grad})"

    def __copy__(self) -> FakeTensor:
        """Another tensor on the same memory, without history, as of real tensors."""
        copy = make_fake(self.desc, self.storage_token, requires_grad=self.requires_grad)
        known = self.constant
        if known is not None:
            copy.set_constant(known)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        copy = memo[id(self)] = make_fake(self.desc, requires_grad=self.requires_grad)
        return copy


def make_fake(desc: Descriptor, storage: FakeStorage | None = None, requires_grad: bool = False) -> FakeTensor:
    """A fake with metadata `desc`, on `storage` or on memory of its own."""
    env = desc.env
    if env is None:
        fake = make_wrapper(
            FakeTensor, desc.size, desc.stride, desc.offset, None, desc.dtype, _strided, desc.wrapper_device, False, requires_grad
        )  # fmt: skip
    else:
        origin, env.query_origin = env.query_origin, QueryOrigin.MEMORY  # torch asks how much there would be
        try:
            fake = make_wrapper(
                FakeTensor, desc.size, desc.stride, desc.offset, None, desc.dtype, _strided, desc.wrapper_device, False, requires_grad
            )  # fmt: skip
        finally:
            env.query_origin = origin
    fake.desc = desc
    fake.storage_token = storage if storage is not None else FakeStorage()
    if desc.bits:
        set_lazy_bits(fake, bool(desc.bits & CONJ), bool(desc.bits & NEG))
    return fake  # type: ignore[no-any-return]  # make_wrapper is untyped


def run_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """What `func(*args, **kwargs)` returns, as fakes, whatever modes are active."""
    return _dispatcher[0](func, args, kwargs)


def set_dispatcher(propagate: Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]) -> None:
    """Let `propagate` run the operators that torch calls on fakes: it makes fakes, so its module stands above this one."""
    _dispatcher[:] = [propagate]


_dispatcher: list[Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]] = []
