"""`FakeMode`: turns real tensors into fakes and, while entered, makes factory functions return fakes.

In: real strided tensors. Out: fakes with the same metadata, autograd leafness and aliasing; one fake per real tensor for
the life of the mode. Fakes run operators without the mode too; it is needed for what creates tensors from nothing
(`torch.zeros`) and to let real tensors take part.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from fxloom_shapes._torch_private import TorchDispatchMode, has_lazy_bits, storage_identity
from fxloom_shapes.errors import UnsupportedTensor
from fxloom_shapes.fake.descriptor import Descriptor, describe_tensor
from fxloom_shapes.fake.devices import absent_devices
from fxloom_shapes.fake.tensor import FakeStorage, FakeTensor, make_fake
from fxloom_shapes.propagation.propagate import propagate
from fxloom_shapes.symbols.env import SymbolEnv
from fxloom_shapes.symbols.options import Tracer


class FakeMode(TorchDispatchMode):
    """See the module's docstring. env: the symbols of sizes; None where every size is a plain integer.

    absent_devices: tensors may be made for, and moved to, devices that this machine doesn't have.
    """

    # torch wraps __torch_dispatch__ of mode subclasses in a guard against torch's own frame hook unless told not to
    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, env: SymbolEnv | None = None, *, absent_devices: bool = True) -> None:
        super().__init__()
        self.env = env
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}
        self._storages: dict[int, tuple[FakeStorage, list[weakref.ref[torch.Tensor]]]] = {}
        self._leaves: dict[int, tuple[FakeTensor, FakeTensor]] = {}
        self._entered: list[AbstractContextManager[Any]] = []
        self.absent_devices = absent_devices

    def __enter__(self) -> FakeMode:
        self._entered.append(absent_devices() if self.absent_devices else nullcontext())
        self._entered[-1].__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._entered.pop().__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return propagate(func, args, kwargs, self)

    def from_tensor(
        self, real: torch.Tensor, *, device: torch.device | None = None, as_plain: bool = False, as_stored: bool = False
    ) -> FakeTensor:
        """The fake of `real`. Tensors that share storage get fakes that do.

        as_plain: the caller sees to what a subclass of Tensor overrides; the fake of one is that of a plain tensor then.
        as_stored: the caller reads memory as it is, and a tensor whose elements are conjugated or negated on reading is refused.
        device: report this one instead of the real tensor's. Raises UnsupportedTensor for kinds that fakes don't model.
        """
        if type(real) is FakeTensor:
            return real
        if as_stored and has_lazy_bits(real):
            raise UnsupportedTensor("a lazily conjugated or negated view; call .resolve_conj() / .resolve_neg() before")
        known = self._fakes.get(id(real))
        if known is not None and known[0]() is real:
            return known[1]
        _refuse_unsupported(real, as_plain)
        desc = self._descriptor(real, device or real.device)
        storage = self._storage_of(real)
        with torch.inference_mode(False), torch.no_grad():
            fake = make_fake(desc, storage, real.requires_grad and real.is_leaf)
        if real.requires_grad and not real.is_leaf:
            fake = self._non_leaf(fake)
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True  # what isinstance(fake, Parameter) asks
        self._fakes[id(real)] = (weakref.ref(real), fake)
        return fake

    def _descriptor(self, real: torch.Tensor, device: torch.device) -> Descriptor:
        if self.env is not None:
            known = self.env.descriptors.get(id(real))
            if known is not None and known[0]() is real:
                return known[1]  # type: ignore[no-any-return]  # the environment doesn't know the type
        return describe_tensor(real, device)

    def close(self) -> None:
        """Forget which real tensors the fakes stand for, and who traced.

        Otherwise weak references to the program's tensors would stay, which a program can count. Symbolic sizes, which compiled graphs
        keep, hold the environment by C++ references, so the garbage collector finds no cycle through it.
        """
        self.forget_tensors()
        if self.env is not None:
            self.env.descriptors.clear()
            self.env.plans.clear()
            self.env.tracer = Tracer()

    def forget_tensors(self) -> None:
        """Forget which real tensors the fakes stand for; the environment's own memory stays."""
        self._fakes.clear()
        self._storages.clear()

    def is_known(self, real: torch.Tensor) -> bool:
        """True when `from_tensor` has made a fake for this very tensor."""
        known = self._fakes.get(id(real))
        return known is not None and known[0]() is real

    def refake(self, other: FakeTensor, storages: dict[int, FakeStorage]) -> FakeTensor:
        """A fake like `other`, with no history. storages: token by old token, shared by the calls for one set of fakes."""
        token = storages.setdefault(other.storage_token.ident, FakeStorage())
        with torch.inference_mode(False), torch.no_grad():
            fake = make_fake(other.desc, token, other.requires_grad and other.is_leaf)
        if other.requires_grad and not other.is_leaf:
            fake = self._non_leaf(fake)
        if isinstance(other, torch.nn.Parameter):
            fake._is_param = True
        return fake

    def grad_leaf(self, fake: FakeTensor) -> FakeTensor:
        """What to differentiate by to get the gradient of input `fake`, even after the program wrote to it in place."""
        known = self._leaves.get(id(fake))
        return known[1] if known is not None else fake

    def _non_leaf(self, fake: FakeTensor) -> FakeTensor:
        """A stand-in for `fake` that autograd sees as the result of an operator, so that it may be written in place."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = make_fake(fake.desc, None, True)
            result = _SameMetadata.apply(leaf, fake.desc)
        result.storage_token = fake.storage_token
        self._leaves[id(result)] = (result, leaf)
        return result  # type: ignore[no-any-return]  # apply is untyped

    def _storage_of(self, real: torch.Tensor) -> FakeStorage:
        identity = storage_identity(real)
        known = self._storages.get(identity)
        if known is not None:
            token, users = known
            alive = [user() for user in users]
            # the address may have been given to a new storage since
            if any(tensor is not None and storage_identity(tensor) == identity for tensor in alive):
                users.append(weakref.ref(real))
                return token
        token = FakeStorage()
        self._storages[identity] = (token, [weakref.ref(real)])
        return token


def _refuse_unsupported(real: torch.Tensor, as_plain: bool) -> None:
    if real.layout is not torch.strided:
        raise UnsupportedTensor(f"a tensor of layout {real.layout}")
    if real.is_quantized:
        raise UnsupportedTensor(f"a quantized tensor ({real.dtype})")
    own = type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    dispatches = type(real).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]  # a builtin
    if own and (dispatches or not as_plain):
        why = ", whose operators are Python code of its class (__torch_dispatch__)" if dispatches else ""
        raise UnsupportedTensor(f"a tensor of type {type(real).__qualname__}{why}")


class _SameMetadata(torch.autograd.Function):
    """Identity on a leaf that gives a fake with a chosen descriptor. Its backward is never run."""

    @staticmethod
    def forward(ctx: Any, leaf: FakeTensor, desc: Any) -> FakeTensor:
        return make_fake(desc)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None
