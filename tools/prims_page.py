"""Writes docs/prims.md: the prims and the calls beside them, from their registers in fxloom_interfaces.

    python3 tools/prims_page.py            # says whether the page is stale
    python3 tools/prims_page.py --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated_page import refresh

PAGE = Path(__file__).resolve().parent.parent / "docs" / "prims.md"

HEAD = """# Prims

Written by `tools/prims_page.py` from the registers; a test fails when it is stale. This is dialect `prims` {version}, of which
[plugins.md](plugins.md#a-backend-that-takes-prims) says how to take it.

- A graph is a straight line of calls of prims (`fxloom_interfaces.prims.Prim` objects), of listed calls (below), of `operator.getitem` on
  their results, and of arithmetic on numbers as in the aten dialect. `fxloom_interfaces.dialects.prims_dialect.verify` checks it.
- Nothing broadcasts: operands of an elementwise prim have one size. Nothing is promoted: they have one type. Nothing aliases: each result
  is a value of its own, and nothing is written. Values have no strides.
- Elements are float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64 and bool. A prim of float16 or bfloat16 gives the
  result of a computation in float32, rounded once.
- Sizes among the arguments are ints or numbers of the graph (`aten.sym_size.int` of a value, placeholders, arithmetic). Axes count from 0.
- `infer` gives size and type of the results, and IRError for operands that break the rule; `reference` is the meaning, in eager torch.
"""


def page() -> str:
    """The page as it should be."""
    from fxloom_interfaces.prim_calls import documentation as calls
    from fxloom_interfaces.prims import documentation as prims
    from fxloom_interfaces.versions import PRIMS_DIALECT

    return f"{HEAD.format(version=PRIMS_DIALECT)}\n{prims()}\n{calls()}"


if __name__ == "__main__":
    sys.exit(refresh(PAGE, page(), sys.argv[1:]))
