"""What the user says of sizes and numbers: `mark_dynamic` and its like on tensors, the option `dynamic_shapes`.

In: marks on tensors, and a description per argument. Out: a policy per dimension (or number), for `history` to take into account.
ConfigError for a dimension that the tensor lacks, a range that is empty or below 0, a name that no argument (or key, or item) has,
and a value of another type than is expected. Invariant: nothing is compiled here, and no tensor's data is read.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.sources import Source
from fxloom_shapes.fake.symbolize import DimPolicy

#: attributes of tensors that hold marks: {dim: DimPolicy}, and a set of dims
DYNAMIC, MAYBE_DYNAMIC, STATIC = "_fxloom_dynamic", "_fxloom_maybe_dynamic", "_fxloom_static"


# --- marks on tensors -----------------------------------------------------------------------------------------------------------


def mark_dynamic(tensor: torch.Tensor, dim: Any, *, min: int | None = None, max: int | None = None, name: str = "") -> None:
    """Compile for any size of `dim` (an int or several) from the first call on.

    min, max: the range that is promised. name: dims of one name have one size. If the program turns out to work for one
    size only, compiling raises and names the line that did it.
    """
    _mark(tensor, DYNAMIC, dim, DimPolicy(pinned=True, low=min, high=max, label=name))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: Any) -> None:
    """As `mark_dynamic`, but a size that the program insists on is compiled for."""
    _mark(tensor, MAYBE_DYNAMIC, dim, DimPolicy())


def mark_unbacked(tensor: torch.Tensor, dim: Any, *, min: int | None = None, max: int | None = None) -> None:
    """As `mark_dynamic`, with a size that nothing may look at: not even 0 and 1 are compiled for apart.

    The program must not ask for it (ConstraintViolated names the line). Operators work as for ordinary sizes; where one would go
    another way for 0 or 1, and that could be told, the graph checks that the size is ordinary, and raises RuntimeError else.
    """
    _mark(tensor, DYNAMIC, dim, DimPolicy(pinned=True, low=min, high=max, unbacked=True))


def mark_static(tensor: torch.Tensor, dim: Any = None) -> None:
    """Compile for the very size of `dim` (None: of all dims), whatever other sizes were seen."""
    every = range(tensor.dim()) if isinstance(tensor, torch.Tensor) else ()
    _mark(tensor, STATIC, every if dim is None else dim, None)


def _mark(tensor: torch.Tensor, attribute: str, dim: Any, policy: DimPolicy | None) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"expected a tensor to mark, got {type(tensor).__name__}")
    given = list(dim) if isinstance(dim, (list, tuple, set, frozenset, range)) else [dim]
    if policy is not None:
        _check_policy("mark_unbacked" if policy.unbacked else "mark_dynamic", policy)
    dims = [_as_int(number) for number in given]
    for number, asked in zip(dims, given, strict=True):
        if number is None:
            raise ConfigError(f"expected a dimension as an int, or a list of ints, got {asked!r} ({type(asked).__name__})")
        if not -tensor.dim() <= number < tensor.dim():
            raise ConfigError(f"the tensor has {tensor.dim()} dimensions, there is no dimension {number}")
    marks = getattr(tensor, attribute, None)
    if marks is None:
        marks = {}
        setattr(tensor, attribute, marks)
    for number in dims:
        assert number is not None
        marks[number % tensor.dim()] = policy


def _as_int(value: Any) -> int | None:
    """An int, or what Python takes for one (`np.int64`), as an int; None for a bool and all else."""
    if isinstance(value, (bool, torch.Tensor)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _check_policy(where: str, policy: DimPolicy) -> None:
    """Refuse a range or a name of the wrong type, and a range that is empty or below 0."""
    for end, value in (("min", policy.low), ("max", policy.high)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(f"{where}: {end} is {value!r} ({type(value).__name__}); expected an int or None")
    if policy.low is not None and policy.low < 0:
        raise ConfigError(f"{where}: min is {policy.low}; no size is below 0")
    if not isinstance(policy.label, str):
        raise ConfigError(f"{where}: name is {policy.label!r} ({type(policy.label).__name__}); expected a str")
    _check_range(f"{where}: the range", policy)


def _check_range(where: str, policy: DimPolicy) -> None:
    if policy.low is not None and policy.high is not None and policy.low > policy.high:
        raise ConfigError(f"{where} is empty: from {policy.low} to {policy.high}")
    if policy.high is not None and policy.high < 0:
        raise ConfigError(f"{where} ends at {policy.high}; no size is below 0")


# --- dynamic_shapes= -------------------------------------------------------------------------------------------------


def parse_dynamic_shapes(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Policies by argument: {name: {dim: DimPolicy or None}}, nested where the argument is a list, tuple or dict.

    A dimension's value: None or "static"; True or "dynamic" (an error if it can't be); "auto" (if it can be); a name;
    (low, high). A tuple or list of such values stands for all dimensions of a tensor, a single one for an int or a float.
    """
    _check_given(given)
    return {name: _parse(name, spec) for name, spec in (given or {}).items()}


