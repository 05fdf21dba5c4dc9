"""Options of Triton's compiler under which kernels compute what eager's kernels do, one after the other.

In: Triton's backend for a device. Out: the options, by name, that all kernels of ours are compiled with; those that this version
of Triton doesn't know are left out.

- Subnormal results of functions are kept (`enable_reflect_ftz`).
- A product is rounded before it is added to (`enable_fp_fusion`): where `x * x` is computed in two places of a kernel and
  contracted in one of them, `x * x - max(x * x)` is not 0, and a softmax not what it should be.
- Integers wrap around (`sanitize_overflow`). A kernel whose indices are checked is compiled in Triton's debug mode, which would
  take every overflow for a fault, and the process's device with it.
"""

from __future__ import annotations

import functools
from typing import Any

_OFF = ("enable_reflect_ftz", "enable_fp_fusion", "sanitize_overflow")


def options_for(backend: Any) -> dict[str, Any]:
    """Of a backend as `triton.compiler.make_backend` gives it."""
    known = backend.parse_options({})
    return {name: False for name in _OFF if hasattr(known, name)}


@functools.cache
def options_here() -> dict[str, Any]:
    """Of the device that there is; none where kernels are interpreted."""
    from fxloom_codegen_triton.modules import interpreting

    if interpreting():
        return {}
    from triton.compiler import make_backend
    from triton.runtime import driver

    return options_for(make_backend(driver.active.get_current_target()))
