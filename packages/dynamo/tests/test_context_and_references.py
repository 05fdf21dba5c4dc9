"""Context variables and weak references in a compiled region: eager's values, in one graph."""

import contextvars
import time
import weakref

import pytest
import torch
from counted import Count, compare, compared

UNSET = contextvars.ContextVar("UNSET")
LEVEL = contextvars.ContextVar("LEVEL", default=1)


class Scope:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        self.token = UNSET.set(self.value)

    def __exit__(self, *exc):
        UNSET.reset(self.token)


def in_a_context(fn):
    return lambda compiled: contextvars.copy_context().run(fn, compiled)


@in_a_context
def scopes(compiled):
    def program(x, n):
        found = []
        try:
            UNSET.get()
        except LookupError:
            found.append("unset")
        with Scope(n):
            y = x * UNSET.get()
            with Scope(7):
                y = y * UNSET.get()
            y = y * UNSET.get()
        return y, found, UNSET.get("nothing"), LEVEL.get()

    run = compiled(program)
    return [(answer[0].tolist(), answer[1:]) for answer in (run(torch.ones(2), 5), run(torch.ones(2), 5))]


@in_a_context
def sets(compiled):
    def program(x):
        LEVEL.set(LEVEL.get() + 1)
        UNSET.set(x + 1)
        return UNSET.get() * LEVEL.get()

    run = compiled(program)
    answers = []
    for _ in range(2):
        LEVEL.set(3)
        answers.append((run(torch.ones(2)).tolist(), LEVEL.get(), UNSET.get().tolist()))
    return answers


class Node:
    def __init__(self, parent=None):
        self.parent = None if parent is None else weakref.ref(parent)
        self.children = []

    def add(self):
        self.children.append(Node(self))
        return self.children[-1]


def trees(compiled):
    def program(x, known):
        root = Node()
        child = root.add()
        child.add()
        reference = weakref.ref(known)
        return x + len(child.parent().children), root, reference, reference() is known, reference is weakref.ref(known)

    known = Node()
    run = compiled(program)
    for _ in range(2):
        y, root, reference, *same = run(torch.ones(2), known)
    return y.tolist(), root.children[0].parent() is root, reference() is known, same


@pytest.mark.parametrize("program", [scopes, sets, trees])
def test_one_graph(program):
    compare(program, 1)


def test_a_variable_that_changes_is_noticed():
    def program(compiled):
        def reads(x):
            return x + LEVEL.get() if UNSET.get(None) is None else x * UNSET.get()

        run = compiled(reads)
        found = [run(torch.ones(2)).tolist()]
        LEVEL.set(5)
        found.append(run(torch.ones(2)).tolist())
        UNSET.set(4)
        return [*found, run(torch.ones(2)).tolist()]

    assert not compared(in_a_context(program)).breaks


def test_a_token_that_outlives_its_graph_is_a_break():
    def program(compiled):
        def breaks(x):
            with Scope(3):
                y = x * UNSET.get()
                time.sleep(0)
                y = y * UNSET.get()
            return y, UNSET.get("nothing")

        answer = compiled(breaks)(torch.ones(2))
        return answer[0].tolist(), answer[1]

    assert any("token" in text for text in compared(in_a_context(program)).breaks)


def test_a_reference_to_what_may_be_gone_is_a_break():
    def program(compiled):
        def drops(x):
            node = Node()
            reference = weakref.ref(node)
            alive = reference() is node
            del node
            return x + 1, alive, reference()

        answer = compiled(drops)(torch.ones(2))
        return answer[0].tolist(), answer[1:]

    count = Count()
    assert program(count) == program(lambda fn: fn)
    assert len(count.breaks) == 1 and "an object that no variable holds" in count.breaks[0]
