"""The modes that decide what operators do, beside their arguments: grad mode, autocast, anomaly detection, absent devices.

In: nothing but the thread's state and the trace context. Out: context managers that set modes aside for a trace, and what
autocast is set to.
Invariant: after a trace the modes are what they were before it, also when it raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fxloom_aot._torch_private import any_autocast, autocast_devices, set_grad_enabled
from fxloom_shapes import trace_context
from fxloom_shapes.fake.devices import absent_devices


def absent_devices_as_captured() -> AbstractContextManager[Any]:
    """Allow devices that this machine does not have, as capture did; the graph itself runs on devices that exist."""
    context = trace_context()
    return absent_devices() if context is None or context.fake_mode.absent_devices else nullcontext()


def anomaly_detection_off() -> AbstractContextManager[Any]:
    """Turn anomaly detection off: fakes have no values to check for NaN. Gradients of the compiled function are checked when it runs."""
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext()


@contextmanager
def restoring_modes() -> Iterator[None]:
    """Grad mode and autocast as before, also when the graph raises between a mode change and its end."""
    grad_mode = torch.is_grad_enabled()
    nesting = autocast_state()
    try:
        yield
    finally:
        set_grad_enabled(grad_mode)
        for device, (enabled, dtype) in nesting.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def autocast_state() -> dict[str, tuple[bool, torch.dtype]]:
    """By type of every device that has autocast: whether it is on, and its dtype."""
    return {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in autocast_devices()}


def autocast_on() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types for which autocast is on, with its dtype."""
    if not any_autocast():
        return ()
    return tuple([(device, torch.get_autocast_dtype(device)) for device in autocast_devices() if torch.is_autocast_enabled(device)])
