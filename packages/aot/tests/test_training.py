"""Graphs that are differentiated: values and gradients as in eager, whatever is mutated or aliased."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import check, compile_program, non_leaf
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from fxloom_aot import MinCut, save_all
from fxloom_aot._torch_private import batch_level, rebatched
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.signature import InputKind, OutputKind


def base(rows: int = 6, columns: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def grad(value: torch.Tensor) -> torch.Tensor:
    return value.clone().requires_grad_()


def no_grad_write(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * y


CASES: dict[str, tuple[Any, Any]] = {
    "linear_gelu_softmax": (lambda x, w: F.gelu(F.linear(x, w)).softmax(-1), lambda: [base(), grad(torch.ones(4, 8))]),
    "write_to_input_with_history": (lambda x, y: (x.mul_(y), x.sin())[1], lambda: [non_leaf(base()), grad(base(seed=1))]),
    "write_to_part_of_input": (
        lambda x, y: (x[1:3].mul_(y[1:3]), x.sin(), y * 2)[1:],
        lambda: [non_leaf(base()), grad(base(seed=1))],
    ),
    "input_starts_to_require_grad": (lambda x, y: (x.add_(y), x)[1], lambda: [base(), grad(base(seed=1))]),
    "write_without_grad": (no_grad_write, lambda: [base(), grad(base(seed=1))]),
    "views_of_one_result": (lambda x: (lambda z: (z, z[1:3], z.t()))(x * 2), lambda: [grad(base())]),
    "views_of_input": (lambda x: (x[1:3], x * 2, x), lambda: [grad(base())]),
    "detached": (lambda x: (x.detach(), (x * 2).detach(), x * 3), lambda: [grad(base())]),
    "expanded": (lambda x: (x * 2).sum(0).expand(5, 8), lambda: [grad(base())]),
    "equal_results": (lambda x: (x + 1, x + 1), lambda: [grad(base())]),
    "chunks": (lambda x: list((x * 2).chunk(2, 1)), lambda: [grad(base())]),
    "unbound_input": (lambda x: list(x.unbind(0)), lambda: [grad(base())]),
    "convolution": (
        lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, padding=1), inplace=True), 2),
        lambda: [base(2, 192).view(2, 3, 8, 8), grad(torch.ones(4, 3, 3, 3))],
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: [grad(base(6, 32, s).view(2, 3, 4, 8)) for s in range(3)],
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), lambda: [grad(base()), torch.arange(6)]),
    "embedding": (lambda w, i: F.embedding(i, w), lambda: [grad(base()), torch.tensor([0, 2, 2])]),
    "unused_input": (lambda x, y: x * 2, lambda: [grad(base()), grad(base())]),
    "integer_beside": (lambda x: (x.argmax(-1), x * 2), lambda: [grad(base())]),
    "half_of_results": (lambda x, y: (x * 2, y * 2), lambda: [grad(base()), base()]),
    "batch_norm": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=True),
        lambda: [grad(base(4, 75).view(4, 3, 5, 5)), grad(torch.ones(3)), grad(torch.zeros(3)), torch.zeros(3), torch.ones(3)],
    ),
    "layer_norm": (lambda x, w: F.layer_norm(x, (8,), w), lambda: [grad(base()), grad(torch.ones(8))]),
    "transposed_in_place": (lambda x: (x * 2).transpose_(0, 1).sin(), lambda: [grad(base())]),
    "swapped_in_place": (lambda x: (x * 2).swapaxes_(0, 1).sin(), lambda: [grad(base())]),
    "written_then_squeezed_in_place": (lambda x: (x[:1] * 2).lerp_(x[1:2], 0.5).squeeze_(0), lambda: [grad(base())]),
    "unsqueezed_in_place_then_written": (lambda x: (x * 2).unsqueeze_(0).mul_(3), lambda: [grad(base())]),
    # before 2.13 quantile asks for values while it is traced: rejected, so a graph break
    **({"quantile": (lambda x: torch.quantile(x, 0.3), lambda: [grad(base())])} if TorchVersion(torch.__version__) >= (2, 13) else {}),
    "conjugated": (lambda x: x.conj() * 2, lambda: [grad(base().to(torch.cfloat))]),
    "conjugated_result": (lambda x: (x * 2).conj(), lambda: [grad(base().to(torch.cfloat))]),
    "checkpointed": (
        lambda x, w: checkpoint(lambda a: (a @ w).sin().cos(), x, use_reentrant=False, preserve_rng_state=False),
        lambda: [grad(base()), grad(base(8, 4, 1))],
    ),
}


@pytest.mark.parametrize("partitioner", [save_all, MinCut()], ids=["save_all", "MinCut"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_eager(name: str, partitioner: Any) -> None:
    program, make = CASES[name]
    check(program, make, exact=False, partitioner=partitioner)


class Cube(torch.autograd.Function):
    """x³, with a derivative that is wrong on purpose, so that autograd's own can't pass for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, flow: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return flow * 5 * x


