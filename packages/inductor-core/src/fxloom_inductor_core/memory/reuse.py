"""Which memory each buffer gets, and what becomes of it when the buffer is dead.

In: buffers in the order in which they are made and die. Out: `Allocate` and `Free` steps. A dead buffer's memory is taken over by
a later buffer of the same bytes on the same device, or in place by an output of the very kernel that reads it last. Invariant:
only memory that the program allocated and that nothing else may share is taken over; inputs (but by their own new values), constants
and what a call returned never are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from fxloom_inductor_core.ir.tensors import span
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.expr import Expr, normalize
from fxloom_interfaces.loop_ir import Layout
from fxloom_interfaces.program import Allocate, Free

#: device and bytes
Memory: TypeAlias = "tuple[str, Expr]"


class MemoryPlan:
    """Memory of a program's buffers at one step. reuse: take over memory at all. donated: inputs that are freed when they die."""

    def __init__(self, layouts: Mapping[str, Layout], reuse: bool, donated: Container[str]) -> None:
        self.layouts = layouts
        self.reuse = reuse
        self.donated = donated
        self.results: set[str] = set()  # what calls returned
        self._names: dict[str, deque[str]] = {}  # buffer -> other names of its memory, the latest owner first
        self._owned: dict[str, None] = {}
        self._shared: set[str] = set()
        self._pool: dict[Memory, list[str]] = {}
        self._future: Counter[Memory] = Counter()

    def memory(self, buffer: str) -> Memory:
        """(device, bytes) of a buffer. Symbolic bytes are equal where their expressions are, which holds for every size."""
        layout = self.layouts[buffer]
        elements = span(layout.size, layout.stride)
        return layout.device, normalize(elements * dtype_info(layout.dtype).nbytes)

    def expect(self, buffer: str) -> None:
        """A later step will allocate the buffer."""
        self._future[self.memory(buffer)] += 1

    def share(self, buffers: Iterable[str]) -> None:
        """What a call returns may share memory with these buffers."""
        self._shared.update(buffers)

    def is_own(self, buffer: str) -> bool:
        """Whether the program allocated the buffer and nothing may share its memory."""
        return buffer in self._owned and buffer not in self._shared

    def add_name(self, buffer: str) -> str:
        """A new name of the buffer's memory, for a view of it."""
        names = self._names.setdefault(buffer, deque())
        names.append(f"{buffer}_view{len(names)}")
        return names[-1]

    def names(self, buffer: str) -> list[str]:
        """All names of the buffer's memory."""
        return [buffer, *self._names.get(buffer, ())]

    def _hand_down(self, old: str, new: str) -> None:
        """The names of `old` become further names of `new`, which has its memory now."""
        names = self._names.pop(old, None) or deque()
        names.appendleft(old)
        self._names[new] = names

    def allocate(self, buffer: str, take_over: str | None = None) -> Allocate:
        """Memory for the buffer: that of the dead buffer `take_over`, of another dead one, or new."""
        layout = self.layouts[buffer]
        memory = self.memory(buffer)
        self._future[memory] -= 1
        reuse = take_over
        if reuse is None and self.reuse and self._pool.get(memory):
            reuse = self._pool[memory].pop()
        if reuse is not None:  # the old names hold the memory as well: they go when the new one does
            self._hand_down(reuse, buffer)
        self._owned[buffer] = None
        return Allocate(buffer, layout.device, layout.dtype, layout.size, layout.stride, reuse)

    def go_on(self, buffer: str, base: str, dying: dict[str, None]) -> Allocate:
        """The memory of `base`, which dies here, with what it holds; it is taken out of `dying`."""
        if base not in dying or not self.is_own(base):
            raise InternalError("inductor.memory", f"{buffer} is written on top of {base}, which something else may read")
        del dying[base]
        layout = self.layouts[buffer]
        self._hand_down(base, buffer)
        self._owned[buffer] = None
        return Allocate(buffer, layout.device, layout.dtype, layout.size, layout.stride, base)

    def over(self, buffer: str, given: str) -> Allocate:
        """The memory of the input `given`, which holds the buffer from here on. Nothing else ever gets it."""
        layout = self.layouts[buffer]
        return Allocate(buffer, layout.device, layout.dtype, layout.size, layout.stride, given)

    def in_place(self, buffer: str, pairs: Sequence[tuple[str, str]], dying: dict[str, None]) -> str | None:
        """The dying buffer whose memory `buffer` may take over while it is read; it is taken out of `dying`.

        pairs: (read, written) buffers of a kernel that reads each element before it writes it.
        """
        if not self.reuse:
            return None
        for read, written in pairs:
            if written != buffer or read not in dying or not self.is_own(read):
                continue
            memory = self.memory(read)
            if memory == self.memory(buffer) and memory[1] != 0:
                del dying[read]
                return read
        return None

    def release(self, dying: Iterable[str]) -> Free | None:
        """Keep the memory of dying buffers for later ones that fit it, and free the rest."""
        gone: list[str] = []
        for buffer in dying:
            if buffer in self.donated:
                gone.extend(self.names(buffer))
                continue
            if buffer not in self._owned and buffer not in self.results:
                continue
            memory = self.memory(buffer)
            waiting = len(self._pool.get(memory, ()))
            if self.reuse and self.is_own(buffer) and memory[1] != 0 and self._future[memory] > waiting:
                self._pool.setdefault(memory, []).append(buffer)
            else:
                gone.extend(self.names(buffer))
        return Free(tuple(gone)) if gone else None
