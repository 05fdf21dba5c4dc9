"""The op list: table and Protocol agree, and the uniform base forwards every op."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest

from fxloom_interfaces.ops import OPS, STRUCTURAL, ElementwiseOps, OpInfo, Ops


class Spelled(ElementwiseOps[str]):
    def elementwise(self, info: OpInfo, args: Sequence[str]) -> str:
        return f"{info.name}({', '.join(args)})"


@pytest.mark.parametrize("name", OPS)
def test_protocol_has_the_op_with_its_arity(name: str) -> None:
    method = vars(Ops)[name]
    assert len(inspect.signature(method).parameters) - 1 == OPS[name].arity


@pytest.mark.parametrize("name", OPS)
def test_uniform_base_forwards(name: str) -> None:
    args = "abc"[: OPS[name].arity]
    assert getattr(Spelled(), name)(*args) == f"{name}({', '.join(args)})"


def test_every_method_is_described() -> None:
    methods = {n for n, v in vars(Ops).items() if inspect.isfunction(v) and not n.startswith("_")}
    assert methods == set(OPS) | set(STRUCTURAL)
