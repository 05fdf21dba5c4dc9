"""Programs that take a decorator and describe what they did: run in eager and captured, with graphs and breaks counted."""

import torch

from fxloom_dynamo import optimize
from fxloom_dynamo.evaluation.frame_reports import ENDINGS


class Count:
    """A decorator that compiles for `eager` and counts what capture made."""

    def __init__(self, **options):
        self.options = options
        self.frames = []

    def __call__(self, fn):
        return optimize("eager", on_capture=self.frames.append, **self.options)(fn)

    @property
    def graphs(self):
        return sum(frame.info.graph is not None for frame in self.frames)

    @property
    def breaks(self):
        """Texts of the breaks; an exception that leaves a frame is none."""
        found = [frame.info.broke for frame in self.frames if frame.info.broke is not None]
        return [str(broke) for broke in found if broke.key not in ENDINGS]


def compare(program, graphs, **options):
    """Demand eager's description of a captured program, this many graphs, and no break."""
    count = compared(program, **options)
    assert (count.graphs, count.breaks) == (graphs, [])


def compared(program, **options):
    """The count of a captured program, which described itself as it does in eager."""
    torch.manual_seed(0)
    expected = program(lambda fn: fn)
    torch.manual_seed(0)
    count = Count(**options)
    assert program(count) == expected
    return count
