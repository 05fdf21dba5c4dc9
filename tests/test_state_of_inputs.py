"""What a region does to tensors that existed before, beside their values: the caller's tensors change as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxloom

BACKENDS = ["aot_eager", "inductor"]


def leaf() -> Tensor:
    return torch.randn(3, requires_grad=True)


def state(*tensors: Tensor) -> list[Any]:
    return [(t.requires_grad, t.is_leaf, t.detach().clone(), None if not t.is_leaf else t.grad) for t in tensors]


def detached(y: Tensor, w: Tensor) -> Any:
    y.detach_()
    return (y * w).sum()


def detached_by_function(y: Tensor, w: Tensor) -> Any:
    torch.detach_(y)
    return (y * w).sum(), y


def detached_then_written(y: Tensor, w: Tensor) -> Any:
    y.detach_()
    y.mul_(w)
    return y.sum()


def written_then_detached(y: Tensor, w: Tensor) -> Any:
    y.mul_(w)
    total = y.sum()
    y.detach_()
    return total


def no_longer_required(y: Tensor, w: Tensor) -> Any:
    w.requires_grad_(False)
    return (y * w).sum()


PROGRAMS: list[Callable[..., Any]] = [
    detached, detached_by_function, detached_then_written, written_then_detached, no_longer_required,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [lambda: leaf() * 2, leaf, lambda: torch.ones(3)], ids=["history", "leaf", "plain"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inputs_change_as_in_eager(program: Callable[..., Any], make: Callable[[], Tensor], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        torch.manual_seed(0)
        y, w = make(), leaf()
        try:
            out = run(y, w)
            total = out[0] if isinstance(out, tuple) else out
            if total.requires_grad:
                total.backward()
            seen.append(state(total, y, w))
        except RuntimeError as error:  # a leaf is written
            seen.append(str(error)[:40])
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0])


def test_detaching_a_view_is_the_error_of_eager() -> None:
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        fxloom.compile(lambda x: x.detach_() + 1, backend="aot_eager")((leaf() * 2)[:2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_truncated_backpropagation_through_time(backend: str) -> None:
    def train(compile: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        cell = nn.RNNCell(2, 3)

        def step(x: Tensor, h: Tensor) -> Any:
            h.detach_()
            h = cell(x, h)
            return h, h.square().sum()

        run, h, losses = compile(step), torch.zeros(1, 3), []
        for _ in range(4):
            h, loss = run(torch.ones(1, 2), h)
            loss.backward()
            losses.append(loss.detach())
        return [losses, [parameter.grad for parameter in cell.parameters()]]

    torch.testing.assert_close(train(lambda fn: fxloom.compile(fn, backend=backend)), train(lambda fn: fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_way_leads_to_inputs_that_get_no_gradient(backend: str) -> None:
    """The step detaches what it reads of the earlier one, so backward must not enter that again."""

    def train(compile: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        run, x, unused, entered = compile(lambda x, h, u: ((x * h.detach()).sin(), x + u.detach())), leaf(), leaf(), []
        h = torch.ones(3)
        for _ in range(3):
            if h.requires_grad:
                h.register_hook(lambda gradient: entered.append(gradient is None))
            h, _ = run(x, h, unused)
            h.sum().backward()
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(run(x, h, unused)[0].sum(), unused)
        return [h.detach(), x.grad, unused.grad, entered]

    torch.testing.assert_close(train(lambda fn: fxloom.compile(fn, backend=backend)), train(lambda fn: fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_without_a_gradient_is_written_and_seen_as_a_view(backend: str) -> None:
    def program(x: Tensor, h: Tensor) -> Any:
        out = x.sin() + h.detach()
        with torch.no_grad():
            h.mul_(2)
        return out, h[1:]

    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        torch.manual_seed(0)
        x, start = leaf(), leaf()
        h = start * 1
        out, part = run(x, h)
        (out.sum() + part.sum()).backward()
        seen.append([out.detach(), h.detach(), x.grad, start.grad])
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("size", [2, 4])
def test_results_are_written_to_tensors_of_another_size(size: int, backend: str) -> None:
    def program(x: Tensor, out: Tensor) -> Any:
        with torch.no_grad():
            torch.sin(x, out=out)
        return out * x, out.shape[0] * 2

    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        x, out = torch.ones(4), torch.zeros(size)
        seen.append((run(x, out), out))
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_made_with_grad_after_a_break_without_have_a_history(backend: str) -> None:
    def program(x: Tensor) -> Any:
        x.add_(1)
        with torch.no_grad():
            x.transpose_(0, -1)
            untracked = x[1]
        return x[0], x.unflatten(0, (-1, 1)), untracked

    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        source = torch.ones(3, 3, requires_grad=True)
        row, parts, untracked = run(source * torch.arange(9.0).view(3, 3))
        (row * 2).sum().backward(retain_graph=True)
        parts.square().sum().backward()
        seen.append((source.grad, row.is_leaf, parts.is_leaf, untracked.grad_fn is None, untracked.requires_grad))
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_changes_its_shape_and_is_saved(backend: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        w.unsqueeze_(0)
        return x * w

    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        x, w = torch.ones(3, requires_grad=True), torch.arange(3.0)
        y = run(x, w)
        y.sum().backward()
        seen.append((x.grad, w, w.shape))
        y = run(x, w.view(3))
        w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    torch.testing.assert_close(seen[1], seen[0])


def transposed(x: Tensor) -> Any:
    x.transpose_(0, 1)
    return x.sin()


def transposed_and_returned(x: Tensor) -> Any:
    x.t_()
    return x


def unsqueezed(x: Tensor) -> Any:
    return x.unsqueeze_(0) * 2


def squeezed_to_the_same(x: Tensor) -> Any:
    y = x * 2
    x.squeeze_()
    return y + x.detach()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [transposed, transposed_and_returned, unsqueezed, squeezed_to_the_same], ids=lambda p: p.__name__)
def test_a_shape_changed_in_place_is_part_of_the_history(program: Callable[..., Any], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        source = torch.ones(2, 3, requires_grad=True)
        x = source * 1
        out = run(x)
        weight = torch.arange(6.0).view(x.shape)
        (x * weight).sum().backward(retain_graph=True)
        (out * weight).sum().backward()
        assert x.grad_fn is not None
        seen.append((out.detach(), x.detach(), source.grad, out is x, type(x.grad_fn).__name__))
    torch.testing.assert_close(seen[1][:3], seen[0][:3])
    assert seen[1][3:] == seen[0][3:]


def view_of_a_quiet_view(x: Tensor) -> Any:
    with torch.no_grad():
        v = x.view(-1)
    return v, v.expand(2, 4)


def view_of_a_quiet_view_of_a_result(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        v = y.view(-1)
    return y, v.expand(2, 4)


def quiet_view_of_a_view(x: Tensor) -> Any:
    v = x.view(-1)
    with torch.no_grad():
        w = v[1:]
    return w, v.expand(2, 4)


def quiet_strided_view(x: Tensor) -> Any:
    with torch.no_grad():
        v = x.as_strided((3,), (1,))
    return v, v[1:]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [view_of_a_quiet_view, view_of_a_quiet_view_of_a_result, quiet_view_of_a_view, quiet_strided_view],
    ids=lambda program: program.__name__,
)
def test_no_gradient_flows_through_a_view_made_without_grad(program: Callable[..., Any], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        source = torch.ones(2, 2, requires_grad=True)
        first, last = run(source * torch.arange(4.0).view(2, 2))
        last.sum().backward()
        seen.append((source.grad, first.detach(), last.detach(), first.grad_fn is None, first.requires_grad, last.requires_grad))
    torch.testing.assert_close(seen[1], seen[0])


def data_is_scaled(w: Tensor) -> None:
    w.data.mul_(2)


def a_detached_part_is_scaled(w: Tensor) -> None:
    w.detach()[1:].data.mul_(3)


def both_ways(w: Tensor) -> None:
    with torch.no_grad():
        w.add_(1)
    w.data.mul_(3)


def running_statistics(w: Tensor) -> None:
    nn.functional.batch_norm(torch.arange(30.0).view(5, 6), w.detach(), torch.ones(6), training=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [data_is_scaled, a_detached_part_is_scaled, both_ways, running_statistics])
def test_writes_count_as_versions_where_eagers_do(program: Callable[[Tensor], None], backend: str) -> None:
    seen: list[Any] = []
    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        w = torch.ones(6, requires_grad=True)
        loss = w.sin().sum()
        run(w)
        try:
            loss.backward()
            seen.append((w.detach(), w._version > 0, w.grad))
        except RuntimeError as error:
            seen.append((w.detach(), w._version > 0, "modified by an inplace operation" in str(error)))
    torch.testing.assert_close(seen[1], seen[0])


def scaled_in_a_list(a: Tensor, x: Tensor) -> Any:
    torch._foreach_mul_([a], 2.0)
    return a * x


def a_saved_result_is_scaled(a: Tensor, x: Tensor) -> Any:
    y = (a * x).exp()
    torch._foreach_mul_([y], 2.0)
    return y


def a_saved_operand_is_scaled(a: Tensor, x: Tensor) -> Any:
    a = a * x
    y = a.sin()
    torch._foreach_mul_([a], 2.0)
    return y


def a_parameter_is_scaled(a: Tensor, x: Tensor) -> Any:
    y = (a * x).sum()
    with torch.no_grad():
        torch._foreach_add_([a], 1.0)
    return y * x


def a_list_of_results(a: Tensor, x: Tensor) -> Any:
    torch.unbind_copy(x, 0, out=[a[0].detach(), a[1].detach(), a[2].detach()])
    return x * 1


def pooled_to_a_given_tensor(a: Tensor, x: Tensor) -> Any:
    torch.ops.aten.avg_pool1d.out(x.detach().view(1, 1, 3), [1], out=a.detach().view(1, 1, 3))
    return x * 1


LISTS: list[Callable[..., Any]] = [
    scaled_in_a_list, a_saved_result_is_scaled, a_saved_operand_is_scaled, a_parameter_is_scaled, a_list_of_results,
    pooled_to_a_given_tensor,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", LISTS, ids=lambda program: program.__name__)
def test_writes_counted_within_an_operator(program: Callable[..., Any], backend: str) -> None:
    """Foreach operators and such are made of others, which count what they write as new versions."""
    fxloom.reset()
    seen: list[Any] = []
    for run in (program, fxloom.compile(program, backend=backend)):
        leaf, x = torch.arange(3.0).requires_grad_(), torch.ones(3, requires_grad=True)
        a = leaf if program is a_parameter_is_scaled else leaf * 1
        loss = run(a, x).sum()
        try:
            loss.backward()
            seen.append((a.detach(), a._version, leaf.grad, x.grad))
        except RuntimeError as error:
            seen.append((a.detach(), a._version, "modified by an inplace operation" in str(error)))
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_written_between_forward_and_backward(backend: str) -> None:
    """Backward sees the new values where eager keeps the tensor, the old ones where eager keeps a result."""
    w = torch.ones(3, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        y = (w.sin() * x).sum()
        w.data.mul_(2)
        return y

    seen = []
    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        w.data.fill_(1)
        w.grad = None
        x = torch.ones(3, requires_grad=True)
        run(x).backward()
        seen.append((x.grad, w.grad, w.detach().clone()))
    torch.testing.assert_close(seen[1], seen[0])


def resized(x: Tensor, y: Tensor) -> Any:
    x.resize_as_(y)
    return x.shape[0], x + 1


def resized_by_function(x: Tensor, y: Tensor) -> Any:
    z = torch.resize_as_(x * 1, y)
    return z.shape[0], z


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [resized, resized_by_function])
def test_a_tensor_resized_like_another(program: Callable[[Tensor, Tensor], Any], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        x = torch.arange(6.0)
        seen.append((run(x, torch.zeros(2, 2)), x))
    torch.testing.assert_close(seen[1], seen[0], check_stride=True)


def becomes_its_own_value(a: Tensor) -> None:
    a.copy_(a.detach())


def a_part_becomes_its_own_value(a: Tensor) -> None:
    a[0].copy_(a.detach()[0])


def adds_nothing(a: Tensor) -> None:
    a.mul_(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [becomes_its_own_value, a_part_becomes_its_own_value, adds_nothing])
def test_a_write_of_the_same_value_changes_the_history(program: Callable[[Tensor], None], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        a = x * 2
        run(a)
        (a * 3).sum().backward()
        seen.append((x.grad, a._version > 0))
    torch.testing.assert_close(seen[1], seen[0])


def view_as_leaf(b: Tensor) -> Any:
    v = b.view(-1)
    v.requires_grad_()
    return v, v.sin().sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_an_input_becomes_a_leaf(backend: str) -> None:
    seen = []
    for run in (view_as_leaf, fxloom.compile(view_as_leaf, backend=backend)):
        v, loss = run(torch.ones(2, 2))
        loss.backward()
        seen.append((v.requires_grad, v.grad))
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_that_is_returned_has_versions_of_its_own(backend: str) -> None:
    def program(x: Tensor) -> Any:
        y = x.exp()
        return x.data, x.detach(), x.data[1:], y, y.data, y.detach()

    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        x_data, x_detached, x_part, y, y_data, y_detached = run(x)
        versions = x._version, y._version
        for tensor in (x_data, x_part, y_data):
            tensor.mul_(2)
        assert (x._version, y._version) == versions
        x_detached.mul_(2)
        y_detached.mul_(2)
        assert x._version > versions[0] and y._version > versions[1]
        assert x.tolist() == [4.0, 8.0, 8.0]
        torch.testing.assert_close(y, y_data)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("detach", [lambda v: v.detach_(), torch.detach_], ids=["method", "function"])
def test_detaching_a_view_in_inference_mode(detach: Callable[[Tensor], Tensor], backend: str) -> None:
    fxloom.reset()

    def program(b: Tensor) -> Tensor:
        v = b.diagonal()
        return detach(v) + 1

    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    with torch.inference_mode():
        for b in (torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3) * 2):
            torch.testing.assert_close(compiled(b), program(b))
    assert fxloom.stats().graphs == 1


def part_of_a_result_becomes_a_leaf(a: Tensor, b: Tensor) -> Any:
    y = a + b
    v = y[0]
    v.requires_grad_()
    return v, v.sin().sum(), y


def part_of_what_is_shared_becomes_a_leaf(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        v = b.view(-1)
    v.mul_(2)
    v.requires_grad_()
    return v, v.sin().sum(), a


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [part_of_a_result_becomes_a_leaf, part_of_what_is_shared_becomes_a_leaf])
def test_any_view_becomes_a_leaf(program: Callable[..., Any], backend: str) -> None:
    fxloom.reset()
    seen: list[Any] = []
    for run in (program, fxloom.compile(program, backend=backend)):
        memory = torch.arange(4.0).view(2, 2)
        v, loss, other = run(memory[:], memory)
        loss.backward()
        seen.append((v.requires_grad, v.is_leaf, v.grad, other.requires_grad, loss.detach(), memory))
    torch.testing.assert_close(seen[1], seen[0])
