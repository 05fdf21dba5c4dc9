"""Types made while a program is captured: the typing module's own caches hold nothing of a capture."""

import gc
import typing
from typing import Literal, ParamSpec, TypeVar, TypeVarTuple, Union, Unpack

import pytest
import torch
from counted import compared


def unites(x):
    united, optional = Union[int, str] | list, typing.Optional[int]  # noqa: UP007, UP045  # these are what is tested
    return x + 1, (Literal[1] | Literal[2]).__args__, united.__args__, optional, isinstance(3, int | str)


def substitutes(x):
    T, P, Ts = TypeVar("T"), ParamSpec("P"), TypeVarTuple("Ts")
    found = []
    for alias in (list[T], dict[T, int], tuple[T, Unpack[Ts]]):  # noqa: UP044
        for argument in (int, Unpack[Ts], P, (), typing.Union):
            try:
                found.append(len(alias[argument].__args__))
            except TypeError as error:
                found.append(str(error))
    return x + 1, found, T.__name__, T.__module__, P.__covariant__


def casts(x: torch.Tensor):
    y = typing.cast(torch.Tensor, x)
    return typing.cast("torch.Tensor", y) + 1, typing.get_origin(list[int]), typing.get_args(dict[str, int])


@pytest.mark.parametrize("program", [unites, substitutes, casts])
def test_types_are_made_as_they_are(program):
    def both(compiled):
        run = compiled(program)
        found = [str(run(torch.ones(1))) for _ in range(2)]
        gc.collect()
        return found, str(program(torch.ones(1)))  # plain code after it

    assert compared(both).breaks == []


def test_a_type_variable_is_another_one_at_each_call():
    def makes(x):
        T = TypeVar("T")
        return T, list[T], x + 1

    def both(compiled):
        run = compiled(makes)
        first, second = run(torch.ones(1)), run(torch.ones(1))
        return first[0] is second[0], first[1].__parameters__ == (first[0],), second[1].__parameters__ == (second[0],), first[0].__module__

    count = compared(both)
    assert all("cannot_rebuild" in text for text in count.breaks)
