"""Modes of torch that a program may change while it is captured: grad mode, autocast, kernels of attention.

In: the program's changes of modes, as it makes them. Out: nodes of the graph, and for replacement code what is set when the graph has
run.

Grad mode and what autocast does are really in force while capturing, so that fakes come out as eager's tensors would;
each change is also a node of the graph. Inference mode holds for a whole graph or not at all. What must not happen for
real is only counted: the nesting of autocast regions, whose end empties a cache, and the cache itself, which fakes must
not enter.

Invariant: `Modes.capturing` leaves torch as it found it. A graph runs inside `keep_modes`, and replacement code sets what
the program had set by then, so it does not matter whether a backend keeps the nodes of the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo._torch_private import attention_kernels, set_grad_enabled_raw
from fxloom_interfaces.errors import Site


@dataclass(frozen=True, slots=True)
class ModeState:
    """autocast: (device type, enabled, dtype) of devices that the program touched. nesting: of autocast, from entry on.

    attention: (name, allowed) of kernels of scaled_dot_product_attention that the program touched.
    """

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    nesting: int
    attention: tuple[tuple[str, bool], ...] = ()


class Modes:
    """What one capture attempt changed."""

    def __init__(self) -> None:
        self.cache = torch.is_autocast_cache_enabled()
        self.nesting = 0
        self.entry_nesting = autocast_nesting()
        self._entry_grad = torch.is_grad_enabled()
        self._entry_cache = self.cache
        self._entry_autocast: dict[str, tuple[bool, torch.dtype]] = {}
        self._entry_attention: dict[str, bool] = {}
        self.left = self.entry
        #: inference mode: whether it is on, the first step and place that turned it on, and the calls recorded when it last ended
        self.inference = False
        self.inference_begins: tuple[int, Site | None] | None = None
        self.calls_in_inference = 0

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Within the block changes are in force; after it none is, and `left` says what was at its end."""
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            self.left = self._now()
            for device, (enabled, dtype) in self._entry_autocast.items():
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            _allow(tuple(self._entry_attention.items()))
            torch.set_autocast_cache_enabled(self._entry_cache)
            set_grad_enabled_raw(self._entry_grad)

    def touch(self, device: str) -> None:
        """The program is about to change autocast on `device`."""
        if device not in self._entry_autocast:
            self._entry_autocast[device] = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))

    def touch_attention(self, name: str) -> None:
        """The program is about to allow or forbid a kernel of scaled_dot_product_attention."""
        self._entry_attention.setdefault(name, attention_kernels[name][0]())

    def sets_attention(self, name: str) -> bool:
        """Whether the program itself said whether the kernel may be used."""
        return name in self._entry_attention

    @property
    def entry(self) -> ModeState:
        touched = tuple((device, *state) for device, state in self._entry_autocast.items())
        return ModeState(self._entry_grad, touched, self._entry_cache, 0, tuple(self._entry_attention.items()))

    def _now(self) -> ModeState:
        touched = tuple((device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in self._entry_autocast)
        return ModeState(torch.is_grad_enabled(), touched, self.cache, self.nesting, allowed_kernels(tuple(self._entry_attention)))


def autocast_nesting() -> int:
    """How many autocast regions enclose this point."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def set_modes(state: ModeState) -> None:
    """Put into force what the program had set; runs in replacement code."""
    set_grad_enabled_raw(state.grad)
    for device, enabled, dtype in state.autocast:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    _allow(state.attention)
    torch.set_autocast_cache_enabled(state.cache)
    _nest(state.nesting)


def allowed_kernels(names: tuple[str, ...]) -> tuple[tuple[str, bool], ...]:
    """Which of these kernels of scaled_dot_product_attention may be used now."""
    return tuple((name, attention_kernels[name][0]()) for name in names)


def _allow(kernels: tuple[tuple[str, bool], ...]) -> None:
    for name, allowed in kernels:
        attention_kernels[name][1](allowed)


def _nest(count: int) -> None:
    for _ in range(count):
        torch.autocast_increment_nesting()
    for _ in range(-count):
        torch.autocast_decrement_nesting()


def in_inference_mode(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph whose tensors are made in inference mode."""

    def run(*inputs: Any) -> Any:
        with torch.inference_mode():
            return graph(*inputs)

    return run


def keep_modes(graph: Callable[..., Any], state: ModeState) -> Callable[..., Any]:
    """A graph that changes modes leaves them as they were, also when it raises. state: names what it changes."""
    devices = tuple(device for device, *_ in state.autocast)
    kernels = tuple(name for name, _ in state.attention)

    def guarded(*inputs: Any) -> Any:
        grad, cache, nesting = torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), autocast_nesting()
        autocast = tuple((device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices)
        attention = allowed_kernels(kernels)
        try:
            return graph(*inputs)
        finally:
            set_modes(ModeState(grad, autocast, cache, nesting - autocast_nesting(), attention))

    return guarded
