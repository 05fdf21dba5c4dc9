"""A changed contract without a changed version fails here.

The snapshot lists every public name of the contract modules with its fields and signatures, under the interface versions.
Changing it is a decision: raise the version in `versions.py`, then run with --update-golden.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fxloom_interfaces import versions

GOLDEN = Path(__file__).parent / "golden" / "contract.txt"

#: Interface -> the modules that define it.
CONTRACTS = {
    "TORCH_DIALECT": ["meta", "regions", "sources"],
    "ATEN_DIALECT": ["signature"],
    "PRIMS_DIALECT": ["prims", "prim_calls"],
    "LOOP_IR": ["loop_ir", "ops", "program", "dtypes"],
    "BACKEND": ["backend"],
    "CODEGEN": ["codegen"],
    "REPLAYER": ["replayer"],
    "ARTIFACT_STORE": ["artifacts"],
}


def describe(value: Any) -> list[str]:
    """Lines that change when the contract does; wording of docstrings is no part of it."""
    if dataclasses.is_dataclass(value) and isinstance(value, type):
        return [f"    {field.name}: {field.type}" for field in dataclasses.fields(value)]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return [f"    {member.name} = {member.value!r}" for member in value]
    if isinstance(value, type):
        members = {name: member for name, member in vars(value).items() if not name.startswith("_") and callable(member)}
        return [f"    {name}{inspect.signature(member)}" for name, member in sorted(members.items())]
    if inspect.isfunction(value):
        return [f"    {inspect.signature(value)}"]
    return []


def snapshot() -> str:
    lines = []
    for interface, modules in CONTRACTS.items():
        lines.append(f"{interface} {getattr(versions, interface)}")
        for name in modules:
            module = importlib.import_module(f"fxloom_interfaces.{name}")
            for public, value in sorted(vars(module).items()):
                if public.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                    continue
                lines += [f"  {name}.{public}", *describe(value)]
    ops = importlib.import_module("fxloom_interfaces.ops").OPS
    lines += ["OPS", *(f"  {op.name}/{op.arity} {op.accepts} -> {op.result}" for op in ops.values())]
    prims, calls = (importlib.import_module(f"fxloom_interfaces.{name}") for name in ("prims", "prim_calls"))
    lines += ["PRIMS", *(f"  {prim.name}: {prim.family}" for prim in prims.PRIMS.values())]
    lines += ["CALLS BESIDE PRIMS", *(f"  {name}" for name in calls.CALLS)]
    return "\n".join(lines) + "\n"


def test_contract_is_as_recorded(golden: Callable[[Path, str], None]) -> None:
    """A contract that changed: raise its version, then --update-golden (CONTRIBUTING.md)."""
    golden(GOLDEN, snapshot())
