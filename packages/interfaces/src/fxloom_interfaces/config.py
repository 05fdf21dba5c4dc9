"""Configuration: one frozen dataclass per package, filled from options and the environment at entry points only.

In: a package's dataclass of options, with defaults, and a mapping. Out: an instance of it (`from_options`), which refuses unknown
names with the nearest valid one; the options that variables `FXLOOM_<FIELD>` set (`read_environment`).
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from fxloom_interfaces.errors import ConfigError

T = TypeVar("T")

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def from_options(cls: type[T], options: Mapping[str, Any]) -> T:
    """An instance of options dataclass `cls` with the given fields; ConfigError for an unknown name."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # cls is a dataclass
    for name in options:
        if name not in names:
            raise ConfigError(f"unknown option {name!r} for {cls.__name__}{nearest(name, names)}")
    return cls(**options)


def nearest(name: str, names: list[str]) -> str:
    """`; did you mean 'x'?` or the list of valid names."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; valid names: {', '.join(sorted(names))}"


def read_environment(cls: type[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options that the environment sets: `FXLOOM_<FIELD>` for every field of `cls`, parsed by the field's type."""
    hints = typing.get_type_hints(cls)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        variable = f"FXLOOM_{field.name.upper()}"
        if variable in environment:
            found[field.name] = _parse(variable, environment[variable], hints[field.name])
    return found


def _parse(variable: str, text: str, wanted: Any) -> Any:
    choices = [t for t in typing.get_args(wanted) if t is not type(None)] or [wanted]
    kind = choices[0]
    if kind is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ConfigError(f"{variable}={text!r}: expected one of {sorted((_TRUE | _FALSE) - {''})}")
    try:
        return kind(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{variable}={text!r}: expected {kind.__name__}") from error
