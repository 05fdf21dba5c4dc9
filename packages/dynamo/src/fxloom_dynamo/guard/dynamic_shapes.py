"""Which sizes and numbers of a call are dynamic: what the user said, and what earlier calls of the same code showed.

In: values with their sources, in the order in which capture meets them. Out: policies for `fxloom_shapes`. Static first: a
number becomes dynamic when a second value is seen at its place (`History`, one per region and code object).
Invariant: asking twice about one call gives the same answer, so that a restarted capture sees what the first one saw.
"""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.sources import AttrSource, DictItemSource, InstanceDictSource, LocalSource, SequenceItemSource, Source
from fxloom_shapes.fake.symbolize import DimPolicy
from fxloom_shapes.symbols.symbol import SPECIAL

CHANGES = object()

#: attributes of tensors that carry marks: {dim: DimPolicy}, and a set of dims
_DYNAMIC, _MAYBE, _STATIC = "_fxloom_dynamic", "_fxloom_maybe_dynamic", "_fxloom_static"


# --- marks -----------------------------------------------------------------------------------------------------------


def mark_dynamic(tensor: torch.Tensor, dim: Any, *, min: int | None = None, max: int | None = None, name: str = "") -> None:
    """Compile for any size of `dim` (an int or several) from the first call on.

    min, max: the range that is promised. name: dims of one name have one size. If the program turns out to work for one
    size only, compiling raises and names the line that did it.
    """
    _mark(tensor, _DYNAMIC, dim, DimPolicy(pinned=True, low=min, high=max, label=name))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: Any) -> None:
    """As `mark_dynamic`, but a size that the program insists on is compiled for."""
    _mark(tensor, _MAYBE, dim, DimPolicy())


def mark_unbacked(tensor: torch.Tensor, dim: Any, *, min: int | None = None, max: int | None = None) -> None:
    """As `mark_dynamic`, with a size that nothing may look at: not even 0 and 1 are compiled for apart.

    The program must not ask for it (ConstraintViolated names the line). Operators work as for ordinary sizes; where one would go
    another way for 0 or 1, and that could be told, the graph checks that the size is ordinary, and raises RuntimeError else.
    """
    _mark(tensor, _DYNAMIC, dim, DimPolicy(pinned=True, low=min, high=max, unbacked=True))


def mark_static(tensor: torch.Tensor, dim: Any = None) -> None:
    """Compile for the very size of `dim` (None: of all dims), whatever other sizes were seen."""
    every = range(tensor.dim()) if isinstance(tensor, torch.Tensor) else ()
    _mark(tensor, _STATIC, every if dim is None else dim, None)


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
    """Refuse a range or a name of the wrong type, and a range of sizes that are none."""
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
        return _OfNumber(_parse_dim(where, spec))
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
class _OfNumber:
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


def _dim_of(real: torch.Tensor, dim: int, source: Source) -> int:
    if not -real.dim() <= dim < real.dim():
        raise ConfigError(f"dynamic_shapes names dimension {dim} of {source.name}, which has {real.dim()}")
    return dim % real.dim()


# --- history ---------------------------------------------------------------------------------------------------------


class EffectOrder(enum.Enum):
    """What a capture has to know of the order of writes, effects and operators that may raise; learned from the one before."""

    FREE = "nothing"
    NOTED = "whether an operator may raise amid effects"
    SPLIT = "the first write into an input, before which the graph ends"


@dataclass(slots=True)
class _Seen:
    """Values seen at one place, in order of first sight; the last one is the newest call's."""

    values: list[Any] = field(default_factory=list)
    last: Any = None

    def note(self, value: Any) -> bool:
        """True when more than one value was seen, this one included."""
        if value not in self.values:
            self.values.append(value)
        self.last = value
        return len(self.values) > 1


