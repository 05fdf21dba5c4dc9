"""Small training programs of many kinds: operators, modules, optimizers, views and writes, ways to differentiate.

As in `training_programs`: a program gets a function that compiles or, for eager, does nothing, and returns what it saw.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_programs import both, grads, leaf, mlp, raising, registry, same

import fxloom

PROGRAMS, program = registry()


@program
def custom_op_without_formula(c):
    @torch.library.custom_op("adv::noformula", mutates_args=())
    def nof(x: Tensor) -> Tensor:
        return x.sin()

    @nof.register_fake
    def _(x):
        return torch.empty_like(x)

    x = leaf(3)
    y = c(lambda x: nof(x) * 2)(x)
    return y.detach(), y.requires_grad, raising(lambda: y.sum().backward())[:60]


@program
def custom_op_with_formula(c):
    @torch.library.custom_op("adv::withformula", mutates_args=())
    def op(x: Tensor, k: float) -> Tensor:
        return x.sin() * k

    @op.register_fake
    def _(x, k):
        return torch.empty_like(x)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def bw(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * ctx.k * 7, None

    op.register_autograd(bw, setup_context=setup)
    x = leaf(3)
    y = c(lambda x: op(x * 2, 3.0).sum())(x)
    y.backward()
    return y.detach(), x.grad


@program
def complex_inputs(c):
    x = torch.randn(3, dtype=torch.cfloat, requires_grad=True)
    y = c(lambda x: (x * x.conj()).real.sum() + torch.view_as_real(x).pow(3).sum())(x)
    y.backward()
    return y.detach(), x.grad


@program
def fft_and_angle(c):
    x = leaf(8)
    y = c(lambda x: torch.fft.rfft(x).abs().sum() + torch.fft.ifft(x.to(torch.cfloat)).imag.square().sum())(x)
    y.backward()
    return y.detach(), x.grad


@program
def integer_index_outputs(c):
    x = leaf(4, 5)
    v, i = c(lambda x: x.topk(2))(x)
    v.sum().backward()
    return v, i, i.requires_grad, x.grad


@program
def sort_and_gather(c):
    x = leaf(4, 5)

    def f(x):
        v, i = x.sort(-1, descending=True)
        return x.gather(1, i) * v, i

    y, i = c(f)(x)
    y.sum().backward()
    return y, i, x.grad


@program
def grad_accum_across_two_graphs(c):
    w = leaf(4, 4)
    f = c(lambda x, w: (x @ w).sin())
    g = c(lambda y, w: (y @ w.t()).cos().sum())
    for _ in range(3):
        x = torch.randn(2, 4)
        g(f(x, w), w).backward()
    return w.grad


@program
def lstm(c):
    m = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.3)
    x = leaf(2, 6, 4)
    o, (h, cc) = c(m)(x)
    (o.sum() + h.sum() * 2 + cc.sum()).backward()
    return o, h, cc, grads(m), x.grad


@program
def gru_bidirectional(c):
    m = nn.GRU(4, 5, bidirectional=True)
    x = leaf(6, 2, 4)
    o, h = c(m)(x)
    (o.sum() + h.sum()).backward()
    return o, grads(m), x.grad


@program
def mha(c):
    m = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
    x = leaf(2, 5, 8)
    o, w = c(m)(x, x, x)
    (o.sum() + w.square().sum()).backward()
    return o, w, grads(m), x.grad


@program
def transformer_layer_autocast(c):
    m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    x = leaf(2, 5, 8)
    f = c(m)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = f(x)
        l = o.float().square().mean()
    l.backward()
    return o.dtype, [g.dtype for g in grads(m)], x.grad.dtype


@program
def autocast_inside_custom_function(c):
    class Fn(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g @ b.t(), a.t() @ g

    a, b = leaf(3, 3), leaf(3, 3)

    def f(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Fn.apply(a, b)

    o = c(f)(a, b)
    o.float().sum().backward()
    return o.dtype, a.grad.dtype


@program
def batchnorm_stats(c):
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    f = c(m)
    for _ in range(3):
        f(torch.randn(2, 3, 8, 8)).sum().backward()
    m.eval()
    o = f(torch.randn(2, 3, 8, 8))
    return o, list(m.buffers()), grads(m)


@program
def syncbn_momentum_none(c):
    m = nn.BatchNorm1d(4, momentum=None)
    f = c(m)
    for _ in range(3):
        f(torch.randn(5, 4)).sum().backward()
    return list(m.buffers()), grads(m)


@program
def spectral_norm(c):
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    f = c(m)
    for _ in range(2):
        f(torch.randn(3, 4)).sum().backward()
    return grads(m), list(m.buffers())


@program
def weight_norm(c):
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    c(m)(torch.randn(3, 4)).square().sum().backward()
    return grads(m)


@program
def ema_update(c):
    m = mlp()
    e = copy.deepcopy(m)

    def upd():
        with torch.no_grad():
            for p, q in zip(e.parameters(), m.parameters()):
                p.lerp_(q, 0.1)

    def step(x):
        l = m(x).square().sum()
        l.backward()
        with torch.no_grad():
            for p in m.parameters():
                p.sub_(p.grad, alpha=0.01)
                p.grad = None
        upd()
        return l.detach()

    f = c(step)
    ls = [f(torch.randn(3, 4)) for _ in range(3)]
    return ls, list(m.parameters()), list(e.parameters())


@program
def maml_inner(c):
    m = mlp()

    def f(x, y):
        params = dict(m.named_parameters())
        l = F.mse_loss(torch.func.functional_call(m, params, (x,)), y)
        g = torch.autograd.grad(l, list(params.values()), create_graph=True)
        new = {k: p - 0.1 * gg for (k, p), gg in zip(params.items(), g)}
        return F.mse_loss(torch.func.functional_call(m, new, (x,)), y)

    l = c(f)(torch.randn(3, 4), torch.randn(3, 3))
    l.backward()
    return l.detach(), grads(m)


@program
def clip_and_schedule(c):
    m = mlp()
    o = torch.optim.AdamW(m.parameters(), lr=0.1)
    s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)

    def step(x):
        o.zero_grad()
        l = m(x).square().sum()
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        o.step()
        return l.detach()

    f = c(step)
    r = []
    for _ in range(4):
        r.append(f(torch.randn(3, 4)))
        s.step()
    return r, list(m.parameters()), o.param_groups[0]["lr"]


@program
def clip_value_and_sgd_nesterov(c):
    m = mlp()
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)

    def step(x):
        m(x).square().sum().backward()
        nn.utils.clip_grad_value_(m.parameters(), 0.1)
        o.step()
        o.zero_grad()

    f = c(step)
    [f(torch.randn(3, 4)) for _ in range(3)]
    return list(m.parameters()), [s for st in o.state.values() for s in st.values()]


@program
def state_dict_roundtrip(c):
    m = mlp()
    o = torch.optim.Adam(m.parameters())
    f = c(m)
    f(torch.randn(3, 4)).sum().backward()
    o.step()
    sd = copy.deepcopy(o.state_dict())
    ms = copy.deepcopy(m.state_dict())
    f(torch.randn(3, 4)).sum().backward()
    o.step()
    m.load_state_dict(ms)
    o.load_state_dict(sd)
    return f(torch.ones(3, 4)), list(m.parameters())


@program
def param_replaced(c):
    m = mlp()
    f = c(m)
    f(torch.randn(3, 4)).sum().backward()
    m[0].weight = nn.Parameter(torch.ones(8, 4))
    y = f(torch.ones(3, 4))
    y.sum().backward()
    return y, grads(m)


@program
def input_mutated_then_used(c):
    x = leaf(4)

    def f(x):
        y = x.clone()
        y[1:3] = y[:2] * 2
        y.unsqueeze(0).add_(1)
        return y * x

    o = c(f)(x)
    o.sum().backward()
    return o, x.grad


@program
def mutated_input_with_history(c):
    x = leaf(4)
    y = x * 2
    o = c(lambda y: (y.mul_(3), y.sin())[1])(y)
    (o.sum() + y.sum()).backward()
    return o, y, x.grad


@program
def mutated_view_input(c):
    x = leaf(4, 4)
    y = x * 1
    v = y[1]
    o = c(lambda v: (v.mul_(3), v.sin())[1])(v)
    (o.sum() + y.square().sum()).backward()
    return o, y, x.grad


@program
def two_views_of_one_base_mutated(c):
    x = leaf(4, 4)
    y = x * 1
    a, b = y[:2], y[1:]

    def f(a, b):
        a.mul_(2)
        b.add_(a.sum())
        return a + b[:2]

    o = c(f)(a, b)
    (o.sum() + y.sum()).backward()
    return o, y, x.grad


@program
def index_put_accumulate(c):
    x = leaf(5)
    i = torch.tensor([0, 0, 3])
    v = leaf(3)

    def f(x, v):
        return x.index_put((i,), v, accumulate=True).sin()

    o = c(f)(x, v)
    o.sum().backward()
    return o, x.grad, v.grad


@program
def masked_fill_inplace(c):
    x = leaf(5)

    def f(x):
        y = x * 2
        y.masked_fill_(y > 0, 0.5)
        y[y < 0] = 1.0
        return y.sum()

    l = c(f)(x)
    l.backward()
    return l.detach(), x.grad


@program
def nan_where_trick(c):
    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    l = c(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum())(x)
    l.backward()
    return x.grad


@program
def norm_at_zero(c):
    x = torch.zeros(3, requires_grad=True)
    c(lambda x: x.norm() + x.abs().sum() + x.relu().sum() + torch.linalg.vector_norm(x, ord=1))(x).backward()
    return x.grad


@program
def max_ties(c):
    x = torch.ones(4, requires_grad=True)
    c(lambda x: x.max() + x.amax(0) + x.max(0).values + x.clamp(max=1.0).sum() + torch.maximum(x, x * 1).sum())(x).backward()
    return x.grad


@program
def sparse_embedding(c):
    e = nn.Embedding(10, 4, sparse=True)
    f = c(e)
    f(torch.tensor([1, 1, 3])).sum().backward()
    return e.weight.grad.to_dense(), e.weight.grad.is_sparse


@program
def embedding_padding_maxnorm(c):
    e = nn.Embedding(10, 4, padding_idx=1, max_norm=1.0, scale_grad_by_freq=True)
    f = c(lambda i: e(i).square().sum())
    f(torch.tensor([1, 1, 3, 3, 2])).backward()
    return e.weight.grad, e.weight


@program
def embedding_bag(c):
    e = nn.EmbeddingBag(10, 4, mode="mean")
    c(lambda i, o: e(i, o))(torch.tensor([1, 1, 3, 3, 2]), torch.tensor([0, 2])).sum().backward()
    return e.weight.grad


@program
def cross_entropy_options(c):
    x = leaf(4, 5)
    t = torch.tensor([0, -100, 3, 4])
    w = torch.rand(5)
    l = c(
        lambda x: (
            F.cross_entropy(x, t, weight=w, ignore_index=-100, label_smoothing=0.1)
            + F.nll_loss(x.log_softmax(-1), t)
            + F.cross_entropy(x, x.detach().softmax(-1))
        )
    )(x)
    l.backward()
    return l.detach(), x.grad


@program
def ctc(c):
    x = leaf(10, 2, 5)
    l = c(lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2, 3], [1, 1, 2]]), torch.tensor([10, 10]), torch.tensor([3, 3])))(x)
    l.backward()
    return l.detach(), x.grad


@program
def interpolate_and_grid(c):
    x = leaf(1, 2, 5, 5)
    g = torch.rand(1, 4, 4, 2) * 2 - 1
    l = c(
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="bilinear").sum()
            + F.grid_sample(x, g, align_corners=False).sum()
            + F.adaptive_avg_pool2d(x, 3).sum()
            + F.max_pool2d(x, 2).sum()
            + F.unfold(x, 2).sum()
        )
    )(x)
    l.backward()
    return l.detach(), x.grad


@program
def conv_transposed_grouped(c):
    m = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, padding=1), nn.ConvTranspose2d(4, 2, 3, stride=2))
    x = leaf(1, 4, 5, 5)
    c(m)(x).square().sum().backward()
    return grads(m), x.grad


@program
def einsum_bilinear(c):
    a, b = leaf(3, 4), leaf(5, 4)
    m = nn.Bilinear(4, 4, 2)
    l = c(lambda a, b: torch.einsum("ik,jk->ij", a, b).sum() + m(a, b[:3]).sum())(a, b)
    l.backward()
    return a.grad, b.grad, grads(m)


@program
def linalg_ops(c):
    x = leaf(4, 4)
    l = c(
        lambda x: (
            torch.linalg.inv(x @ x.t() + torch.eye(4)).sum()
            + torch.linalg.slogdet(x @ x.t() + torch.eye(4))[1]
            + torch.linalg.cholesky(x @ x.t() + torch.eye(4)).sum()
            + torch.linalg.svdvals(x).sum()
            + torch.linalg.solve(x @ x.t() + torch.eye(4), x).sum()
        )
    )(x)
    l.backward()
    return l.detach(), x.grad


@program
def cumulative(c):
    x = torch.rand(3, 4).requires_grad_()
    l = c(lambda x: x.cumsum(0).sum() + x.cumprod(1).sum() + x.logcumsumexp(0).sum() + x.cummax(1).values.sum())(x)
    l.backward()
    return x.grad


@program
def scatter_reduce(c):
    x = leaf(6)
    i = torch.tensor([0, 1, 0, 2, 1, 0])
    l = c(
        lambda x: (
            torch.zeros(3).scatter_reduce(0, i, x, "mean", include_self=False).square().sum()
            + torch.zeros(3).scatter_add(0, i, x).sum()
            + torch.zeros(3).index_reduce(0, i, x, "amax").sum()
        )
    )(x)
    l.backward()
    return x.grad


@program
def expand_stride0_output(c):
    x = leaf(1, 3)
    o = c(lambda x: (x.expand(4, 3), x.t()))(x)
    o[0].sum().backward()
    return o[0], o[1], x.grad


@program
def output_is_input(c):
    x = leaf(3)
    y = torch.ones(3)
    o = c(lambda x, y: (x, y, x + y, x.detach()))(x, y)
    (o[2] + o[0]).sum().backward()
    return o[0] is x, o[1] is y, o[3].requires_grad, x.grad


@program
def detach_shares_memory(c):
    x = leaf(3)
    o = c(lambda x: (x * 2, (x * 2).detach()))(x)
    o[1].add_(5)
    return o


@program
def detach_of_intermediate_shares(c):
    x = leaf(3)

    def f(x):
        y = x * 2
        return y, y.detach()

    y, d = c(f)(x)
    same_mem = y.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()
    y.sum().backward()
    return y, d, same_mem, x.grad


@program
def saved_values_freed(c):
    x = leaf(1000)
    f = c(lambda x: x.sin().exp())
    y = f(x)
    y.sum().backward()
    r = weakref.ref(y)
    del y
    gc.collect()
    return r() is None


@program
def no_grad_function_decorator(c):
    @torch.no_grad()
    def g(x):
        return x * 2

    x = leaf(3)
    o = c(lambda x: g(x) + x)(x)
    o.sum().backward()
    return o, x.grad


@program
def inference_mode_decorator_inside(c):
    x = leaf(3)

    def f(x):
        with torch.inference_mode():
            s = (x.detach() * 2).sum()
        return x * s.item()

    o = c(f)(x)
    o.sum().backward()
    return o, x.grad


@program
def grad_dtype_mix(c):
    a = leaf(3)
    b = torch.randn(3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(3).half().requires_grad_()
    l = c(lambda a, b, h: (a * b + h).sum())(a, b, h)
    l.backward()
    return a.grad, b.grad, h.grad


@program
def to_dtype_roundtrip(c):
    a = leaf(3)
    l = c(lambda a: a.half().float().double().sum() + a.to(torch.bfloat16).sum().float())(a)
    l.backward()
    return a.grad


@program
def backward_with_gradient(c):
    x = leaf(3, 3)
    y = c(lambda x: x.t() * 2)(x)
    y.backward(torch.arange(9.0).view(3, 3).t())
    return x.grad, x.grad.stride()


@program
def backward_gradient_expanded(c):
    x = leaf(3, 3)
    y = c(lambda x: x.sin())(x)
    y.backward(torch.ones(1, 1).expand(3, 3))
    return x.grad


@program
def backward_gradient_requires_grad(c):
    x = leaf(3)
    g = leaf(3)
    y = c(lambda x: x * 2)(x)
    y.backward(g)
    return x.grad


@program
def jacobian_outside(c):
    x = leaf(3)
    f = c(lambda x: x.sin() * x.sum())
    return torch.autograd.functional.jacobian(f, x.detach())


@program
def vmap_func_over_compiled(c):
    f = c(lambda x: x.sin().sum())
    return raising(lambda: torch.func.grad(f)(torch.ones(3)))[:8], raising(lambda: torch.vmap(f)(torch.ones(2, 3)))[:8]


@program
def vmap_values(c):
    f = c(lambda x: x.sin().sum())
    return torch.func.grad(f)(torch.ones(3)), torch.vmap(f)(torch.ones(2, 3)), torch.func.jacrev(f)(torch.ones(3))


@program
def gradcheck(c):
    f = c(lambda x: (x.sin() * x).sum())
    return torch.autograd.gradcheck(f, torch.randn(3, dtype=torch.float64, requires_grad=True))


@program
def deepcopy_and_pickle_outputs(c):
    m = mlp()
    cm = c(m)
    y = cm(torch.ones(2, 4))
    m2 = copy.deepcopy(m)
    return m2(torch.ones(2, 4)) - y


@program
def module_list_dropout_eval_train_switch(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    f = c(m)
    r = []
    for t in (True, False, True):
        m.train(t)
        r.append(f(torch.ones(3, 4)))
    r[0].sum().backward()
    return r, grads(m)


@program
def loss_with_python_scalars_changing(c):
    w = leaf(3)
    f = c(lambda w, k: (w * k).sum())
    r = []
    for k in (1.0, 2.0, 3.5, 1.0):
        f(w, k).backward()
        r.append(w.grad.clone())
    return r


@program
def dynamic_batch_training(c):
    m = mlp()
    f = c(m)
    for n in (2, 3, 5, 1, 7):
        f(torch.randn(n, 4)).square().mean().backward()
    return grads(m)


@program
def generator_of_losses(c):
    m = mlp()

    def f(xs):
        return sum(m(x).square().mean() for x in xs)

    l = c(f)([torch.randn(2, 4) for _ in range(3)])
    l.backward()
    return l.detach(), grads(m)


@program
def dataclass_output(c):
    @dataclasses.dataclass
    class Out:
        a: Any
        b: Any = None

    x = leaf(3)
    o = c(lambda x: Out(x * 2, [x.sin()]))(x)
    (o.a.sum() + o.b[0].sum()).backward()
    return o.a, o.b, x.grad


@program
def try_except_backward(c):
    x = leaf(3)

    def f(x):
        y = x * 2
        try:
            y.view(7)
        except RuntimeError:
            y = y + 1
        return y.sum()

    l = c(f)(x)
    l.backward()
    return l.detach(), x.grad


@program
def backward_inside_twice_with_item(c):
    m = mlp()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    log = []

    def step(x):
        l = m(x).square().sum()
        l.backward()
        log.append(l.item())
        o.step()
        o.zero_grad()
        return l.detach()

    f = c(step)
    r = [f(torch.randn(3, 4)) for _ in range(2)]
    return r, [round(v, 3) for v in log], list(m.parameters())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")  # of torch's own, about nested tensors, old kernels and the like
def test_as_in_eager(name: str, backend: str) -> None:
    fxloom.reset()
    got, wanted = both(PROGRAMS[name], backend)
    same(got, wanted, name, 1e-4)
