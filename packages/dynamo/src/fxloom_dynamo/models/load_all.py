"""All families of models: importing this module fills the tables. Only the top, `evaluation.attempts`, does so."""

from fxloom_dynamo.models import (
    containers,
    data_dependent,
    exceptions,
    interpreter,
    iteration,
    libraries,
    objects,
    operators,
    references,
    text,
    torch_calls,
    variance_warnings,
)

__all__ = [
    "containers",
    "data_dependent",
    "exceptions",
    "interpreter",
    "iteration",
    "libraries",
    "objects",
    "operators",
    "references",
    "text",
    "torch_calls",
    "variance_warnings",
]
