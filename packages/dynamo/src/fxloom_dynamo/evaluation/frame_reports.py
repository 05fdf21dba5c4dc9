"""What `explain` tells of a frame: its graph, and why it ended where it did.

`attempts` makes the reports, one per captured frame; `public_api` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fxloom_dynamo.breaks import describe_break
from fxloom_interfaces.errors import GraphBreak, Site


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break as reports show it."""

    key: str
    details: str
    site: Site | None

    def __str__(self) -> str:
        return describe_break(GraphBreak(self.key, self.details, self.site))


#: keys of what ends a frame without being a graph break: the program raises, or an operator does, on fakes at least
RAISES, FAILS = "raises", "fails"
ENDINGS = frozenset({RAISES, FAILS})


@dataclass(frozen=True, slots=True)
class FrameReport:
    """What capture made of one frame. graph: None when no operator was recorded. broke: why it stopped, if it did."""

    name: str
    graph: torch.fx.GraphModule | None
    broke: Break | None
    attempts: int
    steps: int
