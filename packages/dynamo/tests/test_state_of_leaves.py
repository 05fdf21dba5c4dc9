"""What programs do to parameters that existed before: freeze them, give them other data; and modules that come into being late."""

import collections
import threading

import pytest
import torch
from counted import compare, compared
from torch import nn


def state(module):
    return [
        (type(p), p.tolist(), p.requires_grad, None if p.grad is None else p.grad.tolist(), p._version) for p in module.parameters()
    ]


def shown(results):
    return [[(t.tolist(), t.requires_grad) for t in result] for result in results]


def scales_data_before_it_is_used(compiled):
    module = nn.Linear(2, 2)

    def program(x):
        for parameter in module.parameters():
            parameter.data = parameter.data * 0.5
        return module(x)

    run = compiled(program)
    results = [run(torch.ones(2)) for _ in range(2)]
    results[1].sum().backward()
    return state(module), shown(results)


def averages_two_models(compiled):
    module, other = nn.Linear(2, 2), nn.Linear(2, 2)

    @torch.no_grad()
    def program(x):
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            mine.data = mine.data * 0.9 + theirs.data * 0.1
            mine.data.mul_(0.5)
        return module(x), other(x)

    run = compiled(program)
    results = [run(torch.ones(2)) for _ in range(2)]
    return state(module), state(other), shown(results)


def moves_to_where_it_is(compiled):
    """`Module.to` sets the data of each parameter to what it has."""
    module = nn.Module()
    module.part = nn.Linear(2, 2)

    def program(x):
        module.part = module.part.to(torch.float32)
        module.part.bias.data = module.part.bias
        return module.part(x)

    run = compiled(program)
    results = [run(torch.ones(2)) for _ in range(2)]
    results[1].sum().backward()
    return state(module), shown(results)


def shares_the_data_of_another(compiled):
    def program(tensor, value):
        tensor.data = value
        tensor.add_(1)
        return tensor * 2, value + 0

    tensor, value = torch.ones(2), torch.zeros(2)
    results = compiled(program)(tensor, value)
    value.add_(5)
    return shown([results]), tensor.tolist(), tensor.data_ptr() == value.data_ptr()


def freezes_a_part(compiled):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def program(x):
        before = module(x)
        module[0].requires_grad_(False)
        return before, module(x), module[0](x), module[0].weight.requires_grad

    run = compiled(program)
    results = [run(torch.ones(2)) for _ in range(2)]
    (results[0][0].sum() + results[0][1].sum()).backward()
    return state(module), shown(result[:3] for result in results), [result[3] for result in results]


def freezes_for_a_while(compiled):
    module = nn.Linear(2, 2)

    def program(x):
        module.requires_grad_(False)
        frozen = module(x)
        module.weight.requires_grad = True
        module.bias.requires_grad_()
        return frozen, module(x)

    run = compiled(program)
    results = [run(torch.ones(2)) for _ in range(2)]
    results[0][1].sum().backward()
    return state(module), shown(results)


def looks_at_its_state(compiled):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def program(x):
        found = module.state_dict(keep_vars=True)
        module.eval()
        return found, module(x), found["0.weight"] is module[0].weight, module.state_dict()._metadata

    def reads(x, given):
        given.note = getattr(given, "note", 0) + 1
        return x + len(given._metadata)

    found, y, same, metadata = compiled(program)(torch.ones(3, 2))
    run = compiled(reads)
    lengths = [run(torch.ones(1), found).tolist() for _ in range(2)]
    return type(found), list(found), found._metadata == metadata, vars(found), y.tolist(), same, lengths, module.training


def averages_data_in_place(compiled):
    module, average = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    module.running_mean.add_(1)

    def program():
        for mine, theirs in zip(module.parameters(), average.parameters(), strict=True):
            theirs.data.mul_(0.9).add_(mine.data, alpha=0.1)
        for mine, theirs in zip(module.buffers(), average.buffers(), strict=True):
            theirs.copy_(mine)

    run = compiled(program)
    run()
    run()
    return state(module), state(average), [buffer.tolist() for buffer in average.buffers()]


def swaps_data(compiled):
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))

    def program(x):
        one.data, two.data = two.data, one.data
        with torch.no_grad():
            return (one * x + two,)

    run = compiled(program)
    return shown(run(torch.ones(2)) for _ in range(3)), one.tolist(), two.tolist()


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict()

    def forward(self, x):
        key = str(x.shape[-1])
        if key not in self.layers:
            layer = nn.Linear(x.shape[-1], 1)
            nn.init.ones_(layer.weight)
            self.layers[key] = layer
            self.register_buffer(f"seen_{key}", x.detach() * 0, persistent=False)
        return self.layers[key](x)