def test_custom_function_keeps_its_own_derivative() -> None:
    check(lambda x: Cube.apply(x) + 1, lambda: [grad(base())], exact=False)


def test_no_backward_graph_without_need() -> None:
    _, compiler = compile_program(lambda x: x * 2, [base()])
    assert len(compiler.graphs) == 1
    with torch.no_grad():
        _, compiler = compile_program(lambda x: x * 2, [grad(base())])
    assert len(compiler.graphs) == 1
    run, compiler = compile_program(lambda x: x.argmax(-1), [grad(base())])
    assert len(compiler.graphs) == 1 and not run(grad(base()))[0].requires_grad


def test_signatures_of_both_graphs() -> None:
    _, compiler = compile_program(lambda x, w: (x @ w).tanh(), [base(), grad(base(8, 4))])
    (forward, backward) = (signature for _, signature in compiler.graphs)
    assert [output.kind for output in forward.outputs][0] is OutputKind.USER
    assert {output.kind for output in forward.outputs[1:]} <= {OutputKind.SAVED}
    assert [output.index for output in backward.outputs] == [1]
    assert [spec.kind for spec in backward.inputs][-1] is InputKind.TANGENT


def test_a_saved_input_that_is_overwritten_is_copied() -> None:
    def program(x, y):
        z = x.clone().sin()
        x.zero_()
        return z * y

    check(program, lambda: [non_leaf(base()), grad(base(seed=1))], exact=False)


def test_a_program_whose_derivative_raises_is_left_to_eager() -> None:
    def program(x, y):
        z = x.sin()
        x.zero_()
        return z * y

    with pytest.raises(GraphRejected, match="modified by an inplace operation"):
        compile_program(program, [non_leaf(base()), grad(base(seed=1))])


def test_backward_twice_with_retain_graph() -> None:
    x = grad(base())
    run, _ = compile_program(lambda x: x.sin() * x, [x])
    (out,) = run(x)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    second = torch.autograd.grad(out.sum(), x)[0]
    assert torch.equal(first, second)


def test_overwriting_what_was_saved_is_noticed() -> None:
    x = grad(base())
    run, _ = compile_program(lambda x: x.exp(), [x])
    (out,) = run(x)
    with torch.no_grad():
        out.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_of_other_strides_are_taken() -> None:
    x = grad(base())
    run, _ = compile_program(lambda x: x.sin(), [x])
    flow = base(8, 6).t()
    (mine,) = torch.autograd.grad(run(x)[0], x, flow)
    (theirs,) = torch.autograd.grad(x.sin(), x, flow)
    torch.testing.assert_close(mine, theirs)


def test_shared_inputs_that_require_grad_are_rejected() -> None:
    whole = non_leaf(base())
    with pytest.raises(GraphRejected, match="share memory"):
        compile_program(lambda a, b: (a.mul_(2), b + 1)[1], [whole, whole[2:]])


@pytest.mark.parametrize(
    "program", [lambda x, y: x.detach_() * y, lambda x, y: (x.detach_().mul_(y), x * 2)[1]], ids=["detached", "then written"]
)
def test_an_input_that_is_detached_in_place_is_rejected(program) -> None:
    with pytest.raises(GraphRejected, match="detached in place"):
        compile_program(program, [non_leaf(base()), grad(base(seed=1))])
    run, _ = compile_program(program, [base(), base(seed=1)])  # nothing changes
    assert not run(base(), base(seed=1))[0].requires_grad


