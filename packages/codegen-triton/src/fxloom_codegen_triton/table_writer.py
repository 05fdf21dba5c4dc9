"""The kernel that writes the tables of grouped kernels: its arguments are the words.

In: nothing. Out: its source. Words travel as arguments of a launch, so that nothing is copied from the host's memory, which would have
to stay as it is for as long as a CUDA graph replays the copy.
"""

from __future__ import annotations

from fxloom_codegen_common.writer import SourceWriter
from fxloom_interfaces.codegen import KernelSource

#: Words that one launch of the table's writer takes, 8 bytes each: CUDA takes 4 KiB of arguments on every GPU.
WORDS = 480


def emit_writer(name: str) -> KernelSource:
    """The source of `name(table, first, *words)`, which writes WORDS integers to the table, from its word `first` on."""
    words = [f"word_{number}" for number in range(WORDS)]
    writer = SourceWriter()
    writer.line(f"@triton.jit(do_not_specialize=range(1, {WORDS + 2}))")
    writer.line(f"def {name}(table, first, {', '.join(words)}):")
    with writer.indent():
        for number, word in enumerate(words):
            writer.line(f"tl.store(table + first + {number}, {word})")
    return KernelSource(name, "triton", writer.text(), {"helpers": ()})
