"""What C code makes of answers that methods of the program give it, of class attributes, and of exceptions handled outside."""

import collections
import functools
import sys
import types
import warnings

import pytest
import torch
from counted import Count, compare, compared


class Truth:
    def __init__(self, value):
        self.value = value

    def __bool__(self):
        return self.value


class Length:
    def __init__(self, value):
        self.value = value

    def __len__(self):
        return self.value


class Number:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __float__(self):
        return self.value


class Whole(int):
    pass


def judges_answers(compiled):
    def program(x):
        found = []
        for value in (Truth(True), Truth(1), Truth("x"), Truth(None), Length(3), Length(-1), Length(0), Length(True), Length(1.5)):
            try:
                found.append(1 if value else 0)
            except (TypeError, ValueError) as error:
                found.append(str(error))
        for target, value in ((int, "5"), (float, "5"), (float, 2.5), (hex, 7), (complex, 1.0)):
            try:
                found.append(target(Number(value)))
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    answer = compiled(program)(torch.ones(2))
    return answer[0].tolist(), answer[1]


class Setting:
    def __set__(self, instance, value):
        vars(instance)["held"] = value


class Holder:
    held = Setting()


class Names(type):
    __call__ = dict


class Static(type):
    @staticmethod
    def __call__(*args):
        return args


class Named(metaclass=Names):
    pass


class Plain(metaclass=Static):
    pass


def follows_classes(compiled):
    def program(x):
        holder = Holder()
        before = holder.held is vars(Holder)["held"]
        holder.held = 3
        return x + 1, before, holder.held, Named(a=1), Plain(3)

    answer = compiled(program)(torch.ones(2))
    return answer[0].tolist(), answer[1:]


class Base:
    inherited = 1


class Derived(Base):
    own = 2


def deletes_of_classes(compiled):
    def program(x):
        found = []
        for name in ("inherited", "own", "own"):
            try:
                delattr(Derived, name)
                found.append(name)
            except AttributeError as error:
                found.append(str(error))
        try:
            del str.lower
        except TypeError as error:
            found.append(str(error))
        return x + 1, found

    run = compiled(program)
    answers = []
    for _ in range(2):
        Derived.own = 2
        answers.append((run(torch.ones(2))[1], hasattr(Derived, "own"), hasattr(Derived, "inherited")))
    return answers


@pytest.mark.parametrize("program", [judges_answers, follows_classes, deletes_of_classes])
def test_one_graph(program):
    compare(program, 1)


def test_results_of_subclasses_warn():
    def program(x):
        return x + int(Number(Whole(3))), 1 if NotImplemented else 0

    def caught(compiled):
        run = compiled(program)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run(torch.ones(2))
        return [(str(item.message), item.lineno) for item in found]

    assert all(text.startswith("warns: ") for text in compared(caught).breaks)


def asks(x):
    return x + 1, repr(sys.exc_info()[1]), repr(sys.exception())


def raises_again(x):
    y = x + 1
    try:
        raise  # noqa: PLE0704  # what the caller handles
    except (KeyError, RuntimeError) as error:
        return y, repr(error), repr(error.__context__)


@pytest.mark.parametrize("program", [asks, raises_again])
def test_an_exception_that_the_caller_handles(program):
    def calls(compiled):
        run = compiled(program)
        found = [run(torch.ones(2))[1:]]
        for number in range(2):
            try:
                raise KeyError(number)
            except KeyError:
                found.append(run(torch.ones(2))[1:])
        return [*found, run(torch.ones(2))[1:]]

    expected = calls(lambda fn: fn)
    count = Count()
    assert calls(count) == expected
    assert not count.breaks and count.graphs <= 3


def writes_what_c_descriptors_keep(compiled):
    def program(x, table, part):
        table.default_factory = list
        part.note = 3
        return x + 1, table["new"]

    run = compiled(program)
    found = []
    for _ in range(2):
        table, part = collections.defaultdict(int, a=1), functools.partial(int, "3")
        found.append((run(torch.ones(2), table, part)[1], table.default_factory, dict(table), vars(part)))
    return found


def test_what_c_descriptors_keep_is_written():
    count = compared(writes_what_c_descriptors_keep)
    assert count.breaks[0].startswith("mutates_foreign_state: writes attribute 'note' of a partial")


class Method:
    def __init__(self, function):
        self.function = function

    def __call__(self, cls):
        return self.function(cls)

    def __get__(self, instance, owner=None):
        return types.MethodType(self, type(instance) if owner is None else owner)


class Wrapped:
    @classmethod
    @Method
    def outer(cls):
        return cls.__name__

    @classmethod
    @classmethod
    def twice(cls):
        return cls.__name__


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="class methods don't bind what they wrap any more")
def test_class_methods_bind_what_they_wrap():
    def program(compiled):
        answer = compiled(lambda x: (x + 1, Wrapped.outer(), Wrapped.twice(), Wrapped().outer()))(torch.ones(2))
        return answer[1:]

    compare(program, 1)
