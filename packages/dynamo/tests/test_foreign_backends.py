"""Backends that trace a graph again on its example inputs, or on those of its first call, must not make constants of numbers."""

import warnings

import pytest
import torch

from fxloom_dynamo import optimize
from fxloom_dynamo.guard.dynamic_shapes import mark_dynamic, mark_unbacked
from fxloom_interfaces.errors import BackendCompilerFailed
from fxloom_interfaces.plugins import BACKENDS


def baking(gm, example_inputs):
    """What a tracer does with numbers, on the inputs that it is shown."""
    numbers = {at: value for at, value in enumerate(example_inputs) if not isinstance(value, torch.Tensor)}
    return lambda *args: gm(*(numbers.get(at, arg) for at, arg in enumerate(args)))


def baking_by_index(gm, example_inputs):
    first = example_inputs[0]
    return baking(gm, [first, *(example_inputs[at] for at in range(1, len(example_inputs)))])


def baking_sizes(gm, example_inputs):
    shapes = [tuple(value.shape) for value in example_inputs if isinstance(value, torch.Tensor)]

    def run(*args):
        assert [tuple(value.shape) for value in args if isinstance(value, torch.Tensor)] == shapes
        return gm(*args)

    return run


def baking_later(gm, example_inputs):
    """Traces when it runs first."""
    run = None

    def lazy(*args):
        nonlocal run
        run = run or baking(gm, args)
        return run(*args)

    return lazy


def baking_what_was_kept(gm, example_inputs):
    def lazy(*args):
        return baking(gm, example_inputs)(*args)

    gm.kept = example_inputs
    return lazy


def by_jit(gm, example_inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(gm, tuple(example_inputs), check_trace=False)


def hiding_faults(gm, example_inputs):
    try:
        return baking(gm, example_inputs)
    except BaseException:
        return gm.forward


TRACERS = [baking, baking_by_index, baking_sizes, baking_later, baking_what_was_kept, by_jit, hiding_faults]


def mean(x):
    return x.sum(0) / x.shape[0]


def scaled(x, factor):
    return x * factor + x.shape[0]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("backend", TRACERS)
def test_a_tracer_gets_a_graph_per_size(backend, dynamic):
    compiled = optimize(backend, dynamic=dynamic)(mean)
    for rows in (5, 7, 9, 11, 7, 5):
        torch.testing.assert_close(compiled(torch.ones(rows, 3)), torch.ones(3))


@pytest.mark.parametrize("mark", [mark_dynamic, mark_unbacked])
@pytest.mark.parametrize("backend", [baking, by_jit])
def test_marks_make_no_numbers_of_sizes(backend, mark):
    compiled = optimize(backend)(mean)
    for rows in (5, 7, 9):
        x = torch.ones(rows, 3)
        mark(x, 0)
        torch.testing.assert_close(compiled(x), torch.ones(3))


@pytest.mark.parametrize("numbers", [(2, 3, 4, 5), (0.5, 1.5, 2.5, 3.5)])
@pytest.mark.parametrize("shapes", [None, {"factor": "dynamic"}])
@pytest.mark.parametrize("backend", TRACERS)
def test_a_tracer_gets_a_graph_per_number(backend, shapes, numbers):
    frames = []
    compiled = optimize(backend, dynamic_shapes=shapes, on_capture=frames.append)(scaled)
    x = torch.arange(4.0)
    for number in (*numbers, *numbers):
        torch.testing.assert_close(compiled(x, number), scaled(x, number))
    assert len(frames) == len(numbers)
    for frame in frames:
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in frame.info.graph.graph.nodes if node.op == "placeholder")


def test_a_registered_backend_is_no_other():
    BACKENDS.register("bakes", baking)
    try:
        compiled = optimize("bakes")(mean)
        for rows in (5, 7, 9, 11):
            torch.testing.assert_close(compiled(torch.ones(rows, 3)), torch.ones(3))
    finally:
        BACKENDS.unregister("bakes")


def test_what_declares_that_it_takes_integers_has_one_graph_for_all_sizes():
    seen = []

    def backend(gm, example_inputs):
        seen.append([type(value) for value in example_inputs])
        return lambda *args: gm(*args)

    backend.takes_integers = True
    compiled = optimize(backend)(mean)
    for rows in (5, 7, 9, 11):
        compiled(torch.ones(rows, 3))
    assert seen == [[torch.Tensor], [torch.Tensor, int]]


def test_the_graph_itself_serves_all_sizes():
    graphs = []
    compiled = optimize(lambda gm, example_inputs: graphs.append(gm) or gm.forward)(mean)
    for rows in (5, 7, 9, 11):
        torch.testing.assert_close(compiled(torch.ones(rows, 3)), torch.ones(3))
    assert len(graphs) == 2


def test_a_backend_is_not_shown_numbers_even_once():
    seen = []

    def backend(gm, example_inputs):
        seen.append([type(value) for value in example_inputs])
        return gm.forward

    compiled = optimize(backend, dynamic=True)(scaled)
    for rows in (5, 7, 9):
        compiled(torch.ones(rows, 3), 2 + rows)
    assert seen == [[torch.Tensor]] * 3


def test_a_backend_that_fails_fails_as_it_does_for_one_size():
    def backend(gm, example_inputs):
        raise ValueError("no")

    with pytest.raises(BackendCompilerFailed, match="ValueError: no"):
        optimize(backend, dynamic=True)(mean)(torch.ones(5, 3))


def test_over_the_limit_the_backend_is_named_as_the_cause():
    compiled = optimize(baking, recompile_limit=2)(mean)
    for rows in (5, 7):
        compiled(torch.ones(rows, 3))
    with pytest.warns(RuntimeWarning, match="takes_integers"):
        torch.testing.assert_close(compiled(torch.ones(9, 3)), torch.ones(3))
