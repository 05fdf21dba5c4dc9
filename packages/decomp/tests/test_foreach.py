"""Foreach operators and fused optimizers: every functional overload by its rule, beside eager's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxloom_decomp
from fxloom_decomp.registry import Op

RULES = {op: entry.call for op, entry in fxloom_decomp.registered().items()}
FOREACH = sorted((op for op in RULES if "_foreach_" in str(op)), key=str)
FUSED = sorted((op for op in RULES if str(op).startswith("aten._fused_") and "Tensor[] grads" in str(op._schema)), key=str)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.uint8, torch.bool)
#: less accurate in half types where eager rounds once and the plain operator, which the rule calls, does too: one step of the type
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def tensors(dtype: torch.dtype, seed: int, positive: bool = True) -> list[torch.Tensor]:
    """Of several shapes and layouts, among them none, one and no elements."""
    generator = torch.Generator().manual_seed(seed)

    def one(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) * 3 + 0.25).to(dtype)

    return [one(3, 4), one(5), one(), one(2, 0), one(4, 3).t(), one(3, 6)[:, ::2]]


def arguments(op: Op, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """For each argument of the schema: lists of tensors, of numbers, or one of them."""
    whole = not dtype.is_floating_point and not dtype.is_complex
    number: Any = 2 if whole else 0.75
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.name == "scalars" and kind == "Tensor":
            value: Any = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.25]).to(torch.int64 if whole else torch.float32)
        elif kind == "List[Tensor]":
            value = tensors(dtype, position)
            if "mm" in op.name():
                value = [value[4 * position].reshape(3 + position, 4 - position)]
        elif kind.startswith("List"):
            value = [number + (n if whole else n / 8) for n in range(6)]
        elif kind == "Tensor":
            value = torch.tensor(number).to(dtype)
        elif argument.name in ("scalar", "self", "exponent", "weight", "value", "alpha"):
            value = number
        else:
            continue
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def same(mine: Any, eager: Any, dtype: torch.dtype) -> None:
    assert type(mine) in (list, tuple) and len(mine) == len(eager)
    for own, given in zip(mine, eager, strict=True):
        if isinstance(given, (list, tuple)):
            same(own, given, dtype)
            continue
        assert own.dtype == given.dtype and own.shape == given.shape and own.stride() == given.stride()
        rtol = TOLERANCE.get(dtype, 1e-5)
        torch.testing.assert_close(own, given, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.parametrize("op", FOREACH, ids=str)
def test_a_foreach_operator_is_the_plain_one_at_each_place(op: Op) -> None:
    compared = 0
    for dtype in DTYPES:
        args, kwargs = arguments(op, dtype)
        if op in (torch.ops.aten._foreach_max.default, torch.ops.aten._amp_foreach_non_finite_check_and_unscale.default):
            args[0] = [x for x in args[0] if x.numel()]
        if op is torch.ops.aten._amp_foreach_non_finite_check_and_unscale.default:
            args[1:] = [torch.zeros(1), torch.full((1,), 0.5)]
        try:
            eager = op(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            continue  # a type that eager refuses, which it does while the program is recorded
        mine = RULES[op](*args, **kwargs)
        if mine is NotImplemented:
            assert dtype.is_complex or not dtype.is_floating_point, f"{op} declined {dtype}"
            continue
        same(mine, eager, dtype)
        compared += 1
    assert compared >= 2


def test_every_foreach_operator_has_a_rule() -> None:
    without = []
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::_foreach_") and not schema.is_mutable:
            op = getattr(getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default")
            if op not in RULES:
                without.append(str(op))
    assert without == []


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("op", FUSED, ids=str)
def test_a_fused_optimizer_steps_as_eager(op: Op, scaled: bool) -> None:
    flags = [argument.name for argument in op._schema.arguments if str(argument.type) == "bool"]
    numbers = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.05, "dampening": 0.25, "lr_decay": 0.3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for chosen in ([], *[[flag] for flag in flags], flags):
            lists = [argument.name for argument in op._schema.arguments if str(argument.type) == "List[Tensor]"]
            args = [[x.contiguous() for x in tensors(dtype, n)] for n, _ in enumerate(lists)]
            if "max_exp_avg_sqs" in lists and "amsgrad" not in chosen:
                args[lists.index("max_exp_avg_sqs")] = []
            if "state_steps" in lists:
                args[lists.index("state_steps")] = [torch.tensor(float(n)) for n in range(2, 8)]
            kwargs: dict[str, Any] = {flag: flag in chosen for flag in flags}
            for argument in op._schema.arguments:
                if argument.name in numbers:
                    value = numbers[argument.name]
                    kwargs[argument.name] = torch.tensor(value, dtype=torch.float64) if str(argument.type) == "Tensor" else value
            for found in (0.0, 1.0) if scaled else (None,):
                if found is not None:
                    kwargs |= {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
                same(RULES[op](*args, **kwargs), op(*args, **kwargs), dtype)
