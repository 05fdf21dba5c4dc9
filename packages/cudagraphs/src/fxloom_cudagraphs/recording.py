"""Recording and replaying a callable's device work.

Lifetimes, which everything here serves:

- A recording owns the memory of its inputs that are not static (made before recording, filled by copy before each replay)
  and, through the device's pool, of every buffer and result of the callable. It lives as long as the wrapped callable.
- Static inputs (parameters, buffers) stay the caller's; the recording remembers their addresses and is valid only while
  these are the same. Other addresses are another recording.
- What the caller gets is a copy made right after the replay, so that no replay ever overwrites a result that somebody
  holds. Results that are inputs are given as the caller's own tensors.
- Inputs that the callable writes to are recorded on their own memory if they are static; otherwise the callable runs as it
  is, since writing to the recording's copy would not reach the caller's tensor.

Life of a set of shapes: first call runs the callable (warm-up), the second records and replays, later ones replay.

In: a callable of flat inputs and its `ReplaySignature`. Out: a callable of the same convention and the same results.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_cudagraphs.device import Device
from fxloom_interfaces.replayer import FlatCallable, ReplaySignature
from fxloom_interfaces.telemetry import ReplaySkipped, emit

PLUGIN_NAME = "cudagraphs"

#: More sets of shapes or addresses than this and the callable runs as it is: each recording holds memory.
MAX_RECORDINGS = 16


@dataclass(slots=True)
class Recording:
    """One recorded run. inputs: the recording's own tensors for copied inputs, by position."""

    replay: Callable[[], None]
    inputs: dict[int, torch.Tensor]
    results: Sequence[Any]
    static: tuple[torch.Tensor, ...] = ()  # the static inputs' own objects, and where their memory was
    addresses: tuple[int, ...] = ()
    key: Any = None  # of the inputs that are copied


def wrap(
    fn: FlatCallable, signature: ReplaySignature, make_device: Callable[[int], Device], device_type: str = "cuda"
) -> FlatCallable:
    """`fn` recorded and replayed, or `fn` itself where the signature rules that out."""
    if device_type not in signature.devices:
        return _skip(fn, signature, f"it uses no {device_type} device")
    if len(signature.devices) > 1:
        return _skip(fn, signature, f"it uses several kinds of device: {', '.join(signature.devices)}")
    copied = sorted(set(signature.mutated_inputs) - set(signature.static_inputs))
    if copied:
        return _skip(fn, signature, f"it writes to inputs {copied}, whose memory may differ from call to call")
    return Replayed(fn, signature, make_device, device_type)


def _skip(fn: FlatCallable, signature: ReplaySignature, reason: str) -> FlatCallable:
    emit(ReplaySkipped(PLUGIN_NAME, f"{signature.name}: {reason}"))
    return fn


class Replayed:
    """The wrapped callable. Calls are serialised: a recording can't run twice at the same time."""

    def __init__(
        self, fn: FlatCallable, signature: ReplaySignature, make_device: Callable[[int], Device], device_type: str
    ) -> None:
        self._device_type = device_type
        self.fn = fn
        self.signature = signature
        self.recordings: dict[Any, Recording | None] = {}  # None: warmed up, not recorded yet
        self._static = frozenset(signature.static_inputs)
        self._static_order = sorted(self._static)
        self._copied: Sequence[int] = ()
        self._last: Recording | None = None
        self._make_device = make_device
        self._device: Device | None = None
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        with self._lock:
            if self._last_fits(inputs):
                assert self._last is not None
                return self._run(self._last, inputs)
            reason = self._unfit(inputs)
            if reason is None:
                key = self._key(inputs, range(len(inputs)))
                if key in self.recordings:
                    return self._replay(key, inputs)
                if len(self.recordings) < MAX_RECORDINGS:
                    self.recordings[key] = None
                    return self._open(inputs).warm_up(lambda: self.fn(list(inputs)))
                reason = f"{MAX_RECORDINGS} sets of shapes and addresses are recorded already"
            if reason not in self._said:
                self._said.add(reason)
                emit(ReplaySkipped(PLUGIN_NAME, f"{self.signature.name}: {reason}"))
        return self.fn(inputs)

    def _last_fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the last recording serves this call too: the usual case, decided without looking at every property."""
        last = self._last
        if last is None or torch.is_grad_enabled():
            return False
        static = [inputs[position] for position in self._static_order]
        return (
            all(map(operator.is_, static, last.static))
            and tuple([value.data_ptr() for value in static]) == last.addresses
            and self._key(inputs, self._copied) == last.key
        )

    def _unfit(self, inputs: Sequence[Any]) -> str | None:
        """Why this call can't be replayed; None when it can."""
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                if value.device.type != self._device_type:
                    return f"input {position} is on {value.device}"
                if value.requires_grad and torch.is_grad_enabled():
                    return f"input {position} requires grad"
        return None

    def _key(self, inputs: Sequence[Any], positions: Sequence[int]) -> Any:
        """What a recording depends on: layout of every tensor, address of static ones, every number."""
        return tuple([
            (
                value.shape, value.stride(), value.dtype, value.device,
                value.data_ptr() if position in self._static else value.data_ptr() % _ALIGNMENT,
            )
            if isinstance(value := inputs[position], torch.Tensor)
            else value
            for position in positions
        ])  # fmt: skip

    def _open(self, inputs: Sequence[Any]) -> Device:
        if self._device is None:
            index = next((value.device.index or 0 for value in inputs if isinstance(value, torch.Tensor)), 0)
            self._device = self._make_device(index)
        return self._device

    def _record(self, inputs: Sequence[Any]) -> Recording:
        own = {
            position: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            for position, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and position not in self._static
        }
        during = [own.get(position, value) for position, value in enumerate(inputs)]
        replay, results = self._open(inputs).record(lambda: self.fn(list(during)))
        # A result that is an input is handed out as the caller's own tensor.
        results = [
            next((_Input(number) for number, value in enumerate(during) if value is result), result)
            if isinstance(result, torch.Tensor)
            else result
            for result in results
        ]
        return Recording(replay, own, results)

    def _replay(self, key: Any, inputs: list[Any]) -> Sequence[Any]:
        recording = self.recordings[key]
        if recording is None:
            recording = self.recordings[key] = self._record(inputs)
        self._copied = [position for position in range(len(inputs)) if position not in self._static]
        recording.static = tuple(inputs[position] for position in self._static_order)
        recording.addresses = tuple(value.data_ptr() for value in recording.static)
        recording.key = self._key(inputs, self._copied)
        self._last = recording
        return self._run(recording, inputs)

    def _run(self, recording: Recording, inputs: Sequence[Any]) -> Sequence[Any]:
        for position, tensor in recording.inputs.items():
            tensor.copy_(inputs[position])
        recording.replay()
        return [
            inputs[result.position] if isinstance(result, _Input) else _copy(result) if isinstance(result, torch.Tensor) else result
            for result in recording.results
        ]


@dataclass(frozen=True, slots=True)
class _Input:
    """Stands for input `position` among the results."""

    position: int


#: Kernels are compiled for pointers aligned like this; others run other code, so alignment is part of the key.
_ALIGNMENT = 16


def _copy(result: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes and strides."""
    out = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
    return out.copy_(result)

