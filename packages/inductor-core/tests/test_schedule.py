"""What is fused with what, counted in kernels; memory taken over; the same graph, the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import sympy
import torch
import torch.nn.functional as F
from core_graphs import check, compiled, record

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import CompiledGraph, InductorOptions, compile_graph
from fxloom_inductor_core.ir.loops import Loop
from fxloom_inductor_core.lowering.lower import lower
from fxloom_inductor_core.scheduler.fusion import Scheduler
from fxloom_inductor_core.scheduler.spaces import collapse, express, refine
from fxloom_interfaces import meta, telemetry
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.expr import product, substitute, symbol
from fxloom_interfaces.program import Allocate, Free, Reduce
from fxloom_interfaces.signature import GraphSignature, InputKind, InputSpec, OutputKind, OutputSpec

ROWS = torch.randn(4, 16, 32)
WEIGHT, BIAS = torch.randn(32), torch.randn(32)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * weight + bias


def softmax(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def residual(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + y
    return h, layer_norm(h, w, b)


@pytest.mark.parametrize(
    ("name", "function", "inputs"),
    [
        ("layer norm", layer_norm, (ROWS, WEIGHT, BIAS)),
        ("softmax", softmax, (ROWS,)),
        ("residual and layer norm", residual, (ROWS, ROWS + 1, WEIGHT, BIAS)),
        ("masked softmax", lambda x, m: softmax(torch.where(m, x, -1e9)), (ROWS, torch.rand(4, 16, 32) > 0.3)),
        ("shared by two", lambda x: (lambda e: (e + 1, e * 2))(x.exp() * x), (ROWS,)),
        ("siblings", lambda x: (x.sum(-1), x.amax(-1), x.mean(-1)), (ROWS,)),
        ("softmax over columns", lambda x: softmax(x.transpose(1, 2)).transpose(1, 2) + 0, (ROWS,)),
    ],
)
def test_is_one_kernel(name: str, function, inputs: Sequence[torch.Tensor]) -> None:
    assert len(check(function, *inputs).program.launches()) == 1, name


def test_bias_and_gelu_are_one_kernel_behind_the_library() -> None:
    graph = check(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), torch.randn(8, 5), torch.randn(5, 7), torch.randn(7))
    assert (len(graph.program.launches()), graph.library_calls) == (1, (("aten.mm", 1),))


def test_equal_layers_share_kernels() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x + F.gelu(torch.mm(layer_norm(x, w, b), m))
        return x

    graph = check(layers, torch.randn(8, 32), WEIGHT, BIAS, torch.randn(32, 32) / 6)
    # first layer norm; gelu, residual and the next layer norm; gelu and residual
    assert len(graph.program.kernels) == 3
    assert len(graph.program.launches()) == 7


def test_a_value_only_the_kernel_reads_is_never_stored() -> None:
    graph = compiled(layer_norm, ROWS, WEIGHT, BIAS)
    assert len([s for s in graph.program.steps if isinstance(s, Allocate)]) == 1
    kernel = graph.program.kernels[0][1]
    assert [b.role for b in kernel.buffers] == ["in", "in", "in", "out"]
    assert sum(isinstance(i, Reduce) for i in kernel.instructions()) == 2


def recurrence(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """A gated cell over `steps` steps that all read the same weights, and what is made of each state."""
    h, made = x, []
    for _ in range(steps):
        gates = torch.mm(h, w)
        update = torch.sigmoid(gates + b)
        h = (1 - update) * torch.tanh(torch.sigmoid(gates - b) * h) + update * h
        made.append((h * b).sum(0))
    return made


def siblings(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """Loops that read the same memory and nothing else."""
    return [torch.tanh(x * number + b) for number in range(5 * steps)]


def scheduled(function, *inputs: torch.Tensor) -> tuple[Scheduler, int]:
    """The scheduler after its work on a function's graph, and the number of its loops."""
    graph = lower(record(function, *inputs), {"cpu": REFERENCE}, InductorOptions())
    scheduler = Scheduler(graph, {"cpu": REFERENCE}, InductorOptions())
    scheduler.run()
    return scheduler, sum(isinstance(work, Loop) for work in graph.work)


