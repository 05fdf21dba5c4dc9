"""Modules with hooks on their gradients: `Module.register_full_backward_hook` and its siblings.

In: a frame of torch's that calls a module, or the hook that the call makes. Out: whether the frame is to run as it is; a graph
break. Such a module hangs hooks on the history of its arguments and results, and no graph holds those of intermediates: its call
is one break, and the frames of torch that call it run as they are. Its `forward` is captured by itself. Without gradients the
hooks are idle, and the module is like any other.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.hooks

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.traced import polyfills

if TYPE_CHECKING:
    from fxloom_dynamo.guard.entries import FrameView
    from fxloom_dynamo.interpreter.protocol import Interpreter

_CALL_IMPL: types.CodeType = torch.nn.Module._call_impl.__code__
#: what runs a module's hooks: `_wrapped_call_impl`, `_call_impl`, and the function within the latter
_CALLERS = frozenset(
    [_CALL_IMPL, torch.nn.Module._wrapped_call_impl.__code__]
    + [inner for inner in _CALL_IMPL.co_consts if isinstance(inner, types.CodeType) and "self" in inner.co_freevars]
)
_GLOBAL = vars(torch.nn.modules.module)


def runs_backward_hooks(view: FrameView) -> bool:
    """Whether the frame is torch's own and calls a module that watches its gradients."""
    code = view.code
    if code not in _CALLERS or not torch.is_grad_enabled():
        return False
    if "self" in code.co_freevars:
        module = view.closure[code.co_freevars.index("self")].cell_contents
    else:
        module = view.locals["self"]
    own = module._backward_hooks or module._backward_pre_hooks
    return bool(own or _GLOBAL["_global_backward_hooks"] or _GLOBAL["_global_backward_pre_hooks"])


def always_runs_hooks(ev: Interpreter) -> bool:
    """Whether the evaluator is in the call of a module with a forward hook registered with `always_call=True`."""
    frame = ev.frames[-1]
    if frame.code is not _CALL_IMPL:
        return False
    own = ev.getattr(ev.heap.cell_get(frame.locals["self"]), "_forward_hooks_always_called")
    return ev.truth(own) or ev.truth(ev.load_global(frame, "_global_forward_hooks_always_called"))


def backward_hook(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.utils.hooks.BackwardHook`, which a module's call makes."""
    if torch.is_grad_enabled():
        graph_break("torch_call", f"calls a {type(args[0]).__qualname__} with hooks on its gradients (register_full_backward_hook)")
    return ev.call(polyfills.IdleBackwardHook, args)
