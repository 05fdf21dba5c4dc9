"""The version of every interface: `(major, minor)`.

A minor step adds (old plugins keep working); a major step changes or removes. The contract snapshot test
(`tests/test_contract_snapshot.py`) fails when a contract changes while its version here does not.
"""

from __future__ import annotations

from typing import NamedTuple


class Version(NamedTuple):
    """An interface version. Prints as `major.minor`."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    def accepts(self, other: Version) -> bool:
        """True when something written for `other` works against this interface."""
        return self.major == other.major and other.minor <= self.minor


TORCH_DIALECT = Version(1, 6)
ATEN_DIALECT = Version(1, 7)
PRIMS_DIALECT = Version(1, 1)
LOOP_IR = Version(2, 2)
BACKEND = Version(1, 2)
CODEGEN = Version(2, 1)
REPLAYER = Version(1, 1)
ARTIFACT_STORE = Version(1, 0)