def _check_given(given: Any) -> None:
    """Refuse what is no dictionary by arguments' names."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(f"dynamic_shapes: expected a dict of arguments' names, got {type(given).__name__}")
    other = next((name for name in given if not isinstance(name, str)), None)
    if other is not None:
        raise ConfigError(f"dynamic_shapes: expected names of arguments, got {other!r} ({type(other).__name__})")


def _parse(where: str, spec: Any) -> Any:
    if spec is None:
        return {}
    if isinstance(spec, (bool, str, DimPolicy)) or isinstance(spec, tuple) and _has_ends(spec):
        return NumberSpec(_parse_dim(where, spec))
    if isinstance(spec, Mapping):
        if all(isinstance(key, int) for key in spec):
            return {dim: _parse_dim(f"{where}[{dim}]", value) for dim, value in spec.items()}
        return {key: _parse(f"{where}[{key!r}]", value) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        if any(isinstance(item, (Mapping, list)) or isinstance(item, tuple) and not _is_range(item) for item in spec):
            return [_parse(f"{where}[{number}]", item) for number, item in enumerate(spec)]
        return {dim: _parse_dim(f"{where}[{dim}]", value) for dim, value in enumerate(spec)}
    raise ConfigError(f"dynamic_shapes for {where}: expected a dict of dimensions, got {type(spec).__name__}")


@dataclass(frozen=True, slots=True)
class NumberSpec:
    """What is said of an argument that is a number. policy: None for one to be compiled for."""

    policy: DimPolicy | None


def _is_range(value: tuple[Any, ...]) -> bool:
    return len(value) == 2 and all(item is None or isinstance(item, int) for item in value)


def _has_ends(spec: tuple[Any, ...]) -> bool:
    """True for a range of a number; dimensions are no ints."""
    return _is_range(spec) and any(type(end) is int for end in spec)


def _parse_dim(where: str, value: Any) -> DimPolicy | None:
    if value is None or value == "static" or value is False:
        return None
    if value is True or value == "dynamic":
        return DimPolicy(pinned=True)
    if value == "auto":
        return DimPolicy()
    if isinstance(value, str):
        return DimPolicy(pinned=True, label=value)
    if isinstance(value, tuple) and _is_range(value):
        value = DimPolicy(pinned=True, low=value[0], high=value[1])
    if isinstance(value, DimPolicy):
        _check_range(f"dynamic_shapes for {where}: the range", value)
        return value
    raise ConfigError(f'dynamic_shapes for {where}: expected None, True, "auto", a name or (low, high), got {value!r}')


def by_parameter(function: Any, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`dynamic_shapes` of a function as its frame has the arguments; ConfigError for a name that it has no argument of.

    The frame of a module's call has them in `args` and `kwargs`.
    """
    _check_given(given)
    if not given:
        return given
    is_module = isinstance(function, torch.nn.Module)
    try:
        parameters = inspect.signature(function.forward if is_module else function).parameters
    except (TypeError, ValueError):
        return given
    kinds = {parameter.kind for parameter in parameters.values()}
    unknown = [name for name in given if name not in parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ConfigError(f"dynamic_shapes names {unknown[0]!r}; the arguments are {', '.join(parameters)}")
    if not is_module:
        return given
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [given.get(name) for name, parameter in parameters.items() if parameter.kind in positional]
    # a tuple of dimensions is told apart from a range by what it is in
    by_place = [dict(enumerate(spec)) if isinstance(spec, tuple) and not _has_ends(spec) else spec or {} for spec in places]
    return {"args": by_place, "kwargs": dict(given)}


def check_nested(shapes: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse what `dynamic_shapes` names inside of a function's arguments where nothing is. values: the arguments by name."""
    for name, spec in shapes.items():
        if name in values:
            _check_inside(name, spec, values[name])


def _check_inside(where: str, spec: Any, value: Any) -> None:
    if isinstance(spec, list):
        if not isinstance(value, (list, tuple)) or len(spec) > len(value):
            has = f"has {len(value)}" if isinstance(value, (list, tuple)) else f"is a {type(value).__name__}"
            raise ConfigError(f"dynamic_shapes for {where}: expected a list or tuple of {len(spec)} or more items, the argument {has}")
        for number, part in enumerate(spec):
            _check_inside(f"{where}[{number}]", part, value[number])
    elif isinstance(spec, dict) and not all(isinstance(key, int) for key in spec):
        if not isinstance(value, Mapping):
            name = next(iter(spec))
            raise ConfigError(f"dynamic_shapes for {where}: names {name!r} in what is a {type(value).__name__}; expected a dict")
        for key, part in spec.items():
            if key not in value:
                raise ConfigError(f"dynamic_shapes for {where} names {key!r}; its keys are {', '.join(map(repr, value))}")
            _check_inside(f"{where}[{key!r}]", part, value[key])


def dimension_of(real: torch.Tensor, dim: int, source: Source) -> int:
    if not -real.dim() <= dim < real.dim():
        raise ConfigError(f"dynamic_shapes names dimension {dim} of {source.name}, which has {real.dim()}")
    return dim % real.dim()


