"""How many sizes guards reject needlessly: sizes for which a new trace would have been the same.

    python benchmarks/size_guards.py

Programs: each is captured at one size with all dimensions dynamic, then called at others; where a guard fails it is captured
again, and the new graph is compared with the old one. A size is rejected needlessly when both graphs are the same text. Duck
sizing counts apart: equal sizes of the first call share a symbol, so unequal ones are traced anew, by design.
Questions: random arithmetic on three sizes, asked as branches are; all sizes from 2 to 7. A size is rejected needlessly when
every question has the same answer there.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fxloom_dynamo import optimize
from fxloom_interfaces.sources import LocalSource, SizeSource
from fxloom_shapes import EnvOptions, SymbolEnv

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "pointwise": (lambda x: x.sin() + 1, lambda a, b: (torch.ones(a, b),)),
    "view": (lambda x: x.view(-1) * 2, lambda a, b: (torch.ones(a, b),)),
    "pairs": (lambda x: x.view(-1, 2).sum(1), lambda a, b: (torch.ones(a, 2 * b),)),
    "halves": (lambda x: x[: x.shape[0] // 2] * 2, lambda a, b: (torch.ones(a, b),)),
    "chunks": (lambda x: torch.cat([c.relu() for c in x.chunk(2)]), lambda a, b: (torch.ones(a, b),)),
    "branch": (lambda x: x + 1 if x.shape[0] > 5 else x - 1, lambda a, b: (torch.ones(a, b),)),
    "shorter": (lambda x: x[: min(x.shape)] + 1, lambda a, b: (torch.ones(a, b),)),
    "convolution": (
        lambda x: F.max_pool2d(F.conv2d(x, torch.ones(2, 1, 3, 3), padding=1, stride=2), 2),
        lambda a, b: (torch.ones(1, 1, a + 4, b + 4),),
    ),
    "pad": (lambda x: F.pad(x, (1, 8 - x.shape[1] % 8)), lambda a, b: (torch.ones(a, b),)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda a, b: (torch.ones(a, 2, b, 4),),
    ),
    "window": (lambda x: x.unfold(1, 2, 1).sum(-1), lambda a, b: (torch.ones(a, b),)),
    "matrix": (lambda x, w: F.layer_norm(x @ w, (6,)), lambda a, b: (torch.ones(a, b, 4), torch.ones(4, 6))),
    "broadcast": (lambda x: x + torch.arange(x.shape[1]) + x[:1], lambda a, b: (torch.ones(a, b),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), lambda a, b: (torch.ones(1, 2, a, b),)),
    "flatten": (lambda x: x.transpose(0, 1).reshape(-1).cumsum(0), lambda a, b: (torch.ones(a, b),)),
}
FIRST = (6, 8)
SIZES = [(a, b) for a in range(2, 13) for b in range(2, 13) if (a, b) != FIRST]


def run_program(name: str) -> tuple[int, int, int]:
    """(accepted, rejected with reason, rejected needlessly) over SIZES."""
    fn, make = PROGRAMS[name]
    accepted = rightly = needlessly = 0
    for size in SIZES:
        texts: list[str] = []
        compiled = optimize(lambda gm, inputs, texts=texts: texts.append(gm.code) or gm.forward, dynamic=True)(fn)  # type: ignore[misc]  # bound now
        compiled(*make(*FIRST))
        count = len(texts)
        torch.testing.assert_close(compiled(*make(*size)), fn(*make(*size)))
        if len(texts) == count:
            accepted += 1
        elif texts[count:] == texts[:count]:
            needlessly += 1
        else:
            rightly += 1
    return accepted, rightly, needlessly


NAMES, RANGE, HINTS = ("a", "b", "c"), range(2, 8), {"a": 4, "b": 6, "c": 3}
POINTS = [dict(zip(NAMES, point, strict=True)) for point in itertools.product(RANGE, repeat=len(NAMES))]
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "min": torch.sym_min, "max": torch.sym_max,
}  # fmt: skip
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


def draw(source: random.Random, depth: int = 3) -> Any:
    """A random expression: a name, a number, or an operation on two; divisors are numbers."""
    if depth == 0 or source.random() < 0.3:
        return source.choice(NAMES) if source.random() < 0.7 else source.randint(-3, 4)
    op = source.choice(list(ARITHMETIC))
    right = source.randint(2, 4) if op in ("//", "%") else draw(source, depth - 1)
    return op, draw(source, depth - 1), right


def compute(tree: Any, values: Any) -> Any:
    if isinstance(tree, str):
        return values[tree]
    return tree if isinstance(tree, int) else ARITHMETIC[tree[0]](compute(tree[1], values), compute(tree[2], values))


def run_questions(rounds: int, most: int) -> tuple[int, int, int, int]:
    """(accepted, rejected with reason, rejected needlessly, accepted wrongly) over all points of `rounds` sets of questions."""
    source = random.Random(0)
    counts = [0, 0, 0, 0]
    for _ in range(rounds):
        env = SymbolEnv(EnvOptions(duck=False))
        symbols = {name: env.create(hint, SizeSource(LocalSource("x"), "size", n)) for n, (name, hint) in enumerate(HINTS.items())}
        asked = []
        for _ in range(source.randint(1, most)):
            tree, question = draw(source), source.choice(list(QUESTIONS))
            asked.append((tree, question, bool(QUESTIONS[question](compute(tree, symbols), 0))))
        guards, names = env.size_guards(), {name: str(symbol) for name, symbol in symbols.items()}
        for point in POINTS:
            numbers = {names[name]: value for name, value in point.items()}
            inside = all(_within(env.range_of(env.symbols[name]), number) for name, number in numbers.items())
            accepts = inside and all(guard.statement.holds(numbers) for guard in guards)
            same = all(bool(QUESTIONS[question](compute(tree, point), 0)) == truth for tree, question, truth in asked)
            counts[(0 if same else 3) if accepts else (2 if same else 1)] += 1
    return counts[0], counts[1], counts[2], counts[3]


def _within(bounds: tuple[int | None, int | None], number: int) -> bool:
    low, high = bounds
    return (low is None or low <= number) and (high is None or number <= high)


def main() -> None:
    totals = [0, 0, 0]
    for name in PROGRAMS:
        found = run_program(name)
        totals = [total + count for total, count in zip(totals, found, strict=True)]
        print(f"{name:12s} accepted {found[0]:4d}  traced anew otherwise {found[1]:4d}  rejected needlessly {found[2]:4d}", flush=True)
    accepted, rightly, needlessly = totals
    print(f"programs: {100 * needlessly / (accepted + needlessly):.2f} % of the sizes that could share the code are rejected")
    for most in (1, 4):
        accepted, rightly, needlessly, wrongly = run_questions(400, most)
        print(
            f"up to {most} random questions: accepted {accepted}, rejected {rightly} with reason and {needlessly} needlessly "
            f"({100 * needlessly / (accepted + needlessly):.2f} %), accepted wrongly {wrongly}"
        )


if __name__ == "__main__":
    main()