def grows_by_size(compiled):
    module = Grows()
    run = compiled(module)
    results = [run(torch.ones(size)) for size in (2, 3, 2, 3)]
    sum(results).sum().backward()
    return shown([results]), state(module), list(module.state_dict()), list(module._buffers)


def loads_its_state(compiled):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wanted = {key: torch.ones_like(value) for key, value in module.state_dict().items()}

    def program(x):
        told = module.load_state_dict(wanted)
        return module(x), told.missing_keys

    result, missing = compiled(program)(torch.ones(3, 2))
    return state(module), result.tolist(), missing, [buffer.tolist() for buffer in module.buffers()]


class Depth(threading.local):
    def __init__(self, start):
        self.depth = start


DEPTH = Depth(10)


def counts_in_a_thread_local(compiled):
    def program(x):
        DEPTH.depth += 1
        try:
            return x + DEPTH.depth, hasattr(DEPTH, "other")
        finally:
            DEPTH.depth -= 1
            DEPTH.calls = getattr(DEPTH, "calls", 0) + 1

    run, found = compiled(program), []

    def calls():
        found.extend(str(run(torch.ones(1))) for _ in range(2))
        found.append(dict(DEPTH.__dict__))
        DEPTH.__dict__.pop("calls")

    calls()
    DEPTH.depth = 20
    calls()
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    DEPTH.depth = 10
    return found


PROGRAMS = [
    (moves_to_where_it_is, 1), (averages_two_models, 1), (shares_the_data_of_another, 1), (freezes_a_part, 2), (freezes_for_a_while, 1), (looks_at_its_state, 3),
    (counts_in_a_thread_local, 4), (averages_data_in_place, 1), (swaps_data, 1), (grows_by_size, 4), (loads_its_state, 1),
]  # fmt: skip


@pytest.mark.parametrize(("program", "graphs"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
def test_it_is_captured_without_a_break(program, graphs):
    compare(program, graphs)


def test_what_needs_a_gradient_through_new_data_is_a_graph_of_its_own():
    count = compared(scales_data_before_it_is_used)
    assert (count.graphs, len(count.breaks)) == (2, 1)
    assert "after its .data was set" in count.breaks[0]


class UnreadParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.5)
        self.late = nn.LazyLinear(2)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.norm(self.late(self.drop(self.first(x))))


def initializes_itself(compiled):
    module = UnreadParameter()
    run = compiled(module)
    results = [run(torch.ones(5, 3)).tolist() for _ in range(3)]
    return results, [type(part) for part in module.modules()], state(module), list(module.state_dict())


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_lazy_module_is_one_graph_from_its_second_call_on(fullgraph):
    compare(initializes_itself, 1, fullgraph=fullgraph)


def test_a_lazy_module_that_never_runs_is_a_break():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.linear = nn.LazyLinear(2), nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x) + len(list(self.parameters())) + (self.late.weight is None)

    def program(compiled):
        run = compiled(Unused())
        return [run(torch.ones(2)).tolist() for _ in range(3)]

    count = compared(program)
    assert any(text.startswith(("uninitialized", "frame left")) for text in count.breaks) or not count.breaks


def watches_gradients(compiled):
    log = collections.Counter()
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

    def hook(module, inputs, outputs):
        log["full"] += 1
        return tuple(None if g is None else g * 2 for g in inputs)

    module[2].register_full_backward_hook(hook)
    run = compiled(lambda x: module(x * 2).sin())
    x = torch.ones(2, 3, requires_grad=True)
    run(x).sum().backward()
    with torch.no_grad():
        quiet = run(x)
    return state(module), x.grad.tolist(), log, quiet.tolist()


def test_a_module_that_watches_gradients_is_called_as_it_is():
    """One break in each frame around it, none in torch's own code that hangs the hooks; without gradients it is like any other."""
    count = compared(watches_gradients)
    assert len(count.breaks) == 4 and all("with hooks on its gradients" in text for text in count.breaks)
    assert not [frame.info.name for frame in count.frames if "BackwardHook" in frame.info.name or frame.info.name.endswith("inner")]
    quiet = count.frames[-1].info
    assert quiet.broke is None and sum(node.op.startswith("call") for node in quiet.graph.graph.nodes) >= 4
