"""Run torch's registered Meta kernel of an operator, or the fake kernel of a custom one, for the metadata of its results.

In: an operator and fakes. Out: the plan that its kernel's results on the `meta` device amount to. Tensors on `meta` that stand for
fakes which share memory share theirs, so that views among the results are found by the identity of their storage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from fxloom_ops.schema import Op, SchemaInfo
from fxloom_shapes._torch_private import disable_torch_dispatch, set_lazy_bits, storage_identity, symbolic_kernels
from fxloom_shapes.errors import NoFakeKernel
from fxloom_shapes.fake.descriptor import CONJ, NEG, describe_tensor, extent_of, usable
from fxloom_shapes.fake.plans import Fresh, Nest, Number, Plan, SameAs, SharedFresh, ViewOf
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.propagation.arguments import is_symbolic, result_tensors, tensors_of
from fxloom_shapes.symbols.options import QueryOrigin

aten = torch.ops.aten
_META = torch.device("meta")
_CPU = torch.device("cpu")
#: operators whose tensors may be on several devices; the result is where the first is
_MIXED_DEVICES = frozenset(
    {
        aten.copy_.default,
        aten.copy.default,
        aten.index.Tensor,
        aten.index_put_.default,
        aten.index_put.default,
        aten._index_put_impl_.default,
    }
)
_KEEPS_FIRST_DEVICE = frozenset({aten.index.Tensor, aten.index_put.default, aten.copy.default})


def common_device(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the results. CPU tensors without axes go along with any device, as in torch."""
    asked = kwargs.get("device")
    if asked is not None:
        device = torch.device(asked) if not isinstance(asked, torch.device) else asked
        if device.index is None and device.type not in ("cpu", "meta"):  # tensors know theirs
            return torch.device(device.type, torch.accelerator.current_device_index() if usable(device.type) else 0)
        return device
    scalar: torch.device | None = None
    found: torch.device | None = None
    for tensor in tensors_of(args, kwargs):
        desc = tensor.desc
        if not desc.size and desc.device == _CPU:
            scalar = desc.device
        elif found is None:
            found = desc.device
        elif found != desc.device:
            if func in _MIXED_DEVICES:
                continue
            raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got tensors on {found} and {desc.device}")
    return found or scalar or _CPU


def run_meta_kernel(func: Op, kernel: Callable[..., Any], info: SchemaInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """What `kernel`, which is `func` itself or stands for it, makes of tensors on `meta`."""
    device = common_device(func, args, kwargs)
    tensors = list(tensors_of(args, kwargs))
    metas = _meta_tensors(tensors)
    has_outs = any(is_out for _, _, is_out in info.writes)

    def to_meta(value: Any) -> Any:
        if type(value) is FakeTensor:
            return metas[id(value)]
        if type(value) is list or type(value) is tuple:
            return type(value)([to_meta(item) for item in value])
        return value

    meta_args = tuple(to_meta(value) for value in args)
    meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
    if meta_kwargs.get("device") is not None or (info.has_device and not tensors):
        meta_kwargs["device"] = _META
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    if meta_kwargs.get("generator") is not None:
        meta_kwargs["generator"] = None
    try:
        with (
            disable_torch_dispatch(), torch.no_grad(), symbolic_kernels(is_symbolic(args, kwargs)),
            # that one is resized is said when the program runs
            warnings.catch_warnings(action="ignore") if has_outs else nullcontext(),
        ):  # fmt: skip
            result = kernel(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise NoFakeKernel(str(func), f"{func}: {str(error).splitlines()[0]}") from error
    if has_outs:
        for tensor in tensors:
            after = metas[id(tensor)].size()
            if after != tensor.size():
                raise NoFakeKernel(str(func), f"{func} resizes an out= tensor of {tuple(tensor.size())} to {tuple(after)}")
    storages: dict[int, int] = {}
    for index, tensor in enumerate(tensors):
        storages.setdefault(storage_identity(metas[id(tensor)]), index)
    same = {id(metas[id(tensor)]): index for index, tensor in reversed(list(enumerate(tensors)))}
    fresh: dict[int, int] = {}
    for item in result_tensors(result):
        identity = storage_identity(item)
        fresh[identity] = fresh.get(identity, 0) + 1
    numbers = {identity: number for number, identity in enumerate(fresh)}

    def plan_of(value: Any) -> Plan:
        if isinstance(value, torch.Tensor):
            index = same.get(id(value))
            if index is not None:
                return SameAs(index)
            where = tensors[0].desc.device if func in _KEEPS_FIRST_DEVICE and tensors else device
            desc = describe_tensor(value, where)
            identity = storage_identity(value)
            if identity in storages:
                return ViewOf(desc, storages[identity])
            return Fresh(desc) if fresh[identity] == 1 else SharedFresh(desc, numbers[identity])
        if isinstance(value, (tuple, list)):
            kind = type(value) if type(value) in (tuple, list) else tuple
            return Nest(tuple(plan_of(item) for item in value), kind)
        return Number(value)

    return plan_of(result)


def _meta_tensors(tensors: list[FakeTensor]) -> dict[int, torch.Tensor]:
    """One meta tensor per fake, by id; those of fakes that alias share a meta storage."""
    nbytes: dict[int, int] = {}
    for tensor in tensors:
        desc = tensor.desc
        needed = extent_of(desc) * desc.dtype.itemsize
        known = nbytes.get(tensor.storage_token.ident)
        nbytes[tensor.storage_token.ident] = needed if known is None or known is needed else torch.sym_max(known, needed)
    metas: dict[int, torch.Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    with disable_torch_dispatch(), torch.no_grad(), _memory_checks_pass(tensors):
        for tensor in tensors:
            if id(tensor) in metas:
                continue
            desc, ident = tensor.desc, tensor.storage_token.ident
            storage = storages.get(ident)
            if storage is None:
                storage = storages[ident] = torch.empty(nbytes[ident], dtype=torch.uint8, device="meta").untyped_storage()
            empty = torch.empty(0, dtype=desc.dtype, device="meta")
            meta = metas[id(tensor)] = empty.set_(storage, desc.offset, desc.size, desc.stride)  # type: ignore[call-overload]
            if desc.bits:
                set_lazy_bits(meta, bool(desc.bits & CONJ), bool(desc.bits & NEG))
    return metas


@contextmanager
def _memory_checks_pass(tensors: list[FakeTensor]) -> Iterator[None]:
    """Within the block torch's checks that a tensor fits into its memory succeed."""
    env = next((tensor.desc.env for tensor in tensors if tensor.desc.env is not None), None)
    with nullcontext() if env is None else env.queried_by(QueryOrigin.MEMORY):
        yield
