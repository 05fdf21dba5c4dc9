"""Why neighbouring kernels are not one: what the scheduler decided, in words.

In: a scheduler that has run, its groups in order, the name of each group's kernel. Out: a line for each pair of neighbours. Neighbours
are a kernel and those that read what it writes; and a kernel and the last one before it that reads what it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fxloom_inductor_core.scheduler.fusion import Scheduler
from fxloom_inductor_core.scheduler.groups import Group
from fxloom_interfaces.telemetry import KernelsKeptApart


def kept_apart(scheduler: Scheduler, groups: Sequence[Group], names: Mapping[int, str]) -> list[KernelsKeptApart]:
    """Each pair of kernels with its reason once, in the order in which the later kernels run. names: of kernels, by group number; groups
    that compute nothing that anyone reads have none."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for first, second in neighbours([group for group in groups if group.number in names]):
        counts[names[first.number], names[second.number], scheduler.why_apart(first, second)] += 1
    return [KernelsKeptApart(first, second, reason, count) for (first, second, reason), count in counts.items()]


def neighbours(groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
    """Pairs of groups, the one that runs first in front. groups: in the order in which they run."""
    by_number = {group.number: group for group in groups}
    last_reader: dict[str, Group] = {}
    for group in groups:
        near = {number: by_number[number] for number in group.before if number in by_number}
        for buffer in group.reads:
            if buffer in last_reader:
                near.setdefault(last_reader[buffer].number, last_reader[buffer])
            last_reader[buffer] = group
        for first in near.values():
            yield first, group


def as_text(pairs: Sequence[KernelsKeptApart]) -> str:
    """The content of `kept_apart.txt`."""
    return "".join(f"{pair}\n" for pair in pairs) or "no two kernels are neighbours\n"
