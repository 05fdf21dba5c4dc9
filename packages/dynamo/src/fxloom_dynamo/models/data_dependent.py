"""Models of calls that ask for a tensor's values: answered by the graph where only a `raise` depends on the answer.

In: a call of `item`, `equal`, `allclose` or `torch._assert`; also `tensor_split` by a tensor, which is read as numbers. Out:
where `semantics.predictions` finds that the answer only decides about a `raise`, a tensor in the graph; anywhere else, and where
the values are known or the number becomes a symbol, what the recorder makes of the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import TensorBase, assert_tensor
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS, METHODS, Args, Kwargs, Model, function, method
from fxloom_dynamo.semantics import operators
from fxloom_dynamo.semantics.predictions import number_of, truth_decides
from fxloom_dynamo.traced import polyfills
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@method(TensorBase, "item")
def _item(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs and type(args[0]) is FakeTensor:
        number = number_of(ev, args[0], "item")
        if number is not None:
            return number
    return ev.torch_native(torch.Tensor.item, *args, **kwargs)


def _alike(callee: Any, name: str, compare: Model) -> Model:
    """Whether two tensors are alike, by `compare`; a number of the graph, or a break, where the program does more with the answer
    than raise."""

    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if len(args) >= 2 and all(type(value) is FakeTensor for value in args[:2]):
            if truth_decides(ev, name):
                return compare(ev, args, kwargs)
            env = ev.recorder.fake_mode.env
            if env is not None and env.options.capture_scalars:
                answer = compare(ev, args, kwargs)
                return ev.torch_native(torch.Tensor.item, answer) if type(answer) is FakeTensor else answer
        return ev.torch_native(callee, *args, **kwargs)

    return model


def _equal(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if kwargs or len(args) != 2 or args[0].dtype != args[1].dtype or args[0].device != args[1].device:
        return ev.torch_native(torch.equal, *args, **kwargs)
    if operators.compare(ev, "!=", args[0].shape, args[1].shape):
        return False
    return ev.torch_native(torch.all, ev.torch_native(torch.eq, *args))


def _allclose(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.torch_native(torch.all, ev.torch_native(torch.isclose, *args, **kwargs))


for _name, _compare in (("equal", _equal), ("allclose", _allclose)):
    FUNCTIONS[getattr(torch, _name)] = _alike(getattr(torch, _name), _name, _compare)
    METHODS[TensorBase, _name] = _alike(getattr(TensorBase, _name), _name, _compare)


def _split(callee: Any) -> Model:
    """Pieces of a tensor at places that another tensor holds: those are read as numbers, as the C++ code does."""

    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if len(args) < 2 or type(args[1]) is not FakeTensor:
            return ev.torch_native(callee, *args, **kwargs)
        places = ev.torch_native(torch.Tensor.tolist, args[1])
        return ev.torch_native(callee, args[0], places, *args[2:], **kwargs)

    return model


FUNCTIONS[torch.tensor_split] = _split(torch.tensor_split)
METHODS[TensorBase, "tensor_split"] = _split(torch.Tensor.tensor_split)


@function(assert_tensor)
def _assert(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.call(polyfills.assert_, args, kwargs)

