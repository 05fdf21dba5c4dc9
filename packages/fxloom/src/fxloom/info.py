"""`python -m fxloom info`: what is installed, what was found, where things are kept.

In: nothing. Out: a dict of versions, plugins, devices and folders (`collect_info`), printed as a table or as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from typing import Any

from fxloom.config import cache_root

#: what oneDNN may or may not compute in, by processor
_ONEDNN = ("float32", "bfloat16", "float16")


def collect_info() -> dict[str, Any]:
    """Versions, plugins, compiler, devices and folders."""
    import torch

    from fxloom_interfaces import versions
    from fxloom_interfaces.plugins import BACKENDS, CODEGENS, REPLAYERS
    from fxloom_shapes.fake import cpu_features

    compiler = os.environ.get("CXX", "g++")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "interfaces": {name.lower(): str(value) for name, value in vars(versions).items() if isinstance(value, versions.Version)},
        "plugins": [str(found) for registry in (BACKENDS, CODEGENS, REPLAYERS) for found in registry.examine()],
        "compiler": shutil.which(compiler) or f"{compiler}: not found; CPU kernels can't be built",
        "cpu": cpu_features.capability(),
        "threads": cpu_features.threads(),
        "onednn": [dtype for dtype in _ONEDNN if cpu_features.onednn_computes(getattr(torch, dtype))] or ["not there"],
        "cuda": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "cache": str(cache_root()),
    }


def print_info(*, as_json: bool) -> int:
    """Print `collect_info`; returns the exit status."""
    found = collect_info()
    if as_json:
        print(json.dumps(found, indent=1))  # noqa: T201  # the command's output
        return 0
    from rich.console import Console
    from rich.table import Table

    out = Table(show_header=False)
    for name, value in found.items():
        out.add_row(
            name,
            "\n".join(map(str, value.items() if isinstance(value, dict) else value)) if isinstance(value, (list, dict)) else str(value),
        )
    Console().print(out)
    return 0
