"""What the training programs under test share: how they are listed, run with and without a compiler, and compared.

A program gets a function that compiles (or, for eager, does nothing) and returns what it saw: tensors, numbers, strings, the
error that it met. Both have to see the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fxloom

Compile = Callable[[Any], Any]
Program = Callable[[Compile], Any]


def registry() -> tuple[dict[str, Program], Callable[[Program], Program]]:
    """Programs by name, and the decorator that lists one."""
    programs: dict[str, Program] = {}

    def program(fn: Program) -> Program:
        programs[fn.__name__] = fn
        return fn

    return programs, program


def both(program: Program, backend: str) -> tuple[Any, Any]:
    """What a program sees compiled, and in eager, from one seed; `inductor` draws eager's numbers."""
    torch.manual_seed(0)
    wanted = program(lambda fn: fn)
    options = {"eager_numbers": True} if backend == "inductor" else None
    torch.manual_seed(0)
    return program(lambda fn: fxloom.compile(fn, backend=backend, options=options)), wanted


def leaf(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def grads(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def raising(run: Callable[[], Any]) -> str:
    """The kind of the error and the beginning of what it says."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:40]}"
    return "no error"


def same(got: Any, wanted: Any, where: str, tolerance: float = 2e-5) -> None:
    if isinstance(wanted, Tensor):
        assert isinstance(got, Tensor), f"{where}: {got!r}, eager {wanted!r}"
        assert got.requires_grad == wanted.requires_grad, f"{where}: requires_grad {got.requires_grad}"
        assert got.is_leaf == wanted.is_leaf, f"{where}: is_leaf {got.is_leaf}"
        assert got.stride() == wanted.stride(), f"{where}: strides {got.stride()}, eager {wanted.stride()}"
        options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "msg": lambda m: f"{where}: {m}"}
        torch.testing.assert_close(got.detach(), wanted.detach(), **options)
    elif isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted) and len(got) == len(wanted), f"{where}: {got!r}, eager {wanted!r}"
        for number, pair in enumerate(zip(got, wanted, strict=True)):
            same(*pair, f"{where}[{number}]", tolerance)
    else:
        assert got == wanted, f"{where}: {got!r}, eager {wanted!r}"
