"""`record_function` regions are in a profile as eager's are, and split no graph while nobody profiles."""

import time
import warnings

import pytest
import torch
from counted import Count
from torch.profiler import ProfilerActivity, profile, record_function

from fxloom_dynamo import optimize
from fxloom_interfaces import regions
from fxloom_interfaces.errors import GraphRejected


@record_function("decorated")
def decorated(x):
    return x.cos()


def labelled(x):
    y = x + 1
    with record_function("block"):
        y = decorated(y.sin())
    return y * 2


def broken(x):
    with record_function("block"):
        x = x.sin()
        time.sleep(0)
        x = x.cos()
    return x * 2


def shown(run, warm=True):
    """The names within each region."""
    x = torch.ones(2)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True):
        run(x)  # what capture itself does is no part of the program
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        answer = run(x)
    found = {event.name: [child.name for child in event.cpu_children] for event in profiler.events()}
    return {name: children for name, children in found.items() if name in ("block", "decorated")}, answer.tolist()


@pytest.mark.parametrize("program", [labelled, broken])
def test_regions_are_in_the_profile(program):
    count = Count()
    run = count(program)
    run(torch.ones(2))
    assert (count.graphs, len(count.breaks)) == ((1, 0) if program is labelled else (2, 1))
    nodes = [node for frame in count.frames if frame.info.graph for node in frame.info.graph.graph.nodes]
    assert not any(node.target in regions.LABELS for node in nodes)  # nobody profiles
    assert shown(run) == shown(program)
    assert count.graphs == (2 if program is labelled else 5)


def test_a_backend_that_rejects_regions_gets_what_is_between_them():
    graphs = []

    def backend(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.target in regions.LABELS:
                raise GraphRejected(node, "a region")
        graphs.append(gm)
        return gm.forward

    assert shown(optimize(backend)(labelled)) == shown(labelled)
    assert len(graphs) >= 3


def test_with_fullgraph_the_user_is_told():
    run = optimize("eager", fullgraph=True)(labelled)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True), pytest.warns(RuntimeWarning, match="does not show record_function regions"):
        answer = run(torch.ones(2))
    assert torch.equal(answer, labelled(torch.ones(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(torch.ones(2))
