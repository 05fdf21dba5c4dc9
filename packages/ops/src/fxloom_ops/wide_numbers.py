"""Which operators take a number beside half-precision tensors unrounded.

In: an operator's name, the position of the number among its operands, a device. Out: whether the kernel computes with the number in
float32, or rounds it to the half type first.
"""

from __future__ import annotations

#: Operators whose kernels for half types take a number beside them in float32, by device type: positions of that operand.
#: All others convert the number to the half type first. Measured over all bit patterns, on a CPU and on a CUDA device.
_WIDE: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"mul": (1,), "div": (1,), "div_mode": (1,)},
    "": {"add": (0, 1, 2), "sub": (0, 1, 2), "mul": (0, 1), "div": (0, 1), "div_mode": (1,)},
}


def takes_wide_number(op: str, position: int, device: str) -> bool:
    """True where the kernel of `op` takes a number (or a tensor without axes on the CPU) at `position` beside half tensors
    on `device` unrounded, in the type it computes in. div_mode: division with a rounding mode. Position 2 of add and sub: alpha."""
    return position in _WIDE.get(device.partition(":")[0], _WIDE[""]).get(op, ())
