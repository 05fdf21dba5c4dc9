"""Views, in-place operators and aliasing outputs: what functionalization must not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import check, compile_program

from fxloom_aot import aot_function
from fxloom_interfaces.errors import GraphRejected, InternalError
from fxloom_interfaces.signature import FromInput, FromOutput, InputKind, OutputKind


def two() -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(6, 8), torch.randn(6, 8)]


def chained_writes(x, y):
    x.add_(y).mul_(2)
    return x + 1


def writes_through_views(x, y):
    z = x * 2
    z[1:3] = 0
    z[:, 2].add_(1)
    return z + y


def transposed_and_flat(x, y):
    z = x.clone()
    z.t()[2].mul_(3)
    z.view(-1)[5:7].fill_(9)
    return z.t(), z


def view_before_write(x, y):
    v = x[2:4]
    x.add_(1)
    return v * 2


def strided(x, y):
    b = x.clone()
    b.as_strided((3, 3), (4, 1), 2).zero_()
    return b, x.as_strided((3, 3), (2, 1), 1) + 1


def strided_write_to_input(x, y):
    x.as_strided((3, 3), (16, 2), 1).mul_(-1)
    return x.sum()


def out_arguments(x, y):
    o, o2 = torch.empty_like(x), torch.empty(6, 1)
    torch.add(x, y, out=o)
    torch.sum(x, 1, True, out=o2)
    return o, o2


def copy_into_row(x, y):
    x[0].copy_(y[1])
    return x.view(-1), y


def pieces(x, y):
    a, b, c = x.clone().split(2, 0)
    a.add_(b)
    c.mul_(a)
    return a, b, c


def diagonal(x, y):
    z = x.clone()
    z.diagonal().fill_(0.5)
    z.unsqueeze(0).squeeze(0).sigmoid_()
    return z


def index_writes(x, y):
    z = torch.zeros(6, 8)
    z.index_put_((torch.tensor([0, 2]),), y[:2])
    z.scatter_(0, torch.zeros(1, 8, dtype=torch.long), 5.0)
    return z


def types(x, y):
    z = x.to(torch.int64)
    z.add_(3)
    w = x.double()
    w.copy_(y)
    w += y
    return z, w, x


def permuted_input(x, y):
    a = x.permute(1, 0)
    a[0] = 1
    b = a.reshape(-1)
    b.add_(1)
    return b, x


def shrink_input(x, y):
    x.resize_(3, 4)
    return x + 1


def reshape_input_in_place(x, y):
    x.t_()
    x.unsqueeze_(0)
    return x + 1


def unbound_and_expanded(x, y):
    z = x.clone()
    u = z.unbind(0)
    u[1].mul_(0)
    q = z.expand(2, 6, 8)
    z.add_(1)
    return q, u[1]


def sort_and_fill(x, y):
    v, _ = torch.sort(x)
    x.masked_fill_(x > 0, 0)
    return torch.topk(x, 2)[0], v


def swap(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return ()


def own_transpose(x, y):
    x[:6, :6].copy_(x[:6, :6].t().clone())
    return ()


def equal_results(x, y):
    return x + 1, x + 1


def same_result_twice(x, y):
    z = x + 1
    return z, z, x, y


def foreach(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x + y


def boolean_mask(x, y):
    x[x > 0] = 0.0
    return x * 2


def bits(x, y):
    x.view(torch.int32).add_(1)
    return ()


def constants(x, y):
    t = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    t[0] = 7.0
    return x + t, torch.tensor(3), torch.ones(2), t


def gaps(x, y):
    x.unfold(1, 2, 4).mul_(-1)
    return x.sum()


def one_cell(x, y):
    row = x[0, 1].expand(3)
    row[-1] = 7
    return row + 0, x.sum()


def same_type_view(x, y):
    x.view(torch.float32).copy_(y)
    return ()


def numbers_and_none(x, y):
    return x * 2, 3, None, "text", 2.5


PROGRAMS = [
    value
    for value in list(globals().values())
    if callable(value) and getattr(value, "__module__", "") == __name__ and value is not two
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_is_as_in_eager(program: Any) -> None:
    check(program, two)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_transposed_inputs_are_as_in_eager(program: Any) -> None:
    def make() -> list[Any]:
        return [torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)).t() for seed in (1, 2)]

    try:
        program(*make())
    except RuntimeError:
        pytest.skip("eager refuses such inputs")
    check(program, make)


def test_batch_norm_updates_its_statistics() -> None:
    def program(x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, training=True)

    def make() -> list[Any]:
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
        return [x, torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3)]

    compiler = check(program, make)
    kinds = [output.kind for output in compiler.graphs[0][1].outputs]
    assert kinds == [OutputKind.NEW_VALUE, OutputKind.NEW_VALUE, OutputKind.USER]


def test_inputs_that_share_memory_become_one_storage() -> None:
    def program(base, tail):
        base.mul_(2)
        return tail[0], tail + 0

    def make() -> list[Any]:
        base = torch.arange(20.0).view(5, 4)
        return [base, base[2:]]

    compiler = check(program, make)
    signature = compiler.graphs[0][1]
    assert [spec.kind for spec in signature.inputs] == [InputKind.STORAGE]
    assert isinstance(signature.results[0], FromInput)


def test_sharing_inputs_that_are_only_read_stay_apart() -> None:
    def make() -> list[Any]:
        base = torch.arange(20.0).view(5, 4)
        return [base, base[2:]]

    compiler = check(lambda a, b: (a.sum() + b.sum(), b[0]), make)
    assert [spec.kind for spec in compiler.graphs[0][1].inputs] == [InputKind.USER, InputKind.USER]


def test_shared_offset_is_checked_on_every_call() -> None:
    base = torch.arange(20.0).view(5, 4)

    def program(x, tail):
        x.mul_(2)
        return tail[0] + 0

    run, _ = compile_program(program, [base, base[2:]])
    run(base, base[2:])
    with pytest.raises(InternalError, match="offset"):
        run(base, base[3:])


def overlapping() -> list[Any]:
    whole = torch.arange(6.0)
    return [whole[:4], whole[1:5], whole[2:]]


FOREACH = {
    "add": lambda *ts: torch._foreach_add_(ts, 1),
    "read only": lambda *ts: torch._foreach_mul_([ts[0], torch.ones(4)], [torch.ones(4), ts[1]]),
    "scalars": lambda *ts: torch._foreach_add_(ts, [1.0, 2.0, 3.0]),
    "tensor": lambda *ts: torch._foreach_mul_(ts, torch.tensor(2.0)),
    "addcmul": lambda *ts: torch._foreach_addcmul_(ts, ts, ts, 0.5),
    "copy": lambda *ts: torch._foreach_copy_([ts[0], torch.ones(4), ts[1]], [torch.ones(4), ts[0], torch.zeros(4)]),
    "unary": lambda *ts: torch._foreach_neg_([ts[0], ts[0]]),
}


@pytest.mark.parametrize("name", FOREACH)
@pytest.mark.cpu_only("eager's foreach kernels on CUDA write all tensors at once")
def test_foreach_over_tensors_that_share_memory_goes_one_by_one(name: str) -> None:
    check(lambda *ts: (FOREACH[name](*ts), ts[0] + 0)[1], overlapping)


def test_several_results_written_to_one_memory_are_refused() -> None:
    @torch.library.custom_op("aot_tests::two_writes", mutates_args=("a", "b"))
    def two_writes(a: torch.Tensor, b: torch.Tensor) -> None:
        a.add_(1)
        b.mul_(2)

    with pytest.raises(GraphRejected, match="share memory"):
        compile_program(lambda x: torch.ops.aot_tests.two_writes(x[:3], x[1:4]), [torch.ones(5)])


def test_an_operator_that_reads_what_it_wrote_is_refused() -> None:
    @torch.library.custom_op("aot_tests::accumulate", mutates_args=("out",))
    def accumulate(x: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(1)
        out.add_(x)

    with pytest.raises(GraphRejected, match="shares memory with another"):
        compile_program(lambda x: torch.ops.aot_tests.accumulate(x, x), [torch.ones(5)])
    check(lambda x: (torch.ops.aot_tests.accumulate(x + 1, x), x * 1)[1], lambda: [torch.ones(5)])


def test_one_tensor_as_both_statistics_is_refused() -> None:
    with pytest.raises(GraphRejected, match="share memory"):
        compile_program(lambda x, m: F.batch_norm(x, m, m, training=True), [torch.randn(4, 3), torch.ones(3)])


def test_operators_whose_names_are_alike() -> None:
    library = torch.library.Library("aot_alike", "DEF")
    for name in ("w.c", "w_c"):
        library.define(f"{name}(Tensor(a!) x) -> ()")
    library.impl("w.c", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
    library.impl("w_c", lambda x: (x.mul_(3), None)[1], "CompositeExplicitAutograd")
    check(lambda x: (torch.ops.aot_alike.w.c(x), torch.ops.aot_alike.w_c(x), x * 1)[2], lambda: [torch.ones(1)])


@pytest.mark.parametrize("size", [2, 0])
def test_a_result_written_to_a_tensor_of_another_size_is_rejected(size: int) -> None:
    with pytest.raises(GraphRejected, match=r"resizes an out= tensor of \(.,\) to \(4,\)"):
        compile_program(lambda x, out: torch.sin(x, out=out), [torch.ones(4), torch.ones(size)])


def test_the_same_tensor_given_twice() -> None:
    def make() -> list[Any]:
        x = torch.randn(3, generator=torch.Generator().manual_seed(0))
        return [x, x]

    check(lambda x, y: (x.add_(1), y + 0)[1], make)


def test_views_of_one_result_are_rebuilt_from_one_base() -> None:
    compiler = check(lambda x, y: (lambda z: (z, z[1:3], z.t()))(x * 2), two)
    signature = compiler.graphs[0][1]
    assert [output.kind for output in signature.outputs] == [OutputKind.BASE]
    assert [len(result.steps) for result in signature.results if isinstance(result, FromOutput)] == [0, 1, 1]


def test_equal_calls_are_merged_and_random_ones_are_not() -> None:
    _, compiler = compile_program(lambda x, y: (x.sin() + 1) * (x.sin() + 1), two())
    assert compiler.ops().count("aten.sin.default") == 1
    _, compiler = compile_program(lambda x, y: torch.rand(3) + torch.rand(3), two())
    assert compiler.ops().count("aten.rand.default") == 2


def test_random_numbers_and_state_are_those_of_eager() -> None:
    def program(x, y):
        torch.rand(3)  # unused, but it moves the generator
        return F.dropout(x, 0.5, True) + torch.randn_like(y)

    run, _ = compile_program(program, two())
    inputs, program_inputs = two(), two()  # these seed
    torch.manual_seed(5)
    expected = program(*program_inputs)
    torch.manual_seed(5)
    assert torch.equal(run(*inputs)[0], expected)
    torch.manual_seed(5)
    run(*inputs)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    program(*program_inputs)
    assert torch.equal(after, torch.get_rng_state())


def test_unused_work_is_dropped() -> None:
    _, compiler = compile_program(lambda x, y: (x.exp(), y * 2)[1], two())
    assert compiler.ops() == ["aten.mul.Tensor"]


@pytest.mark.parametrize(
    "program",
    [lambda x, y: x.set_(y), lambda x, y: torch.nonzero(x), lambda x, y: x * x.sum().item(), lambda x, y: x[x > 0]],
    ids=["set_", "nonzero", "item", "mask"],
)
def test_what_cant_be_treated_is_rejected_at_its_node(program: Any) -> None:
    with pytest.raises(GraphRejected) as caught:
        compile_program(program, two())
    assert caught.value.node.op == "call_function"


@pytest.mark.parametrize(
    "draw",
    [
        lambda t: t.bernoulli_(0.5), lambda t: t.bernoulli_(torch.full(t.shape, 0.5)), torch.Tensor.uniform_, torch.Tensor.normal_,
        torch.Tensor.exponential_, torch.Tensor.random_, lambda t: t.geometric_(0.3), torch.Tensor.cauchy_, torch.Tensor.log_normal_,
        torch.rand_like, torch.randn_like, lambda t: torch.nn.functional.dropout(t, 0.5), torch.bernoulli,
    ],
    ids="bernoulli bernoulli_by_tensor uniform normal exponential random geometric cauchy log_normal rand_like randn_like dropout drawn".split(),
)  # fmt: skip
@pytest.mark.parametrize("layout", ["rows", "permuted", "gapped"])
def test_random_numbers_go_where_eager_puts_them(draw, layout):
    """Which element gets which number depends on the layout."""

    def program(x):
        base = x.sin().abs().clamp(0, 1)
        target = {"rows": base, "permuted": base.permute(2, 0, 1), "gapped": base[:, :, ::2]}[layout]
        return draw(target) + 0, draw(target.clone())

    x = torch.linspace(0, 1, 3 * 5 * 8).reshape(3, 5, 8)
    torch.manual_seed(0)
    expected = program(x)
    state = torch.get_rng_state()
    try:
        compiled = aot_function(program, [x])
    except GraphRejected:
        assert draw is torch.Tensor.normal_ and layout != "rows"
        return
    torch.manual_seed(0)
    for mine, theirs in zip(compiled(x), expected, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
    assert torch.equal(torch.get_rng_state(), state)
