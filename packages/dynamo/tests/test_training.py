"""Optimizers, checkpoints and whole training steps: one graph for an update; values, state and gradients as in eager."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fxloom_dynamo import optimize

OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
EXTRA = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"capturable": True, "foreach": False}),
    ("AdamW", {"amsgrad": True, "maximize": True, "foreach": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
]


class Graphs:
    """A backend that counts its graphs and runs them as they are."""

    def __init__(self):
        self.count = 0

    def __call__(self, gm, example_inputs):
        self.count += 1
        return gm.forward


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(()))]


def train(make, wrap, steps=5, schedule=None):
    """Parameters and state after `steps` updates with the same gradients."""
    params = parameters()
    optimizer = make(params)
    scheduler = schedule(optimizer) if schedule else None

    def step():
        optimizer.step()

    step = wrap(step)
    numbers = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=numbers)
        step()
        if scheduler:
            scheduler.step()
    return params, optimizer.state_dict()


def assert_same(mine, theirs):
    torch.testing.assert_close(mine[0], theirs[0])
    assert mine[1]["param_groups"] == theirs[1]["param_groups"]
    assert mine[1]["state"].keys() == theirs[1]["state"].keys()
    for index, state in theirs[1]["state"].items():
        assert list(mine[1]["state"][index]) == list(state)
        torch.testing.assert_close(mine[1]["state"][index], state)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_one_graph(name, foreach):
    def make(params):
        return getattr(torch.optim, name)(params, lr=0.01, foreach=foreach)

    graphs = Graphs()
    mine = train(make, lambda step: optimize(graphs, fullgraph=True)(step))
    assert_same(mine, train(make, lambda step: step))
    assert graphs.count <= 2  # the first makes the state


@pytest.mark.parametrize(("name", "options"), EXTRA)
def test_options_of_optimizers(name, options):
    def make(params):
        return getattr(torch.optim, name)(params, **options)

    graphs = Graphs()
    mine = train(make, lambda step: optimize(graphs, fullgraph=True)(step))
    plain = {key: value for key, value in options.items() if key != "capturable"}  # eager wants an accelerator for that
    theirs = train(lambda params: getattr(torch.optim, name)(params, **plain), lambda step: step)
    torch.testing.assert_close(mine[0], theirs[0])
    assert graphs.count <= 2


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_learning_rates_that_change_do_not_recompile_for_ever(name, foreach):
    def make(params):
        return getattr(torch.optim, name)(params, lr=0.1, foreach=foreach)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    graphs = Graphs()
    mine = train(make, lambda step: optimize(graphs, fullgraph=True)(step), 12, schedule)
    assert_same(mine, train(make, lambda step: step, 12, schedule))
    assert graphs.count <= 3


def test_another_optimizer_of_the_same_kind_is_told_apart():
    graphs = Graphs()
    update = optimize(graphs)(lambda optimizer: optimizer.step())
    for _ in range(2):
        params = parameters()
        optimizer = torch.optim.SGD(params, lr=0.5)
        before = [param.detach().clone() for param in params]
        for param in params:
            param.grad = torch.ones_like(param)
        update(optimizer)
        torch.testing.assert_close([param.detach() for param in params], [old - 0.5 for old in before])


def test_a_gradient_that_is_missing_is_seen():
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=1.0)
    step = optimize(fullgraph=True)(lambda: optimizer.step())
    for missing in (0, 1, None):
        before = [param.detach().clone() for param in params]
        for index, param in enumerate(params):
            param.grad = None if index == missing else torch.ones_like(param)
        step()
        moved = [not torch.equal(param, old) for param, old in zip(params, before, strict=True)]
        assert moved == [index != missing for index in range(3)]


@pytest.mark.parametrize("to_none", [False, True])
def test_zero_grad_is_an_effect(to_none):
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=1.0)
    for param in params:
        param.grad = torch.ones_like(param)
    grads = [param.grad for param in params]

    def clear():
        optimizer.zero_grad(set_to_none=to_none)
        return [param.grad is None for param in params]

    assert optimize(fullgraph=True)(clear)() == [to_none] * 3
    if to_none:
        assert all(param.grad is None for param in params)
        assert all(bool((grad == 1).all()) for grad in grads)
    else:
        assert all(param.grad is grad for param, grad in zip(params, grads, strict=True))
        assert all(bool((grad == 0).all()) for grad in grads)


def test_a_gradient_is_assigned_and_read_back():
    param = parameters()[0]

    def assign(x):
        param.grad = x * 2
        return param.grad + 1

    x = torch.randn(4, 3)
    out = optimize(fullgraph=True)(assign)(x)
    torch.testing.assert_close(out, x * 2 + 1)
    torch.testing.assert_close(param.grad, x * 2)


def test_whether_a_tensor_is_a_leaf_is_guarded():
    def ask(x):
        return x.is_leaf, x + 1

    leaf = torch.ones(3, requires_grad=True)
    ask_compiled = optimize()(ask)
    assert ask_compiled(leaf)[0] is True
    assert ask_compiled(leaf * 1)[0] is False
    assert ask_compiled(leaf)[0] is True


def test_dicts_keyed_by_tensors_and_objects():
    class Key:
        pass

    a, b, key = torch.ones(2), torch.zeros(2), Key()
    table = {a: torch.full((2,), 5.0), key: torch.full((2,), 7.0)}

    def look(x):
        if x in table:
            return table[x] + table[key]
        table[x] = x + 1
        return x

    run = optimize(fullgraph=True)(look)
    torch.testing.assert_close(run(a), torch.full((2,), 12.0))
    torch.testing.assert_close(run(b), b)
    assert list(table)[2] is b
    torch.testing.assert_close(table[b], torch.ones(2))
    torch.testing.assert_close(run(b), torch.full((2,), 8.0))


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))


def plain_step(net, optimizer, scaler, x):
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped_step(net, optimizer, scaler, x):
    optimizer.zero_grad(set_to_none=False)
    loss = net(x).pow(2).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    return loss.detach() + norm


def accumulating_step(net, optimizer, scaler, x):
    total = 0
    for part in x.chunk(2):
        loss = net(part).pow(2).mean() / 2
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


def scaled_step(net, optimizer, scaler, x):
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("step", [plain_step, clipped_step, accumulating_step, scaled_step])
def test_training_steps(step, name):
    results = []
    graphs = Graphs()
    for run in (step, optimize(graphs)(step)):
        net = model()
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        torch.manual_seed(3)
        losses = [run(net, optimizer, scaler, torch.randn(6, 4)) for _ in range(5)]
        results.append((losses, [p.detach() for p in net.parameters()], [p.grad for p in net.parameters()]))
    torch.testing.assert_close(results[1], results[0])
    assert 2 <= graphs.count <= 6


def test_a_backward_of_a_compiled_graph_is_not_captured():
    """The autograd engine calls it within the region; it is no code of the program's, nor is what it calls."""
    calls = []
    names = {"__name__": "fxloom_backend.generated", "torch": torch, "double": lambda grad: grad * 2, "calls": calls}
    source = """class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        calls.append(1)
        return double(grad)
"""
    exec(source, names)
    graphs = Graphs()

    def backend(gm, example_inputs):
        graphs.count += 1
        return lambda *inputs: tuple(names["Double"].apply(value) / 2 for value in gm(*inputs))

    def step(x):
        x.sin().sum().backward()
        return x.grad + 1

    x = torch.randn(3, requires_grad=True)
    out = optimize(backend)(step)(x)
    torch.testing.assert_close(out.detach(), x.detach().cos() + 1)
    assert len(calls) == 1
    assert graphs.count == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_runs_again_saves_the_same(reentrant):
    """Backward runs the function outside of the region: it has to save then what it saved first."""
    net = model()

    def backend(gm, example_inputs):
        class Fused(torch.autograd.Function):
            """Saves other tensors than eager does, as a compiled graph would."""

            @staticmethod
            def forward(ctx, *inputs):
                ctx.save_for_backward(*inputs, torch.ones(7))
                with torch.enable_grad():
                    ctx.again = [value.detach().requires_grad_(value.requires_grad) for value in inputs]
                    out = gm(*ctx.again)
                ctx.out = [value for value in out if value.requires_grad]
                return tuple(value.detach() for value in out)

            @staticmethod
            def backward(ctx, *grads):
                _ = ctx.saved_tensors
                torch.autograd.backward(ctx.out, grads[: len(ctx.out)])
                return tuple(value.grad for value in ctx.again)

        return lambda *inputs: Fused.apply(*inputs)

    def step(x):
        return checkpoint(lambda value: net(value).sin(), x * 2, use_reentrant=reentrant).sum()

    results = []
    for run in (step, optimize(backend)(step)):
        net.zero_grad()
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        torch.manual_seed(5)
        out = run(x)
        out.backward()
        results.append([out.detach(), x.grad, *[param.grad for param in net.parameters()]])
    torch.testing.assert_close(results[1], results[0])
