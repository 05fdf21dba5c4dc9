"""The storages of a compiled graph's inputs: what a call has to check of them, and one of them as a flat tensor.

In: the flat inputs of a call. Out: nothing, or `StorageChanged` where inputs that shared a storage when the graph was made do not
share it in the same way now; `whole_storage` gives a tensor over all of a storage, without a copy and without history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxloom_interfaces.errors import InternalError


class StorageChanged(InternalError):
    """Inputs are at other places in their memory than when the graph was made; a guard of whoever calls has to see that."""

    def __init__(self, details: str) -> None:
        super().__init__("aot runtime", f"{details}; a guard is missing")
        self.details = details


class StorageCheck:
    """Inputs `members` must share storage at these offsets (in elements); what the graph was made for."""

    __slots__ = ("members", "offsets")

    def __init__(self, members: tuple[int, ...], offsets: tuple[int, ...]) -> None:
        self.members, self.offsets = members, offsets

    def __call__(self, args: Sequence[Any]) -> None:
        first = args[self.members[0]].untyped_storage()._cdata
        for member, offset in zip(self.members, self.offsets, strict=True):
            tensor = args[member]
            if tensor.untyped_storage()._cdata != first or tensor.storage_offset() != offset:
                raise StorageChanged(
                    f"input {member} was traced at offset {offset} of storage shared by inputs {self.members}, "
                    f"and is now at offset {tensor.storage_offset()}"
                )


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of `tensor` as one flat tensor of its dtype."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    with torch.no_grad():
        return tensor.detach().as_strided((length,), (1,), 0)
