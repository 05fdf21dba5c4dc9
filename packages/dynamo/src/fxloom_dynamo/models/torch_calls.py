"""Models of functions of torch that set modes, call modules, check conditions or ask about tensors.

In: the evaluator and the arguments of the call. Out: what the call returns, or its exception as `Raised`; what the answer depends on is
guarded. The real function is not called where it would see a proxy or a fake for what it is. `load_all` imports this module, which fills
the tables of `interpreter.model_tables`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
import torch.utils.hooks

from fxloom_dynamo import _torch_private, directives
from fxloom_dynamo._torch_private import DisableTorchFunction, TensorBase, set_grad_enabled_raw
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.graph import tensor_classes
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.model_tables import CLASSES, FUNCTIONS, METHODS, NAMED, Args, Kwargs, constructor, function, method
from fxloom_dynamo.models.objects import is_instance
from fxloom_dynamo.objects import array_values, setting_queries
from fxloom_dynamo.objects.sentinels import ABSENT, UNREAD, Raised
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import calls, operators
from fxloom_dynamo.semantics.construction import make_instance
from fxloom_dynamo.symbolic_numbers.values import unbacked
from fxloom_dynamo.tensors import (
    autograd_functions,
    checkpoints,
    cond,
    gradients,
    leaf_state,
    module_hooks,
    numpy_calls,
    parameters,
    profiler_regions,
    subclasses,
    torch_check,
    transforms,
)
from fxloom_dynamo.traced import polyfills, scans
from fxloom_interfaces import regions, symbolic_math

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, directives.is_compiling)
def _is_compiling(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """True: libraries that branch on it take the branch made for capture. Eager code between graphs answers False.

    So does the call of a module with hooks that run even if its forward raises: the branch for capture leaves them out.
    """
    return not module_hooks.always_runs_hooks(ev)


@function(torch.compiler.is_exporting)
def _is_exporting(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return False


@constructor(torch.autograd.profiler.record_function)
def _record_function(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if profiler_regions.are_seen(ev):
        return make_instance(ev, torch.autograd.profiler.record_function, args, kwargs)
    return ev.call(polyfills.UnseenLabel, args, kwargs)


FUNCTIONS[torch.autograd.profiler.record_function.__enter__] = profiler_regions.enter
FUNCTIONS[torch.autograd.profiler.record_function.__exit__] = profiler_regions.leave


@function(set_grad_enabled_raw)
def _set_grad_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    enabled = ev.truth(args[0])
    if enabled == torch.is_grad_enabled():
        return
    ev.recorder.add_effect(regions.set_grad_enabled, enabled)
    with DisableTorchFunction():
        set_grad_enabled_raw(enabled)


@function(torch.is_grad_enabled, arity=(0, 0))
def _is_grad_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    if ev.frames[-1].code.co_filename != torch.autograd.grad_mode.__file__:  # which asks in order to put it back
        ev.tensors.grad_mode_queries += 1
    return torch.is_grad_enabled()


@function(torch.set_autocast_enabled, arity=(1, 2))
def _set_autocast_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    if len(args) != 2:
        graph_break("torch_call", "torch.set_autocast_enabled without a device type")
    _set_autocast(ev, torch.set_autocast_enabled, args, torch.is_autocast_enabled)


@function(torch.set_autocast_dtype, arity=(2, 2))
def _set_autocast_dtype(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    _set_autocast(ev, torch.set_autocast_dtype, args, torch.get_autocast_dtype)


def _set_autocast(ev: Interpreter, setter: Any, args: Args, getter: Any) -> None:
    ev.modes.touch(args[0])
    before = ev.native(getter, args[0])
    ev.native(setter, *args)
    if getter(args[0]) != before:
        ev.recorder.add_effect(setter, *args)


@function(torch.is_autocast_cache_enabled, arity=(0, 0))
def _is_autocast_cache_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return ev.modes.cache


@function(torch.set_autocast_cache_enabled, arity=(1, 1))
def _set_autocast_cache_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    enabled = ev.truth(args[0])
    if enabled != ev.modes.cache:
        ev.modes.cache = enabled
        ev.recorder.add_effect(torch.set_autocast_cache_enabled, enabled)


@function(torch.autocast_increment_nesting, arity=(0, 0))
def _autocast_increment_nesting(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    return _nest_autocast(ev, 1, torch.autocast_increment_nesting)


@function(torch.autocast_decrement_nesting, arity=(0, 0))
def _autocast_decrement_nesting(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    return _nest_autocast(ev, -1, torch.autocast_decrement_nesting)


def _nest_autocast(ev: Interpreter, change: int, target: Any) -> int:
    ev.modes.nesting += change
    ev.recorder.add_effect(target)
    return ev.modes.entry_nesting + ev.modes.nesting


@function(torch.clear_autocast_cache, arity=(0, 0))
def _clear_autocast_cache(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.recorder.add_effect(torch.clear_autocast_cache)


def _attention_kernel(name: str, getter: Any, setter: Any) -> None:
    """Models of what asks for, and sets, whether attention may use a kernel."""

    @function(getter, arity=(0, 0))
    def ask(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
        allowed = bool(getter())
        if not ev.modes.sets_attention(name):
            setting_queries.guard_answer(ev.heap, getter, (), {}, allowed)
        return allowed

    @function(setter, arity=(1, 1))
    def allow(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
        allowed = ev.truth(args[0])
        if ask(ev, [], {}) != allowed:
            ev.modes.touch_attention(name)
            ev.recorder.add_effect(regions.set_attention_kernel, name, allowed)
            setter(allowed)


for _kernel, (_getter, _setter) in _torch_private.attention_kernels.items():
    _attention_kernel(_kernel, _getter, _setter)


@method(torch.device, "__enter__", arity=(1, 1))
def _enter_device(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    ev.recorder.begin_region()
    ev.recorder.devices.append(args[0])
    return args[0]


@method(torch.device, "__exit__", arity=(4, 4))
def _exit_device(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.recorder.end_region()
    ev.recorder.devices.pop()


@function(torch.get_default_device, arity=(0, 0))
def _get_default_device(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.recorder.devices[-1] if ev.recorder.devices else ev.torch_native(torch.get_default_device)


_OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
)  # fmt: skip
_module_call_impl: Any = torch.nn.Module._call_impl
_module_namespace = vars(sys.modules[torch.nn.Module.__module__])


@function(_module_call_impl)
def _module_call(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """torch.nn.Module._call_impl where no hook is registered: forward. Other modules are inlined."""
    heap = ev.heap
    module = args[0]
    record = heap.record(module.__dict__) if heap.record(module) is not None else None
    if record is None or not all(_is_empty_hook_table(ev, record, name) for name in _OWN_HOOKS) or not _no_global_hooks(ev):
        return calls.inline_function(ev, _module_call_impl, args, kwargs)
    return ev.call(ev.getattr(module, "forward"), args[1:], kwargs)


def _is_empty_hook_table(ev: Interpreter, record: Any, name: str) -> bool:
    value = record.proxy.get(name, ABSENT)
    original = record.original.get(name)
    if value is UNREAD and isinstance(original, dict) and not original:
        ev.heap.guard(ev.heap.key_source(record.source, name), GuardKind.TRUTH, False)
        return True
    return isinstance(value, dict) and not value


def _no_global_hooks(ev: Interpreter) -> bool:
    heap = ev.heap
    namespace = heap.namespace(_module_namespace)
    for name in _GLOBAL_HOOKS:
        if name in namespace.values or not isinstance(_module_namespace[name], dict) or _module_namespace[name]:
            return False
        heap.guard(heap.key_source(namespace.source, name), GuardKind.TRUTH, False)
    return True


@function(*_torch_private.HAS_TORCH_FUNCTION)
def _has_torch_function(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether the program's own arguments override torch functions; the mode that records does not matter."""
    values = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    for value in values:
        cls = ev.type_of(value)
        if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or cls in LITERALS:
            continue
        if tensor_classes.overrides(cls) and not ev.recorder.overrides_off:
            return True
    return False