@dataclass(slots=True)
class History:
    """What calls of one code object looked like so far, by the names of sources."""

    tensors: dict[str, tuple[int, list[_Seen], list[_Seen]]] = field(default_factory=dict)
    numbers: dict[str, _Seen] = field(default_factory=dict)
    #: place -> how far the iterator there was at first
    iterators: dict[str, Any] = field(default_factory=dict)
    #: place -> values there that a trace with a symbol for the number relied on
    specialized: dict[str, list[Any]] = field(default_factory=dict)
    #: whether a call ran as it is, because a lazy module was to be initialized
    uninitialized: bool = False
    #: (text, category) of warnings that capture has issued for the program
    warned: set[tuple[str, type[Warning]]] = field(default_factory=set)
    #: whether the backend may make constants of numbers (`graph.foreign_backends`)
    only_tensors: bool = False
    order: EffectOrder = EffectOrder.FREE
    #: whether an optimizer's update was met that reads numbers out of tensors: these stay in the graph then
    updates_by_numbers: bool = False
    #: place -> the first text there, or the first length of a list; `CHANGES` once another was met
    held: dict[str, Any] = field(default_factory=dict)
    #: places whose texts and lists are compiled for all the same, since the program looks at them
    revealed: set[str] = field(default_factory=set)
    #: calls of cached functions, in order, that the attempts of the current capture have made, with their results
    answers: list[tuple[Any, Any]] = field(default_factory=list)

    def note_specialized(self, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            self.specialized.setdefault(name, []).append(value)


@dataclass(frozen=True, slots=True)
class Policy:
    """Answers for one capture. dynamic: the option; shapes: of `parse_dynamic_shapes`.

    static: every number is compiled for, whatever was asked: the backend takes none (`graph.foreign_backends`).
    """

    history: History
    dynamic: bool | None
    shapes: Mapping[str, Any]
    static: bool = False

    def tensor(self, real: torch.Tensor, source: Source, static: bool) -> tuple[dict[int, DimPolicy], frozenset[int]]:
        """(policies of dynamic dims, dims whose stride may change). static: a parameter or buffer, dynamic when marked only."""
        if real.layout is not torch.strided:
            return {}, frozenset()
        asked: dict[int, DimPolicy | None] = dict.fromkeys(getattr(real, _STATIC, {}), None)
        for attribute in (_MAYBE, _DYNAMIC):
            asked |= {dim: policy for dim, policy in getattr(real, attribute, {}).items() if dim not in asked}
        spec = self._spec(source)
        if isinstance(spec, _OfNumber):
            raise ConfigError(f"dynamic_shapes for {source.name}: it is a tensor; say which of its {real.dim()} dimensions")
        if isinstance(spec, dict) and all(isinstance(key, int) for key in spec):
            asked |= {_dim_of(real, dim, source): policy for dim, policy in spec.items()}
        if self.static:
            return {}, frozenset()
        found = {dim: policy for dim, policy in asked.items() if policy is not None}
        if static or self.dynamic is False:
            return found, frozenset()
        rank, sizes, strides = self.history.tensors.get(source.name, (-1, [], []))
        if rank != real.dim():
            rank = real.dim()
            sizes, strides = [_Seen() for _ in range(rank)], [_Seen() for _ in range(rank)]
            self.history.tensors[source.name] = (rank, sizes, strides)
        moved = set()
        for dim in range(rank):
            changed = sizes[dim].note(int(real.shape[dim]))
            if strides[dim].note(int(real.stride(dim))) or self.dynamic:
                moved.add(dim)
            if dim in asked:
                policy = found.get(dim)
                if policy is not None and policy.pinned and policy.duck_key is None:
                    found[dim] = policy = replace(policy, duck_key=(source.name, dim))  # equal to another by chance only
                if policy is not None and policy.pinned and changed and int(real.shape[dim]) in SPECIAL:
                    found[dim] = replace(policy, pinned=False)  # the other sizes have code of their own
                continue
            if changed or self.dynamic:
                found[dim] = DimPolicy(duck_key=dim if self.dynamic else tuple(sizes[dim].values))
        return found, frozenset(moved)

    def number(self, value: int | float, source: Source) -> DimPolicy | None:
        """The policy of a Python int or float at `source`; None where it is to be compiled for."""
        spec = self._spec(source)
        if isinstance(spec, _OfNumber) and not self.static:
            asked = spec.policy
            changed = self.history.numbers.setdefault(source.name, _Seen()).note(value)
            if asked is not None and asked.pinned and changed and type(value) is int and value in SPECIAL:
                return replace(asked, pinned=False)  # the other numbers have code of their own
            return asked
        if self.static or self.dynamic is False:
            return None
        changed = self.history.numbers.setdefault(source.name, _Seen()).note(value)
        return DimPolicy() if changed or self.dynamic and not _is_setting(source) else None

    def leaves_unguarded(self, value: Any, source: Source) -> bool:
        """Whether the text, or the number of items, at `source` changes, and nothing is known to look at it (`objects.unguarded`)."""
        held = self.history.held
        if held.setdefault(source.name, value) != value:
            held[source.name] = CHANGES
        return held[source.name] is CHANGES and self.may_carry(source)

    def may_carry(self, source: Source) -> bool:
        """Whether nothing is known to look at what is at `source`."""
        return source.name not in self.history.revealed

    def reveal(self, names: Iterable[str]) -> None:
        self.history.revealed.update(names)

    def iterator(self, state: Any, source: Source) -> bool:
        """Whether to specialize on how far an iterator is: where that changes it stays outside, one item at a time."""
        return bool(self.history.iterators.setdefault(source.name, state) == state)

    def _spec(self, source: Source) -> Any:
        """What `dynamic_shapes` says for a place."""
        if not self.shapes:
            return None
        steps: list[Any] = []
        here: Source | None = source
        while isinstance(here, (SequenceItemSource, DictItemSource)):
            steps.append(here.index if isinstance(here, SequenceItemSource) else here.key)
            here = here.parent
        if not isinstance(here, LocalSource):
            return None
        spec = self.shapes.get(here.local)
        for step in reversed(steps):
            listed = isinstance(spec, list) and isinstance(step, int) and step < len(spec)
            if spec is None or (not listed and not (isinstance(spec, dict) and step in spec)):
                return None
            spec = spec[step]
        return spec


def _is_setting(source: Source) -> bool:
    """True for numbers that programs mostly leave as they are: attributes of objects and what lies in these, defaults.

    They are dynamic when a second value is seen. What callers pass, also in containers, and what cells hold may change from
    call to call.
    """
    here: Source | None = source
    while here is not None:
        if isinstance(here, (AttrSource, InstanceDictSource)):
            return True
        here = here.parent
    return False
