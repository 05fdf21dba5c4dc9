"""What the Triton code generator can do, which the scheduler plans by. Importing this pulls in neither torch nor Triton."""

from __future__ import annotations

from fxloom_codegen_triton.templates import TEMPLATES
from fxloom_interfaces.codegen import Capabilities

#: Rows of up to so many elements stay in registers from the first stage of a kernel to the last.
PERSISTENT_NUMEL = 16384

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

CAPABILITIES = Capabilities(
    arguments="tensor",
    fusions=frozenset({"pointwise", "reduction_prologue", "reduction_epilogue", "horizontal", "grouped"}),
    reductions=frozenset({"sum", "prod", "max", "min", "any", "all", "xor_sum", "argmax", "argmin", "welford"}),
    scans=frozenset({"sum", "prod", "max", "min", "logsumexp"}),
    max_scan_numel=PERSISTENT_NUMEL,
    dtypes=frozenset(_DTYPES),
    scatters=frozenset(
        {f"assign {dtype}" for dtype in _DTYPES}
        | {f"add {dtype}" for dtype in ("int32", "int64", "float16", "bfloat16", "float32", "float64")}
        | {f"{mode} {dtype}" for mode in ("min", "max", "mul") for dtype in ("int32", "int64", "float32", "float64")}
    ),
    random=True,
    least_sets=16,  # writing the table takes as long as several launches
    max_scratch_nbytes=PERSISTENT_NUMEL,  # of elements of one byte, so that such rows always stay in registers
    two_pass_numel=PERSISTENT_NUMEL,
    parallelism=132 * 8,
    enough_rows=132 * 2,
    column_tile=64,
    serial_numel=PERSISTENT_NUMEL,
    uneven_chunks=True,
    templates=frozenset(TEMPLATES),
)
