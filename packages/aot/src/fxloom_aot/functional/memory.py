"""The functionalizer's model of the program's memory.

A `Memory` is one storage with the current value of its whole; a `View` is what one fake of the program sees of it, a chain of
view operators; a `Placeholder` is the input of the functional log that a memory starts from.

In: nothing; these are the records that `functionalize` keeps. Invariant: a `View` whose `version` is its memory's holds the value that
the program's tensor has now; an older one has to be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fxloom_aot.functional.views import Chain
from fxloom_aot.recording.recorder import Entry
from fxloom_interfaces.signature import ViewStep
from fxloom_shapes import Descriptor, FakeStorage, FakeTensor


@dataclass(slots=True)
class Memory:
    """A piece of the program's memory. value: of its whole, now. whole: metadata of the whole in the program.

    owner: the fake that is the whole, where one is. members: input numbers on it. flat: stands for several inputs.
    version: number of writes. last_write_backward: a write came in the backward part.
    """

    value: FakeTensor
    whole: Descriptor
    owner: FakeTensor | None
    members: tuple[int, ...] = ()
    flat: bool = False
    constant: bool = False
    version: int = 0
    last_write_backward: bool = False


@dataclass(slots=True)
class View:
    """What a fake of the program is: a chain on a memory. value: as of `version` of the memory; desc: its metadata now.

    made: the operators that the program made it by from the memory's owner, for autograd: where `chain` sees only the memory
    (as_strided), these still tell what the program applied as_strided to. entry: the last of them.
    """

    memory: Memory
    chain: Chain
    value: FakeTensor
    version: int
    desc: Descriptor
    made: tuple[ViewStep, ...] = ()
    entry: Entry | None = None


@dataclass(slots=True)
class ProgramInput:
    """One flat input of the program. initial, storage, version: as they were before the program ran; fake is None for numbers."""

    fake: FakeTensor | None
    initial: Descriptor | None
    storage: FakeStorage | None
    number: Any = None
    version: int = 0


@dataclass(slots=True)
class Placeholder:
    """One input of the functional log. input: number of the program's input, or of the first on a flat storage."""

    memory: Memory
    input: int
    flat: bool
