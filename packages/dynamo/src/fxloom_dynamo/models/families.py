"""All families of models: importing this module fills the tables. Only the top, `capture`, does so."""

from fxloom_dynamo.models import (
    containers,
    exceptions,
    interpreter,
    iteration,
    libraries,
    objects,
    operators,
    questions,
    references,
    statistics,
    text,
    torch_calls,
)

__all__ = [
    "containers",
    "exceptions",
    "interpreter",
    "iteration",
    "libraries",
    "objects",
    "operators",
    "questions",
    "references",
    "statistics",
    "text",
    "torch_calls",
]
