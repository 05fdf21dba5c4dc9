"""Parameters that a program makes inside of a region, and attributes that it hangs on tensors: one graph, eager's objects."""

import pytest
import torch
from counted import compare
from torch import nn

from fxloom_dynamo import capture


def shown(tensor):
    """What a program can tell of a leaf."""
    gradient = None if tensor.grad is None else tensor.grad.tolist()
    return type(tensor), tensor.requires_grad, tensor.is_leaf, tensor.tolist(), gradient, vars(tensor)


def makes_a_module(compiled):
    module = compiled(lambda x: nn.Linear(2, 2))(torch.ones(2))
    module(torch.ones(2)).sum().backward()
    return [(name, shown(parameter)) for name, parameter in module.named_parameters()]


def makes_a_module_and_uses_it(compiled):
    def program(x):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        return module, module(x)

    module, y = compiled(program)(torch.ones(3, 2))
    y.square().sum().backward()
    return [(name, shown(parameter)) for name, parameter in module.named_parameters()]


def builds_at_the_first_call(compiled):
    class Late(nn.Module):
        built = False

        def forward(self, x):
            if not self.built:
                self.weight = nn.Parameter(torch.arange(3.0))
                self.register_buffer("steps", torch.zeros(()))
                self.built = True
            return x * self.weight

    module = Late()
    run = compiled(module)
    for _ in range(2):
        run(torch.ones(3)).sum().backward()
    return shown(module.weight), list(module.state_dict())


def lists_existing_parameters(compiled):
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))

    def program(x):
        found = nn.ParameterList([one, two])
        return found, x + found[0]

    found, y = compiled(program)(torch.ones(2))
    y.sum().backward()
    return len(found), found[0] is one, found[1] is two, shown(found[0]), list(found._parameters)


def lists_made_parameters(compiled):
    found = compiled(lambda x: nn.ParameterList([nn.Parameter(item.clone()) for item in (x, x + 1)]))(torch.ones(2))
    (found[0] * found[1]).sum().backward()
    return [shown(parameter) for parameter in found.parameters()]


def shares_memory(compiled):
    x = torch.ones(2)
    leaf, again, fixed = compiled(lambda x: (p := nn.Parameter(x), p, nn.Parameter(p, requires_grad=False)))(x)
    x.add_(1)
    leaf.sum().backward()
    return leaf is again, shown(leaf), shown(fixed), leaf._is_view(), fixed.data_ptr() == x.data_ptr()


def freezes_what_it_made(compiled):
    def program(x):
        module = nn.Linear(2, 2)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return module

    return [shown(parameter) for parameter in compiled(program)(torch.ones(2)).parameters()]


def refuses_integers(compiled):
    def program(x):
        try:
            return nn.Parameter(x)
        except RuntimeError as error:
            return str(error)

    return compiled(program)(torch.ones(2, dtype=torch.int64))


def makes_a_buffer(compiled):
    def program(x):
        module = nn.Module()
        module.steps = nn.Buffer(x * 2, persistent=False)
        return module, isinstance(module.steps, nn.Buffer), isinstance(x, nn.Buffer)

    module, *told = compiled(program)(torch.ones(2))
    return told, vars(module.steps), list(module.state_dict()), list(module._buffers)


def marks_parameters(compiled):
    module = nn.Linear(2, 2)

    def program(module, x):
        for parameter in module.parameters():
            parameter._no_decay = getattr(parameter, "_no_decay", 0) + 1
            if hasattr(parameter, "seen"):
                x = x + 1
        return x

    run = compiled(program)
    found = [run(module, torch.ones(2)).tolist() for _ in range(2)]
    module.weight.seen = True
    found.append(run(module, torch.ones(2)).tolist())
    return found, vars(module.weight), vars(module.bias)


def marks_results(compiled):
    def program(x):
        y = x * 2
        y.note = ["made", y]
        x.note = y.note
        y.gone = 1
        del y.gone
        return y, y.__dict__ is not None, hasattr(y, "gone")

    x = torch.ones(2)
    y, *told = compiled(program)(x)
    return told, y.note[0], y.note[1] is y, x.note is y.note, list(vars(y))


class Named(torch.Tensor):
    """Carries a name through functions of torch."""

    label = "none"

    def __new__(cls, data, label="none"):
        made = torch.Tensor._make_subclass(cls, data)
        made.label = label
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        labels = [arg.label for arg in args if isinstance(arg, Named)]
        if isinstance(result, Named) and labels:
            result.label = labels[0]
        return result


def makes_tensors_of_a_class(compiled):
    y, z = compiled(lambda x: (Named(x, "one") * 2, Named(x)))(torch.ones(2))
    return type(y), y.label, y.tolist(), z.label, vars(z), shown(z.as_subclass(torch.Tensor))


PROGRAMS = [
    (makes_a_module, 1), (makes_a_module_and_uses_it, 1), (builds_at_the_first_call, 2), (lists_existing_parameters, 1),
    (lists_made_parameters, 1), (shares_memory, 1), (freezes_what_it_made, 1), (refuses_integers, 0), (makes_a_buffer, 1),
    (marks_parameters, 1), (marks_results, 1), (makes_tensors_of_a_class, 1),
]  # fmt: skip


@pytest.mark.parametrize(("program", "graphs"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_program_makes_and_marks_tensors_in_one_graph_a_call(program, graphs):
    compare(program, graphs)


def test_an_initialized_parameter_is_not_told_apart_in_the_graph():
    """Other backends can't make leaves; what only initializes one has none."""
    targets = [node.target for node in capture(lambda x: nn.Linear(2, 2), torch.ones(2)).graph.graph.nodes]
    assert "requires_grad_" not in targets
    used = [node.target for node in capture(lambda x: nn.Linear(2, 2)(x), torch.ones(2)).graph.graph.nodes]
    assert used.count("requires_grad_") == 2