def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """Layers with norms, of which every third reads an early one."""
    made = [x]
    for step in range(steps):
        h = made[-1]
        normed = (h - h.mean(-1, keepdim=True)) * b
        made.append(h + torch.tanh(torch.mm(normed, w) * torch.mm(normed, w.t())) + (made[step // 2] if step % 3 == 0 else 0))
    return made[-1:]


@pytest.mark.parametrize("program", [recurrence, siblings, layers])
def test_merges_looked_at_grow_with_the_program_not_with_its_square(program) -> None:
    inputs = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)
    for steps in (20, 500):
        scheduler, loops = scheduled(lambda x, w, b, steps=steps: program(x, w, b, steps), *inputs)
        assert loops >= 2 * steps
        assert scheduler.attempts <= 5 * loops


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_keep_their_dependencies(seed: int) -> None:
    """Merges of groups that others depend on: what depends on what is kept up to date, or this is a cycle or a wrong value."""
    choose = random.Random(seed)
    plan = [(choose.randrange(8), choose.random(), choose.random()) for _ in range(60)]

    def program(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        values = [x, w]
        for kind, first, second in plan:
            a, b = values[int(first * len(values))], values[-1 - int(second * min(len(values), 6))]
            if kind == 0:
                values.append(torch.mm(a, w) / 4)
            elif kind == 1:
                values.append(a - b.mean(-1, keepdim=True))
            elif kind == 2:
                values.append(torch.tanh(a.t() + b))
            else:
                values.append(torch.sin(a) * kind + b)
        return values[2:]

    check(program, torch.randn(6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64), rtol=1e-8)


def test_no_fusion_through_a_third_node() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.exp() * x
        return h + torch.mm(h, w)  # h and the sum share everything but the product lies between

    graph = check(function, torch.randn(6, 6), torch.randn(6, 6))
    assert len(graph.program.launches()) == 2


def test_readers_at_other_indices_stay_apart() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h = x.exp() * x
        return h + h.t()

    assert len(check(function, torch.randn(6, 6)).program.launches()) == 2


def test_few_rows_keep_their_parallel_loop() -> None:
    wide = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, parallelism=16))
    gm = record(lambda x: (x * 2).exp() * x.sum(), torch.rand(256, 256))
    graph = compile_graph(gm, codegens={"cpu": wide}, store=None)
    assert len(graph.program.launches()) == 3  # sums of rows, their sum, and the loop over all elements


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.relu(torch.mm(x, w)) + 1
    return x


def test_dead_buffers_are_taken_over() -> None:
    inputs = (torch.randn(16, 16), torch.randn(16, 16) / 4)
    fresh = [s for s in check(chain, *inputs).program.steps if isinstance(s, Allocate) and s.reuse is None]
    without = check(chain, *inputs, options=InductorOptions(reuse_memory=False))
    assert len(fresh) <= 2
    assert all(s.reuse is None for s in without.program.steps if isinstance(s, Allocate))


@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize(
    ("first", "second", "batch"), [("float32", "bool", 4), ("float32", "float64", 2), ("float64", "float32", 4)]
)
def test_memory_is_taken_over_by_elements_of_another_size(
    format: torch.memory_format, first: str, second: str, batch: int
) -> None:
    """As many bytes, other elements, also where the last axis is not the innermost."""
    sizes = {"bool": 1, "float32": 4, "float64": 8}
    x = torch.randn(batch * sizes[second] // sizes[first], 4, 4, 4, dtype=getattr(torch, first)).contiguous(memory_format=format)
    y = torch.randn(batch, 4, 4, 4).contiguous(memory_format=format)

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dies = x.exp()
        flat = (dies if format is torch.contiguous_format else dies.permute(0, 2, 3, 1)).reshape(-1, 4)
        return torch.mm(flat, w), y > 0 if second == "bool" else y.to(getattr(torch, second)) * 2

    graph = check(program, x, y, torch.randn(4, 2, dtype=x.dtype), options=InductorOptions(fuse=False))
    owners = {s.name: s for s in graph.program.steps if isinstance(s, Allocate)}
    assert [(owners[s.reuse].dtype, s.dtype) for s in owners.values() if s.reuse is not None] == [(first, second)]


def test_taken_over_memory_is_free_once_its_last_name_dies() -> None:
    """The names of earlier owners must not keep the memory that a later one gives back."""
    graph = check(lambda x, w: torch.mm(chain(x, w)[:, :3].contiguous(), w[:3, :2]), torch.randn(16, 16), torch.randn(16, 16) / 4)
    owners = {s.name: s.reuse for s in graph.program.steps if isinstance(s, Allocate)}
    freed = {name for s in graph.program.steps if isinstance(s, Free) for name in s.names}
    assert sum(reuse is not None for reuse in owners.values()) >= 3
    assert {reuse for name, reuse in owners.items() if reuse is not None and name in freed} <= freed
    assert len(freed) >= len(owners) - 1  # all but the result


def test_inputs_are_not_overwritten() -> None:
    x = torch.randn(64)
    kept = x.clone()
    graph = compiled(lambda x: x.exp() + x, x)
    graph([x])
    assert torch.equal(x, kept)


def test_the_input_list_is_emptied() -> None:
    inputs = [torch.randn(4)]
    compiled(lambda x: x + 1, inputs[0])(inputs)
    assert inputs == []


def test_same_graph_same_bytes() -> None:
    texts = {compiled(residual, ROWS, ROWS + 1, WEIGHT, BIAS).program.text() for _ in range(3)}
    sources = {compiled(chain, torch.randn(4, 4), torch.randn(4, 4)).wrapper_source for _ in range(3)}
    assert len(texts) == len(sources) == 1


def test_wrapper_reads_well() -> None:
    graph = compiled(lambda x, w: torch.relu(torch.mm(x, w)) + 1, torch.randn(4, 8), torch.randn(8, 2))
    assert graph.wrapper_source.endswith(
        "def call(inputs):\n"
        "    arg0, arg1 = inputs\n"
        "    inputs.clear()\n"
        "    buf0 = empty_strided((4, 2), (2, 1), dtype=torch.float32, device=cpu)\n"
        "    torch.mm(arg0, arg1, out=buf0)\n"
        "    buf1 = buf0  # f32[4, 2], reuses memory\n"
        "    fused_relu_add_0(buf0, buf1)\n"
        "    return [buf1]\n"
    )


def test_artefacts_are_written_for_those_who_listen() -> None:
    written: dict[str, str] = {}

    def on(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.ArtifactWritten):
            written[event.name] = event.text

    with telemetry.listen(on, artifacts=True):
        compiled(softmax, ROWS)
    assert {"ir_pre_fusion.txt", "ir_post_fusion.txt", "output_code.py"} <= set(written)
    assert "max over [32]" in written["ir_pre_fusion.txt"]
    assert "reduce max" in written["ir_post_fusion.txt"]
    assert 'if __name__ == "__main__":' in written["output_code.py"]


def test_autograd_and_autocast_are_off_inside() -> None:
    graph = compiled(lambda x, w: torch.mm(x, w), torch.randn(4, 4), torch.randn(4, 4))
    x = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (result,) = graph([x, torch.randn(4, 4)])
        assert torch.is_autocast_enabled("cpu")
    assert result.dtype == torch.float32
    assert not result.requires_grad
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------------------------------------------- symbolic sizes


class Size:
    """What a SymInt looks like to inductor-core."""

    def __init__(self, expr: sympy.Expr) -> None:
        self.node = type("Node", (), {"expr": expr})()


class Fake:
    """A fake tensor with symbolic sizes: just what is asked of one."""

    def __init__(self, like: torch.Tensor, size: tuple[object, ...], stride: tuple[object, ...]) -> None:
        self.like, self._size, self._stride = like, size, stride
        self.dtype, self.device = like.dtype, like.device

    __class__ = torch.Tensor  # type: ignore[assignment]  # isinstance is asked

    def size(self, dim: int | None = None) -> object:
        return self._size if dim is None else self._size[dim]

    def stride(self) -> tuple[object, ...]:
        return self._stride

    def dim(self) -> int:
        return len(self._size)

    def storage_offset(self) -> int:
        return 0


def test_symbolic_batch() -> None:
    s0 = symbol("s0")
    gm = record(residual, ROWS[:, 0], ROWS[:, 1], WEIGHT, BIAS)
    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        value = meta.get_fake(node)
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        made = [
            Fake(v, tuple(Size(s0) if e == 4 else e for e in v.shape), torch.empty(4, *v.shape[1:]).stride())
            if v.dim() > 1
            else v
            for v in values
        ]
        meta.set_fake(node, made if isinstance(value, (list, tuple)) else made[0])
    graph = compile_graph(gm, codegens={"cpu": REFERENCE}, store=None)
    assert len(graph.program.launches()) == 1
    for batch in (2, 7):
        x, y = torch.randn(batch, 32), torch.randn(batch, 32)
        got = graph([x, y, WEIGHT, BIAS])
        for a, b in zip(got, residual(x, y, WEIGHT, BIAS), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ spaces


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((4, 128, 768), (512, 768), (4, 128, 768)),
        ((512, 768), (4, 128 * 768), (4, 128, 768)),
        ((6,), (2, 3), (2, 3)),
        ((6, 4), (4, 6), None),
        ((6,), (6, 1), (6,)),
        ((6,), (7,), None),
    ],
)
def test_refine(a: tuple[int, ...], b: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    assert refine(a, b) == expected


def test_refine_with_symbols() -> None:
    s = symbol("s0")
    assert refine((s, 128, 768), (s * 128, 768)) == (s, 128, 768)
    assert refine((s, 768), (768, s)) is None


def test_express_is_the_same_point() -> None:
    a, b, c = (symbol(n) for n in "abc")
    coarse = ((symbol("p"), 12), (symbol("q"), 5))
    mapping = express(coarse, ((a, 3), (b, 4), (c, 5)))
    assert mapping == {symbol("p"): 4 * a + b, symbol("q"): c}


def test_collapse_keeps_every_index() -> None:
    a, b, c = (symbol(n) for n in "abc")
    axes = ((a, 3), (b, 4), (c, 5))
    exprs = [20 * a + 5 * b + c, c]
    merged, mapping = collapse(axes, exprs)
    assert [e for _, e in merged] == [12, 5]
    flat = substitute(exprs[0], mapping)
    assert flat == 5 * b + c
    assert product(e for _, e in merged) == 60


def test_reference_is_a_codegen() -> None:
    assert isinstance(REFERENCE, Codegen)


def test_memory_is_not_taken_over_before_its_last_read() -> None:
    """One stage writes an output before it reads the dying buffer: they must not share memory."""

    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = x > 0
        return torch.where(mask, n, n * 2), mask.double().cumsum(0) + mask

    check(f, torch.linspace(-1, 1, 37), torch.arange(37))


def scratch_buffers(graph: CompiledGraph) -> list[str]:
    return [b.name for _, kernel in graph.program.kernels for b in kernel.buffers if b.role == "scratch"]


def test_cheap_values_are_computed_again_and_dear_ones_are_kept_in_scratch() -> None:
    def cheap(x: torch.Tensor) -> torch.Tensor:
        kept = torch.where(x > 0, x * 2, x) + 1
        return kept - kept.mean(-1, keepdim=True)

    assert scratch_buffers(check(cheap, ROWS)) == []
    assert len(scratch_buffers(check(softmax, ROWS))) == 1


def test_training_on_the_cpu_stays_in_the_layout_that_its_backward_graph_was_traced_with() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.conv2d(x, w)
        return y.relu() + 1, y * 2

    gm = record(layers, torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3))
    inputs = tuple(InputSpec(InputKind.USER, name, index) for index, name in enumerate("xw"))
    orders = {}
    for kind in (OutputKind.USER, OutputKind.SAVED):
        signature = GraphSignature(inputs, (OutputSpec(OutputKind.USER), OutputSpec(kind)))
        graph = compile_graph(gm, signature, codegens={"cpu": REFERENCE}, store=None)
        orders[kind] = "(144, 1, 24, 4)" in graph.wrapper_source
    assert orders == {OutputKind.USER: True, OutputKind.SAVED: False}


def masked_gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Of a ReLU: elementwise, over one long axis."""
    return torch.where(x > 0, g, 0.0)


@pytest.mark.parametrize(
    ("name", "fold", "shape", "launches"),
    [
        ("channels", lambda d: d.sum((0, 2, 3)), (3, 5, 4, 2), 1),
        ("channels, twice", lambda d: (d.sum((0, 2, 3)), (d * 2).sum((0, 2, 3))), (3, 5, 4, 2), 1),
        ("columns", lambda d: d.sum(0), (6, 10), 2),
        ("rows", lambda d: d.sum(1), (6, 10), 1),
        ("batches of rows", lambda d: d.sum((0, 2)), (3, 4, 5), 1),
        ("middle", lambda d: d.amax(1), (3, 4, 5), 2),
        ("all", lambda d: d.sum(), (3, 4), 1),
        ("nothing but ones", lambda d: d.sum((0, 2)), (1, 4, 1), 1),
        ("a part", lambda d: d[:, 1:3].sum((0, 2, 3)), (3, 5, 4, 2), 2),
        ("another order", lambda d: d.flip(0).sum((0, 2)), (3, 5, 4), 2),
        ("of a broadcast", lambda d: (d + d[:, :1]).sum((0, 2)), (3, 5, 4), 2),
    ],
)  # fmt: skip
def test_elementwise_loops_take_the_order_of_a_fold(name: str, fold, shape: tuple[int, ...], launches: int) -> None:
    def program(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        d = masked_gradient(g, x)
        e = torch.exp(d)  # another loop of the same kernel
        return d, e, fold(e)

    graph = check(program, torch.randn(shape), torch.randn(shape))
    assert len(graph.program.launches()) == launches, name


def test_a_fold_in_the_loops_own_order_comes_first() -> None:
    """Two folds of one gradient, of which the one that needs another order stands first in the program."""

    def program(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = masked_gradient(g, x) * w
        channels = (scaled * x).sum((0, 2))
        return channels, scaled - scaled.mean(2, keepdim=True), scaled

    graph = check(program, torch.randn(4, 6, 32), torch.randn(4, 6, 32), torch.randn(()))
    assert len(graph.program.launches()) == 2
    rows = graph.program.kernels[0][1]
    assert [axis.size for axis in rows.inner] == [32] and len(rows.stages) > 1


def test_random_folds_of_elementwise_loops() -> None:
    """Values are right whatever axes are folded, and in whatever order they lie."""
    choose = random.Random(0)
    for _ in range(40):
        shape = [choose.choice((1, 2, 3, 4)) for _ in range(choose.randrange(1, 5))]
        order = choose.sample(range(len(shape)), len(shape))
        dims = choose.sample(range(len(shape)), choose.randrange(1, len(shape) + 1))
        inputs = [torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))]) for _ in range(2)]

        def program(g: torch.Tensor, x: torch.Tensor, dims=dims) -> tuple[torch.Tensor, ...]:
            d = masked_gradient(g, x)
            e = d.exp()
            return d, e, e.sum(dims), (e * x).amax(dims, keepdim=True) + e

        check(program, *inputs)
