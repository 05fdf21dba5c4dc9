"""What is not to be fused, of the pairs that `fusion` proposes: each rule may refuse two groups of loops one loop nest.

In: a `Merge`, two groups and how they would run together. Out: True from every rule of `FUSION_VETOES`, or they stay apart. These are
rules of the target and of speed. That values are read where they were written, and that no cycle arises, is not decided by rules:
`fusion` sees to it. The first line of a rule's docstring is what users read as the reason where it refuses (`kept_apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fxloom_inductor_core.scheduler.groups import Group, Member, Space
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.expr import product


@dataclass(frozen=True, slots=True)
class Merge:
    """`second` running in the loops of `first`, which is earlier in the program.

    space, members: of the group that would come out. depends: `second` reads what `first` writes. capabilities: of the target.
    """

    first: Group
    second: Group
    space: Space
    members: Sequence[Member]
    depends: bool
    capabilities: Capabilities


FusionRule: TypeAlias = Callable[[Merge], bool]


def fits_in_one_launch(merge: Merge) -> bool:
    """Together they have more arguments than the target takes."""
    first, second = merge.first, merge.second
    buffers = {**first.reads, **first.writes, **second.reads, **second.writes}
    return len(buffers) + len(first.sizes | second.sizes) <= merge.capabilities.max_arguments


def scatters_stay_alone(merge: Merge) -> bool:
    """One of them scatters: what several points write to is complete only when the kernel has ended.

    Points that meet may have to run in order, too.
    """
    return not any(member.traits.is_scatter for member in merge.members)


def target_fuses_pointwise(merge: Merge) -> bool:
    """The target fuses no elementwise loops."""
    return merge.space.inner is not None or "pointwise" in merge.capabilities.fusions


def scans_stay_alone(merge: Merge) -> bool:
    """One of them is a scan, which runs over its axis in order."""
    return merge.space.inner is None or not any(member.traits.is_scan for member in merge.members)


def keeps_parallelism(merge: Merge) -> bool:
    """There are few long rows: an elementwise loop within them would run on few processors.

    Only what folds the same rows may share the loop.
    """
    outer, able = product(merge.space.outer), merge.capabilities
    together = able.column_tile if any(member.traits.folds_columns for member in merge.members) else 1
    if merge.space.inner is None or not isinstance(outer, int) or outer >= (able.enough_rows or able.parallelism) * together:
        return True
    row = product(merge.space.inner)
    if isinstance(row, int) and row * together <= able.serial_numel:
        return True
    return not any(member.inside and not member.traits.is_reduction for member in merge.members)


def independent_folds_have_one_space(merge: Merge) -> bool:
    """They fold over different extents, and neither reads the other: they share nothing but the loop, which has to be the same."""
    return merge.space.inner is None or merge.depends or merge.first.space == merge.second.space


def rows_and_columns_stay_apart(merge: Merge) -> bool:
    """One of them folds rows of memory and the other columns: in one loop one of the two would be read at long strides."""
    if merge.space.inner is None or merge.depends:
        return True
    kinds = {member.traits.folds_columns for member in merge.members if member.traits.is_reduction}
    return len(kinds) < 2


def target_fuses_with_reductions(merge: Merge) -> bool:
    """The target fuses no elementwise loops with reductions of this kind."""
    if merge.space.inner is None or not merge.depends:
        return True
    ends_in_fold = any(member.traits.is_reduction for member in merge.first.members)
    return ("reduction_epilogue" if ends_in_fold else "reduction_prologue") in merge.capabilities.fusions


#: All have to agree; the ones that are cheap to ask come first.
FUSION_VETOES: list[FusionRule] = [
    fits_in_one_launch,
    scatters_stay_alone,
    target_fuses_pointwise,
    scans_stay_alone,
    keeps_parallelism,
    independent_folds_have_one_space,
    rows_and_columns_stay_apart,
    target_fuses_with_reductions,
]


def reason_of(rule: FusionRule) -> str:
    """Why two loops stay apart that the rule refuses, in words."""
    text = (rule.__doc__ or getattr(rule, "__name__", "a rule refuses").replace("_", " ")).strip().splitlines()[0]
    return text[:1].lower() + text[1:].rstrip(".")