@function(torch.overrides.handle_torch_function)
def _handle_torch_function(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    func, relevant, *given = args
    return subclasses.call(ev, func, tuple(given), kwargs, relevant)


FUNCTIONS[subclasses.DEFAULT] = subclasses.default
FUNCTIONS[torch.Tensor._make_subclass] = parameters.make_subclass


METHODS[TensorBase, "requires_grad_"] = leaf_state.set_requires_grad


@method(TensorBase, "new")
def _new(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """tensor.new(size): a Size is a shape, and a graph would hold a tuple, which is data."""
    if len(args) == 2 and isinstance(args[1], torch.Size) and not kwargs:
        return ev.torch_native(torch.Tensor.new_empty, args[0], tuple(args[1]))
    return ev.torch_native(vars(TensorBase)["new"], *args, **kwargs)


@method(TensorBase, "as_subclass", arity=(2, 2))
def _as_subclass(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return subclasses.as_subclass(ev, args[0], args[1])


@constructor(_torch_private.InferenceMode, arity=(1, 1))
def _inference_mode(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.call(polyfills.InferenceMode, [ev.truth(args[0])])


@function(torch.is_inference_mode_enabled, arity=(0, 0))
def _is_inference_mode_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return ev.modes.inference or torch.is_inference_mode_enabled()


@function(polyfills.enter_inference)
def _enter_inference(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """Tensors made in inference mode differ from others, so a graph is in it from its first operator to its last, or not at all."""
    if args[0] == (ev.modes.inference or torch.is_inference_mode_enabled()):
        return None
    if not args[0] or ev.recorder.calls != ev.modes.calls_in_inference:
        graph_break("torch_call", "inference mode for a part of a graph")
    ev.recorder.begin_region()
    ev.modes.inference = True
    ev.modes.inference_begins = ev.modes.inference_begins or (ev.recorder.step, ev.site())
    before = torch.is_grad_enabled()
    with DisableTorchFunction():
        set_grad_enabled_raw(False)
    return before


@function(polyfills.leave_inference)
def _leave_inference(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    if args[0] is None:
        return
    ev.recorder.end_region()
    ev.modes.inference = False
    ev.modes.calls_in_inference = ev.recorder.calls
    with DisableTorchFunction():
        set_grad_enabled_raw(args[0])


@constructor(_torch_private.DisableTorchFunctionSubclass, arity=(0, 0))
def _plainly(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.call(polyfills.WithoutOverrides, [])


@function(polyfills.enter_plain)
def _enter_plain(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.recorder.begin_region()
    ev.recorder.overrides_off += 1


@function(polyfills.leave_plain)
def _leave_plain(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.recorder.end_region()
    ev.recorder.overrides_off -= 1


@function(_torch_private.is_function_mode_enabled)
def _is_function_mode_enabled(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return False


@function(torch._check)
def _check(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    _check_with(ev, RuntimeError, args, kwargs)


def _check_with(ev: Interpreter, error: type[Exception], args: Args, kwargs: Kwargs) -> None:
    """torch._check and its kin: what they say of numbers that only running the graph tells is checked there."""
    condition, *rest = [*args, *kwargs.values()]
    if type(condition) is torch.SymBool and unbacked(condition):
        message, *numbers = torch_check.message_text(ev, rest[0]) if rest else ("",)
        # noted by the recorder where it is left to the run
        ev.torch_native(symbolic_math.check, condition, message, error.__name__, *numbers)
        return
    if not ev.truth(condition):
        message = ev.call(rest[0], []) if rest and rest[0] is not None else "Expected cond to be True, but got False"
        raise Raised(error(message))


def _checking(error: type[Exception]) -> Any:
    return lambda ev, args, kwargs: _check_with(ev, error, args, kwargs)


for _name, _error in (("index", IndexError), ("value", ValueError), ("type", TypeError), ("not_implemented", NotImplementedError)):
    function(getattr(torch, f"_check_{_name}"))(_checking(_error))


@function(torch._check_is_size)
def _check_is_size(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    _check(ev, [operators.compare(ev, ">=", args[0], 0)], {})


def _from_array(callee: Any, copied: bool) -> Any:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not args or type(args[0]) is not array_values.Array:
            return ev.torch_native(callee, *args, **kwargs)
        if len(args) > 1 or kwargs.keys() - {"dtype", "device"}:
            graph_break("torch_call", f"torch.{callee.__name__} of an array with more than a dtype and a device")
        made = numpy_calls.to_tensor(ev, args[0], copied)
        return ev.call(ev.getattr(made, "to"), [], kwargs) if kwargs else made

    return model


for _callee, _copied in ((torch.from_numpy, False), (torch.as_tensor, False), (torch.asarray, False), (torch.tensor, True)):
    FUNCTIONS[_callee] = _from_array(_callee, _copied)


@method(TensorBase, "numpy")
def _numpy(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1 or kwargs:
        graph_break("torch_call", "Tensor.numpy(force=...)")
    return numpy_calls.from_tensor(ev, args[0])


@function(torch.utils.swap_tensors)
def _swap_tensors(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    graph_break("torch_call", "torch.utils.swap_tensors makes one tensor another")


@function(torch.is_tensor)
def _is_tensor(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return is_instance(ev, args[0], torch.Tensor)


for _transform in (torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian, torch.func.vmap):
    FUNCTIONS[_transform] = transforms.transformer(_transform)
FUNCTIONS |= {
    transforms.run_transform: transforms.apply_transform,
    transforms.pull_back: transforms.apply_pull_back,
    torch.func.jvp: transforms.jvp,
    torch.func.vjp: transforms.vjp,
}


def _associative_scan(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.call(scans.associative_scan, args, kwargs)


NAMED["torch", "cond"] = cond.cond
NAMED["torch._higher_order_ops.associative_scan", "associative_scan"] = _associative_scan
FUNCTIONS[torch.autograd.grad] = gradients.grad
CLASSES[torch.utils.hooks.BackwardHook] = module_hooks.backward_hook
FUNCTIONS[torch.utils.checkpoint.checkpoint] = checkpoints.checkpoint
FUNCTIONS[torch.autograd.Function.apply.__func__] = autograd_functions.apply  # type: ignore[attr-defined]  # a classmethod, bound


@function(polyfills.FunctionContext.mark_dirty)
def _refuse_dirty(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    graph_break("torch_call", "a custom autograd function that writes into its inputs")
