"""Models of builtins that look at types and identities, call back, or read attributes; and of a few library functions.

Each model gets the evaluator, the arguments and the keyword arguments, and returns what the real callee would. `tables`
is where they are registered; the other modules fill it, a family each.
"""

from fxloom_dynamo.models import (  # noqa: F401  # importing a family registers its models
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
from fxloom_dynamo.models.containers import dict_update, extend_list
from fxloom_dynamo.models.interpreter import import_module
from fxloom_dynamo.models.objects import is_instance
from fxloom_dynamo.models.operators import OPERATOR_ARITY
from fxloom_dynamo.models.tables import (
    CLASSES,
    DUNDER_OF,
    FUNCTIONS,
    INNER,
    METACLASS_CALLS,
    METHODS,
    NAMED,
    OBJECT_CALLS,
    OPERATOR_FUNCTIONS,
)

__all__ = [
    "CLASSES",
    "DUNDER_OF",
    "FUNCTIONS",
    "INNER",
    "METACLASS_CALLS",
    "METHODS",
    "NAMED",
    "OBJECT_CALLS",
    "OPERATOR_ARITY",
    "OPERATOR_FUNCTIONS",
    "dict_update",
    "extend_list",
    "import_module",
    "is_instance",
]