def quietly_transposed(x, y):
    with torch.no_grad():
        x.t_()
    return x * y.t()


@pytest.mark.parametrize(
    "program",
    [lambda x, y: x.t_() * y.t(), lambda x, y: (x.unsqueeze_(0).mul_(y), x * 2)[1], quietly_transposed],
    ids=["transposed", "then written", "without grad"],
)
def test_an_input_with_a_history_that_changes_its_shape_is_rejected(program) -> None:
    with pytest.raises(GraphRejected, match="changes its shape in place"):
        compile_program(program, [non_leaf(base()), grad(base(seed=1))])
    compile_program(program, [base(), base(seed=1)])


def test_an_input_that_gets_a_history_and_changes_its_shape_is_rejected() -> None:
    with pytest.raises(GraphRejected, match="changes its shape in place"):
        compile_program(lambda x, y: x.mul_(y).t_() * 2, [base(), grad(base(seed=1))])


@pytest.mark.parametrize("before", [False, True])
def test_an_input_whose_requires_grad_changes_is_rejected(before: bool) -> None:
    with pytest.raises(GraphRejected, match="in place"):
        compile_program(lambda x: x.requires_grad_(not before) * 2, [base().requires_grad_(before)])


def test_a_constant_that_requires_grad_is_rejected() -> None:
    weight = grad(base())
    with pytest.raises(GraphRejected, match="constant"):
        compile_program(lambda x: x * weight, [base()])


def test_an_optimizer_step_trains_as_eager() -> None:
    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 4))
        names, parameters = zip(*model.named_parameters(), strict=True)
        optimizer = torch.optim.SGD(parameters, 0.1)

        def program(*flat):
            return torch.func.functional_call(model, dict(zip(names, flat[:-1], strict=True)), (flat[-1],)).square().mean()

        run = compile_program(program, [*parameters, base()])[0] if compiled else lambda *args: [program(*args)]
        for step in range(4):
            optimizer.zero_grad()
            run(*parameters, base(seed=step))[0].backward()
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    for mine, theirs in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_second_derivative() -> None:
    x = grad(base())
    run, compiler = compile_program(lambda a: (a.sin() * a).sum(), [x])
    (first,) = torch.autograd.grad(run(x)[0], x, create_graph=True)
    torch.testing.assert_close(first, x.sin() + x * x.cos(), check_stride=False)
    first.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.cos() - x * x.sin(), check_stride=False)
    assert len(compiler.graphs) == 2


def test_what_a_derivative_computes_of_forward_values_it_computes_in_backward() -> None:
    """So that what is kept is what eager keeps, `x` for `sin`, of which the next derivative can be made too."""
    x = grad(base())
    for partitioner in (save_all, MinCut()):
        _, compiler = compile_program(lambda a: (a.sin() * 2).sin(), [x], partitioner=partitioner)
        assert "aten.cos.default" not in compiler.ops(0)
        assert compiler.ops(1).count("aten.cos.default") == 2


def test_a_region_without_autocast_ignores_that_of_the_call() -> None:
    def program(x, w):
        with torch.autocast("cpu", enabled=False):
            plain = x @ w
        return plain, x @ w

    x, w = base(), grad(base(8, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run, _ = compile_program(program, [x, w])
        outputs = run(x, w)
        assert [output.dtype for output in outputs] == [torch.float32, torch.bfloat16]
    outputs[0].sum().backward()
    torch.testing.assert_close(w.grad, x.t() @ torch.ones(x.shape[0], 4))


def test_gradients_that_stand_for_many_tell_their_level() -> None:
    """Autograd's own thread for a device is not told how deep `is_grads_batched` is nested; the tensors know."""
    rows, more = torch.arange(6.0).view(3, 2), torch.arange(8.0).view(4, 2)
    first, second = rebatched(rows, 1), rebatched(more, 2)
    assert [batch_level([None, first]), batch_level([second]), batch_level([torch.ones(2), None])] == [1, 2, 0]
