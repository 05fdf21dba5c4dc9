"""Unguarded texts and append-only lists compile twice; where their contents matter, for each of these."""

from collections import deque

import pytest
import torch
from counted import Count

from fxloom_dynamo.objects.unguarded import AppendOnly, Unguarded

X = torch.ones(2)


def merges_a_sample(compiled):
    run = compiled(lambda batch: {**batch, "y": batch["x"] * 2})
    return [run({"x": X, "path": f"/{i}.png", "raw": b"%d" % i, "at": (i + 2, f"{i}")}) for i in range(9)]


def stores_a_text(compiled):
    class Sink:
        pass

    sink = Sink()

    def program(x, text):
        sink.name, sink.names = text, [text]
        assert isinstance(text, str) and text is not None
        return x + 1

    run = compiled(program)
    return [(run(X, f"{i}"), sink.name, sink.names) for i in range(9)]


def logs(compiled):
    held, window = {"loss": []}, deque()

    def program(x):
        held["loss"].append(x.sum())
        held["loss"].extend([1, "a"])
        window.append(x * 2)
        return x + 1

    run = compiled(program)
    return [(run(X + i), list(held["loss"]), list(window)) for i in range(9)]


def returns_what_it_adds_to(compiled):
    run = compiled(lambda x, items: (items.append(x * 2), items)[1])
    given = [[0] * i for i in range(6)]
    return [run(X, items) is items for items in given], given


def compares(compiled):
    run = compiled(lambda x, text: x * 2 if text == "a" else x * 3)
    return [run(X, text) for text in "abcabc"]


def finds_in_a_dict(compiled):
    table = {"a": 1, "b": 5}
    run = compiled(lambda x, text: x * table.get(text, 7))
    return [run(X, text) for text in "abcabc"]


def is_confused(compiled):
    def program(x, text):
        try:
            return x * int(text)
        except ValueError:
            return x - 1

    run = compiled(program)
    return [run(X, text) for text in ("1", "a", "2")]


def joins(compiled):
    run = compiled(lambda x, text: (x * 2, "-".join([text, "b"])))
    return [run(X, text) for text in "abc"]


def is_one_of_two(compiled):
    run = compiled(lambda x, left, right: x + 1 if left is right else x + 2)
    return [run(X, *pair) for pair in (("a", "b"), ("a", "a"), ("b", "b"))]


def asks_for_the_length(compiled):
    held = []

    def program(x):
        held.append(x * 2)
        return x + len(held)

    run = compiled(program)
    return [run(X) for _ in range(3)], held


def adds_under_two_names(compiled):
    def program(x, first, second):
        first.append(x * 2)
        second.append(x * 3)
        return x + 1

    run, results = compiled(program), []
    for i in range(8):
        first = [0] * i
        second = first if i % 2 else [1] * i
        results.append((run(X, first, second), first, second))
    return results


@pytest.mark.parametrize(
    "program, frames",
    [
        (merges_a_sample, 2), (stores_a_text, 2), (logs, 2), (returns_what_it_adds_to, 2),
        (compares, 3), (finds_in_a_dict, 3), (is_confused, 3), (joins, 3), (is_one_of_two, 3), (asks_for_the_length, 3),
        (adds_under_two_names, 3),
    ],
)  # fmt: skip
def test_compilations_of_unguarded_values(program, frames):
    count = Count()
    assert str(program(count)) == str(program(lambda fn: fn))
    assert (len(count.frames), count.breaks) == (frames, [])


def test_a_list_that_grows_is_not_read():
    held = [float(i) for i in range(2000)]

    def program(x):
        held.append(1.0)
        return x + 1

    count = Count()
    run = count(program)
    for _ in range(4):
        run(X)
    assert len(held) == 2004 and len(count.frames) == 2
    assert all(len(frame.guards) < 20 for frame in count.frames)


def test_the_method_of_an_append_only_list_waits_across_a_break():
    held = []

    def program(x):
        held.append(x.sum().item())
        return x + 1

    count = Count()
    run = count(program)
    for _ in range(6):
        run(X)
    assert held == [2.0] * 6
    assert len(count.frames) == 4  # two of each part


@pytest.mark.parametrize("kind", [list, deque])
def test_items_are_read_after_others_were_added(kind):
    def program(x, items, how):
        items.append(x * 2)
        match how:
            case 0:
                return [item + 1 for item in items]
            case 1:
                return items.pop(), items.popleft() if kind is deque else items.pop(0), len(items)
            case 2:
                items.reverse()
                items.append(7)
                return items[0], items[-2], 7 in list(items)[-1:]
            case 3:
                items.append(items[0])
                items[1] = 3
                return sum(items)
            case 4:
                items.clear()
                items.extend([4])
                return items.count(4)
        return None

    results = []
    for compiled in (lambda fn: fn, Count(fullgraph=True)):
        run = compiled(program)
        given = [kind([5, X.clone(), 6.5]) for _ in range(10)]
        results.append(str([(run(X, items, at % 5), items) for at, items in enumerate(given)]))
    assert results[0] == results[1]


@pytest.mark.parametrize("cls", [Unguarded, AppendOnly])
def test_every_question_is_asked(cls):
    class Asked(Exception):
        pass

    def ask():
        raise Asked

    value = cls(str, ask)
    questions = [hash, bool, len, iter, str, repr, int, float, lambda v: v == 1, lambda v: v < 1, lambda v: v + "a", lambda v: "a" + v,
                 lambda v: v % 1, lambda v: v[0], lambda v: "a" in v, lambda v: f"{v}", lambda v: {v: 1}, lambda v: [v].index("a"),
                 lambda v: v * 2, lambda v: open(v)]  # fmt: skip  # noqa: SIM115  # never opened
    for question in questions:
        with pytest.raises(Asked):
            question(value)
