"""Branches on a tensor's values of which one side only raises: the graph goes on as if nothing were raised.

`assert x.max() <= n` or `if torch.isnan(x).any(): raise ...` need a value that only running the graph tells, and all but always
tell the same. So the truth of what was predicted becomes one more output of the graph, and replacement code looks at it before
anything else: a wrong prediction drops the graph's results and runs the function's own code from its start, as if nothing had
been captured. Exceptions, their handlers, effects and messages are then Python's own.

In: a tensor, and the jump or comparison that looks at it. Out: the truth value to go on with; for `item` and its like, a tensor
that stands for the number until it is compared.
Invariant: nothing that the function could tell has happened by then. A graph that writes into tensors that existed before makes
no predictions (they become breaks), nor does one that is captured without being run; random generators are set back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.graph.predicted_branches import Prediction
from fxloom_dynamo.interpreter.frame import UnreadParameter
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter

_BRANCHES = {"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False}
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE", "YIELD_VALUE", "SEND", "FOR_ITER", "RETURN_GENERATOR"})
_LOADS = frozenset({"LOAD_FAST", "LOAD_CONST"})
#: instructions of a side that raises; a longer one is no mere complaint
_LONGEST = 400
#: numbers up to here are the same as float64
_EXACT = 1 << 53


def branch(ev: Interpreter, frame: Frame, value: Any) -> bool:
    """The truth of `value`, which the conditional jump that runs now (or comes next) looks at."""
    if type(value) is FakeTensor and value.constant is None and ev.config.runs and not ev.tensors.transforms:
        index = frame.ip - 1
        if frame.info.body.instructions[index].opname == "TO_BOOL":
            index += 1
        expected = _expected(frame, index)
        if expected is not None and value.dim() == 0:
            _record(ev.recorder, value, expected)
            ev.recorder.predictions.append(Prediction(ev.steps - 1, frame.site()))
            return expected
    return bool(ev.truth(value))


def number_of(ev: Interpreter, tensor: FakeTensor, callee: str) -> torch.Tensor | None:
    """What stands for the number in `tensor` where all that happens to it is a comparison that decides about a `raise`.

    callee: name of the function that the program calls to get at the number (item, float, ...).
    """
    if not number_decides(ev, tensor, callee):
        return None
    return tensor.detach().to(torch.float64 if tensor.is_floating_point() else torch.int64)


def number_decides(ev: Interpreter, tensor: FakeTensor, callee: str) -> bool:
    """Whether `number_of` has an answer."""
    if tensor.dim() or tensor.is_complex() or tensor.dtype is torch.uint64 or tensor.constant is not None:
        return False
    return _result_decides(ev, callee, compared=True)


def truth_decides(ev: Interpreter, callee: str) -> bool:
    """Whether all that happens to the result of the running call, of a function named `callee`, is to decide about a `raise`."""
    return _result_decides(ev, callee, compared=False)


def _result_decides(ev: Interpreter, callee: str, compared: bool) -> bool:
    """As `truth_decides`; compared: its comparison with another number may."""
    if not ev.config.runs or ev.tensors.transforms or not ev.frames or getattr(ev.callee, "__name__", "") != callee:
        return False
    frame = ev.frames[-1]
    instructions, index = frame.info.body.instructions, frame.ip
    if instructions[index - 1].opname not in ("CALL", "CALL_KW"):
        return False
    if compared:
        other: Any = frame.stack[-1] if frame.stack else None
        loaded = instructions[index]
        if loaded.opname in _LOADS:
            other = loaded.argval if loaded.opname == "LOAD_CONST" else frame.locals.get(loaded.argval)
            if type(other) is UnreadParameter:
                other = other.original
            index += 1
        if instructions[index].opname == "COMPARE_OP" and _is_number(other):
            index += 1
        elif index != frame.ip:
            return False
    if instructions[index].opname == "TO_BOOL":
        index += 1
    return _expected(frame, index) is not None


def _is_number(value: Any) -> bool:
    if type(value) is torch.SymInt or type(value) is float:
        return True
    return type(value) in (int, bool) and abs(value) <= _EXACT


def _expected(frame: Frame, index: int) -> bool | None:
    """The truth value with which the jump at `index` does not lead to an exception; None when neither side does, or both."""
    jumps_if = _BRANCHES.get(frame.info.body.instructions[index].opname)
    if jumps_if is None:
        return None
    there = _only_raises(frame, frame.info.targets[index])
    here = _only_raises(frame, index + 1)
    return None if there == here else jumps_if != there


def _only_raises(frame: Frame, index: int) -> bool:
    """Whether every way on from the instruction at `index` ends in a `raise`, without a loop."""
    instructions, targets = frame.info.body.instructions, frame.info.targets
    ahead, seen = [index], set[int]()
    while ahead:
        index = ahead.pop()
        if index in seen:
            continue
        seen.add(index)
        inst = instructions[index]
        if len(seen) > _LONGEST or inst.opname in _ENDS or inst.target is not None and targets[index] <= index:
            return False
        if inst.target is not None:
            ahead.append(targets[index])
        if inst.opname not in ("RAISE_VARARGS", "JUMP_FORWARD"):
            ahead.append(index + 1)
    return True


def _record(recorder: Recorder, value: torch.Tensor, expected: bool) -> None:
    """Make the truth of all predictions so far include this one."""
    truth = value.detach()
    truth = truth.ne(0) if expected else truth.eq(0)
    recorder.predicted = truth if recorder.predicted is None else recorder.predicted.logical_and(truth)
