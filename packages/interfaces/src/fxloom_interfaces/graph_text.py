"""FX graphs as text: `readable` for people, `runnable` as a script that runs by itself.

Both take a GraphModule of the torch or aten dialect with fakes on its nodes (`meta`). Sizes that are symbols show their hint.
In: the module; it is not changed. Out: text that depends on the graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from fxloom_interfaces.dtypes import DTYPES, dtype_name
from fxloom_interfaces.meta import get_site, get_source, has_fake


def readable(gm: torch.fx.GraphModule) -> str:
    """The graph as Python, each line under the user's line that it comes from, with shapes and dtypes behind it."""
    lines = []
    site = None
    for node in gm.graph.nodes:
        here = get_site(node)
        if here is not None and here != site:
            lines.append(f"    # {here}")
            site = here
        lines.append(f"    {_statement(node)}{_comment(node)}")
    placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    return "\n".join([f"def forward(self, {', '.join(placeholders)}):", *(line for line in lines if line.strip())]) + "\n"


def _statement(node: torch.fx.Node) -> str:
    if node.op == "placeholder":
        source = get_source(node)
        return f"# {node.name}: {source.name if source is not None else 'input'}"
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    arguments = [_argument(arg) for arg in node.args] + [f"{name}={_argument(arg)}" for name, arg in node.kwargs.items()]
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    if node.op == "call_method":
        return f"{node.name} = {arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    return f"{node.name} = {function_name(node.target)}({', '.join(arguments)})"


def function_name(target: Any) -> str:
    """How a program would name a function: `torch.softmax`, `operator.add`, `torch.ops.aten.add.Tensor`."""
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    public = getattr(target, "__name__", "")
    if public and getattr(torch, public, None) is target:  # many are methods of a class without a public name
        return f"torch.{public}"
    name = str(getattr(target, "__qualname__", None) or getattr(target, "__name__", target))
    module = getattr(target, "__module__", None)
    if module in (None, "_operator"):
        return f"operator.{name}" if module else name
    name = name.removeprefix("_VariableFunctionsClass.")  # the class whose methods torch has as functions
    return f"{module}.{name}"


def _argument(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_argument(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({_argument(value.start)}, {_argument(value.stop)}, {_argument(value.step)})"
    return str(value) if isinstance(value, (torch.dtype, torch.layout)) else repr(value)


def _comment(node: torch.fx.Node) -> str:
    if node.op == "output" or not has_fake(node):
        return ""
    return f"  # {_describe(node.meta['val'])}"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        info = DTYPES.get(dtype_name(value.dtype))
        name = info.short if info is not None else dtype_name(value.dtype)
        size, stride = ", ".join(map(str, value.shape)), ", ".join(map(str, value.stride()))
        return f"{name}[{size}] strides ({stride}) {value.device}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_describe(item) for item in value)})"
    return str(value)


_SCRIPT = '''"""A captured graph that runs by itself: inputs of the same shapes, strides and dtypes, random values."""

import time

import torch

{imports}

{code}

def make_inputs():
    """Fresh inputs: floats normal, integers zero, booleans true."""
    torch.manual_seed(0)
    return [
{inputs}
    ]


class Constants:
    """What the graph holds besides its inputs."""


{constants}
if __name__ == "__main__":
    with torch.no_grad():
        for _ in range(3):
            inputs = make_inputs()
            start = time.perf_counter()
            outputs = forward(Constants, *inputs)
            print(f"{{(time.perf_counter() - start) * 1e3:.3f}} ms")
    for output in outputs:
        print(tuple(output.shape) if isinstance(output, torch.Tensor) else output)
'''


def _no_definitions(names: Iterable[str]) -> Sequence[str]:
    return ()


def runnable(gm: torch.fx.GraphModule, definitions: Callable[[Iterable[str]], Sequence[str]] = _no_definitions) -> str:
    """A script with the graph's own code, its imports, and inputs made by shape and stride. Writes no values of tensors.

    definitions: the lines that define the operators of these names, where a script has to.
    """
    code = gm.graph.python_code("self")
    imports = "\n".join(filter(None, (_import_line(name, value) for name, value in sorted(code.globals.items()))))
    inputs = "\n".join(f"        {_make(node)},  # {node.name}" for node in gm.graph.nodes if node.op == "placeholder")
    constants = "".join(
        f"Constants.{node.target} = {_make(node)}\n" for node in gm.graph.nodes if node.op == "get_attr" and has_fake(node)
    )
    own = definitions(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
    imports = "\n".join([imports, *own])
    return _SCRIPT.format(imports=imports, code=code.src.strip() + "\n", inputs=inputs, constants=constants + "\n" if constants else "")


def _import_line(name: str, value: Any) -> str:
    """How a script gets the global `name` of FX's generated code."""
    if name == "torch" or name.startswith("__"):
        return ""
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    if value is type(None):
        return f"{name} = type(None)"
    if isinstance(value, (torch.dtype, torch.device)):
        return f"{name} = {value!r}"
    module = getattr(value, "__module__", None)
    if module is None and hasattr(value, "__spec__"):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    qualified = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if module is None or qualified is None or "<locals>" in qualified:
        return f"{name} = None  # {value!r} can't be imported; put it here"
    top, _, rest = qualified.partition(".")
    return f"from {module} import {top} as {name}" if not rest else f"from {module} import {top}\n{name} = {qualified}"


def _make(node: torch.fx.Node) -> str:
    """An expression for a value like the node's."""
    if not has_fake(node):
        return "None"
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return repr(_example(value))
    shape, stride = tuple(map(_example, value.shape)), tuple(map(_example, value.stride()))
    made = f"torch.empty_strided({shape}, {stride}, dtype={value.dtype}, device={str(value.device)!r})"
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return f"{made}.normal_()"
    return f"{made}.fill_({1 if value.dtype == torch.bool else 0})"


def _example(number: Any) -> Any:
    """A number as it was in the traced call. Asking for it by `int()` would fix it to that."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return number
    hint = number.node.hint
    return 8 if hint is None else hint
