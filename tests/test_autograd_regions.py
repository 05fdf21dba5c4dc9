"""Training programs over graph breaks, through checkpoints, optimizers, custom functions and transforms; what is done to results.

As in `training_programs`: a program gets a function that compiles or, for eager, does nothing, and returns what it saw.
"""

from __future__ import annotations

import contextlib
import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts
from training_programs import both, grads, leaf, mlp, registry, same

import fxloom

PROGRAMS, program = registry()


@program
def residual_over_breaks(c):
    m = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def f(x):
        for l in m:
            x = x + l(x).tanh()
            fxloom.graph_break()
        return x

    x = leaf(2, 4)
    c(f)(x).sum().backward()
    return x.grad, grads(m)


@program
def inplace_over_break(c):
    def f(x):
        y = x * 2
        y.add_(1)
        fxloom.graph_break()
        y.mul_(x)
        fxloom.graph_break()
        return y.sin()

    x = leaf(3)
    o = c(f)(x)
    o.sum().backward()
    return o, x.grad


@program
def view_over_break_then_write(c):
    def f(x):
        y = x * 2
        v = y[1:]
        fxloom.graph_break()
        v.mul_(3)
        fxloom.graph_break()
        return y.sum() + v.sum()

    x = leaf(3)
    o = c(f)(x)
    o.backward()
    return o.detach(), x.grad


@program
def base_written_view_read(c):
    def f(x):
        y = x * 2
        v = y.view(2, 2)
        fxloom.graph_break()
        y.mul_(3)
        return v * 1

    x = leaf(4)
    o = c(f)(x)
    o.sum().backward()
    return o, x.grad


@program
def no_grad_block_over_break(c):
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
            fxloom.graph_break()
            z = z + 1
        return y * z

    x = leaf(3)
    o = c(f)(x)
    o.sum().backward()
    return o, x.grad


@program
def autocast_over_break(c):
    m = nn.Linear(4, 4)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
            fxloom.graph_break()
            z = m(y)
        return z

    x = leaf(2, 4)
    o = c(f)(x)
    o.float().sum().backward()
    return o.dtype, x.grad.dtype, [g.dtype for g in grads(m)]


@program
def print_in_the_middle(c):
    m = mlp()

    def f(x):
        h = m[0](x)
        print("", end="")
        h = m[1](h)
        h.sum().item()
        return m[2](h)

    x = leaf(2, 4)
    c(f)(x).sum().backward()
    return grads(m), x.grad


@program
def data_dependent_branch(c):
    def f(x):
        return x * 2 if x.sum() > 0 else x * 3

    r = []
    for v in (1.0, -1.0):
        x = torch.full((3,), v, requires_grad=True)
        c(f)(x).sum().backward()
        r.append(x.grad)
    return r


@program
def dropout_over_break_state(c):
    def f(x):
        y = F.dropout(x, 0.5)
        fxloom.graph_break()
        return F.dropout(y, 0.5)

    x = torch.ones(20, requires_grad=True)
    o = c(f)(x)
    o.sum().backward()
    return o, x.grad, torch.get_rng_state()


@program
def checkpoint_seq(c):
    m = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
    x = leaf(2, 4)
    c(lambda x: checkpoint_sequential(m, 2, x, use_reentrant=False))(x).sum().backward()
    return x.grad, grads(m)


@program
def checkpoint_kwargs_nested(c):
    l = nn.Linear(4, 4)

    def inner(x, *, k):
        return l(x).sin() * k

    def outer(x):
        return checkpoint(inner, x, k=2.0, use_reentrant=False) + checkpoint(inner, x, k=3.0, use_reentrant=False)

    x = leaf(2, 4)
    c(lambda x: checkpoint(outer, x, use_reentrant=False))(x).sum().backward()
    return x.grad, grads(l)


@program
def checkpoint_with_batchnorm(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = leaf(5, 4)
    c(lambda x: checkpoint(m, x, use_reentrant=False))(x).sum().backward()
    return x.grad, grads(m), list(m.buffers())


@program
def checkpoint_returning_nested(c):
    def blk(x):
        return {"a": x.sin(), "b": (x.cos(), 3)}

    x = leaf(3)
    o = c(lambda x: checkpoint(blk, x, use_reentrant=False))(x)
    (o["a"].sum() + o["b"][0].sum()).backward()
    return o["b"][1], x.grad


@program
def selective_checkpoint(c):
    def pol(ctx, op, *a, **k):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    w = leaf(4, 4)

    def f(x):
        return checkpoint(
            lambda t: (t @ w).sin().exp(), x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(pol)
        )

    x = leaf(3, 4)
    c(f)(x).sum().backward()
    return x.grad, w.grad


@program
def stochastic_depth_python_random(c):
    m = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def f(x):
        for l in m:
            if random.random() > 0.5:
                x = x + l(x)
        return x

    r = []
    for s in range(3):
        random.seed(s)
        x = leaf(2, 4)
        c(f)(x).sum().backward()
        r.append(x.grad)
    return r, grads(m)


@program
def moe_routing(c):
    gate = nn.Linear(4, 3)
    ex = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def f(x):
        p = gate(x).softmax(-1)
        v, i = p.topk(2)
        out = torch.zeros_like(x)
        for e in range(3):
            m = i == e
            rows = m.any(-1).nonzero().squeeze(-1)
            if rows.numel():
                out = out.index_add(0, rows, ex[e](x[rows]) * (v * m).sum(-1)[rows].unsqueeze(-1))
        return out

    x = leaf(6, 4)
    c(f)(x).square().sum().backward()
    return x.grad, grads(gate), grads(ex)


@program
def tbptt_hidden_detach(c):
    m = nn.GRUCell(4, 5)
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x, h):
        h = m(x, h)
        l = h.square().sum()
        l.backward()
        o.step()
        o.zero_grad()
        return h.detach()

    f = c(step)
    h = torch.zeros(2, 5)
    for _ in range(3):
        h = f(torch.randn(2, 4), h)
    return h, list(m.parameters())


@program
def gan_step(c):
    g, d = mlp(), nn.Linear(3, 1)
    og = torch.optim.Adam(g.parameters())
    od = torch.optim.Adam(d.parameters())

    def step(z, real):
        fake = g(z)
        ld = F.softplus(d(fake.detach())).mean() + F.softplus(-d(real)).mean()
        od.zero_grad()
        ld.backward()
        od.step()
        lg = F.softplus(-d(fake)).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        return ld.detach(), lg.detach()

    f = c(step)
    r = [f(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(3)]
    return r, list(g.parameters()), list(d.parameters())


@program
def wgan_gp(c):
    d = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def f(x):
        x = x.detach().requires_grad_()
        o = d(x).sum()
        (g,) = torch.autograd.grad(o, x, create_graph=True)
        return ((g.norm(dim=1) - 1) ** 2).mean()

    l = c(f)(torch.randn(5, 3))
    l.backward()
    return l.detach(), grads(d)


@program
def contrastive_queue(c):
    q = torch.randn(8, 4)
    enc = nn.Linear(4, 4)

    def f(x):
        k = F.normalize(enc(x), dim=1)
        l = F.cross_entropy(k @ q.clone().t(), torch.arange(len(x)))
        with torch.no_grad():
            q[:-2] = q[2:].clone()
            q[-2:] = k
        return l

    F_ = c(f)
    r = []
    for _ in range(3):
        l = F_(torch.randn(2, 4))
        l.backward()
        r.append(l.detach())
    return r, q, grads(enc)


@program
def lbfgs_closure(c):
    m = nn.Linear(3, 1)
    o = torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=4)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    f = c(m)

    def clo():
        o.zero_grad()
        l = F.mse_loss(f(x), y)
        l.backward()
        return l

    for _ in range(2):
        o.step(clo)
    return list(m.parameters())


@program
def swa_and_foreach(c):
    m = mlp()
    ps = list(m.parameters())

    def f(x):
        m(x).sum().backward()
        g = [p.grad for p in ps]
        torch._foreach_mul_(g, 0.5)
        with torch.no_grad():
            torch._foreach_add_(ps, g, alpha=-0.1)
        n = torch._foreach_norm(g)
        return torch.stack(n)

    F_ = c(f)
    r = [F_(torch.randn(2, 4)) for _ in range(2)]
    return r, ps


@program
def adam_capturable_amsgrad_maximize(c):
    m = mlp()
    o = torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True, maximize=True, weight_decay=0.1, foreach=False)

    def s(x):
        o.zero_grad()
        m(x).sum().backward()
        o.step()

    f = c(s)
    [f(torch.randn(2, 4)) for _ in range(3)]
    return list(m.parameters())


@program
def onecycle_and_param_groups(c):
    m = mlp()
    o = torch.optim.AdamW([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters(), "weight_decay": 0.0}], lr=0.01)
    s = torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=6)

    def st(x):
        o.zero_grad()
        m(x).square().sum().backward()
        o.step()

    f = c(st)
    for _ in range(5):
        f(torch.randn(2, 4))
        s.step()
    return list(m.parameters()), [g["lr"] for g in o.param_groups]


@program
def tensor_lr(c):
    m = mlp()
    o = torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01), capturable=False, foreach=False)

    def st(x):
        o.zero_grad()
        m(x).square().sum().backward()
        o.step()

    f = c(st)
    for k in range(3):
        f(torch.randn(2, 4))
        o.param_groups[0]["lr"].mul_(0.5)
    return list(m.parameters())


@program
def frozen_backbone(c):
    m = mlp()
    m[0].requires_grad_(False)
    o = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1)
    f = c(m)
    for _ in range(2):
        f(torch.randn(3, 4)).sum().backward()
        o.step()
    return list(m.parameters()), grads(m)


@program
def lora(c):
    base = nn.Linear(4, 4).requires_grad_(False)
    A = nn.Parameter(torch.randn(2, 4))
    Bm = nn.Parameter(torch.zeros(4, 2))

    def f(x):
        return base(x) + x @ A.t() @ Bm.t()

    x = torch.randn(3, 4)
    c(f)(x).square().sum().backward()
    return A.grad, Bm.grad, base.weight.grad


@program
def straight_through(c):
    x = leaf(5)

    def f(x):
        q = (x * 4).round() / 4
        return x + (q - x).detach()

    o = c(f)(x)
    (o**2).sum().backward()
    return o, x.grad


@program
def gradient_reversal(c):
    class R(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a):
            ctx.a = a
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.a * g, None

    x = leaf(3)
    c(lambda x: R.apply(x, 0.5).sin().sum())(x).backward()
    return x.grad


@program
def function_setup_context_vmap(c):
    class S(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.sin(), x.cos()

        @staticmethod
        def setup_context(ctx, i, o):
            ctx.save_for_backward(o[1])
            ctx.mark_non_differentiable(o[1])

        @staticmethod
        def backward(ctx, g, _):
            return g * ctx.saved_tensors[0] * 3

    x = leaf(3)
    a, b = c(lambda x: S.apply(x))(x)
    a.sum().backward()
    return a, b, b.requires_grad, x.grad


@program
def function_saves_intermediate_attr(c):
    class S(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.y = y
            ctx.shape = x.shape
            return y.sum(0)

        @staticmethod
        def backward(ctx, g):
            return g.expand(ctx.shape) * ctx.y

    x = leaf(3, 2)
    c(lambda x: S.apply(x).sum())(x).backward()
    return x.grad


@program
def hvp_func(c):
    f = lambda x: (x.sin() * x.pow(2)).sum()

    def h(x, v):
        return torch.func.jvp(torch.func.grad(f), (x,), (v,))[1]

    return c(h)(torch.randn(4), torch.ones(4))


@program
def per_sample_grads(c):
    m = nn.Linear(3, 2)
    ps = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, x):
        return torch.func.functional_call(m, p, (x.unsqueeze(0),)).square().sum()

    g = c(lambda x: torch.func.vmap(torch.func.grad(loss), (None, 0))(ps, x))(torch.randn(5, 3))
    return g["weight"], g["bias"]


@program
def ensembling_stack_state(c):
    ms = [nn.Linear(3, 2) for _ in range(3)]
    p, b = torch.func.stack_module_state(ms)

    def f(x):
        return torch.vmap(lambda p, b: torch.func.functional_call(ms[0], (p, b), (x,)))(p, b)

    o = c(f)(torch.randn(4, 3))
    o.sum().backward()
    return o, p["weight"].grad


@program
def grad_of_input_only(c):
    m = mlp().requires_grad_(False)
    x = leaf(2, 4)
    c(m)(x).sum().backward()
    return x.grad, grads(m)


@program
def saliency_through_eval_dropout(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    x = leaf(2, 4)
    (g,) = torch.autograd.grad(c(m)(x)[0, 1], x)
    return g


@program
def sum_of_module_outputs_shared(c):
    m = mlp()
    f = c(m)
    (f(torch.ones(2, 4)).sum() + f(torch.zeros(3, 4)).sum()).backward()
    return grads(m)


@program
def backward_hook_on_output_after(c):
    m = mlp()
    y = c(m)(torch.ones(2, 4))
    y.register_hook(lambda g: g * 3)
    y.sum().backward()
    return grads(m)


@program
def output_retain_grad(c):
    m = mlp()
    y = c(m)(torch.ones(2, 4))
    y.retain_grad()
    y.square().sum().backward()
    return y.grad, grads(m)


@program
def output_inplace_after(c):
    x = leaf(3)
    y = c(lambda x: x * 2)(x)
    y.mul_(3)
    y.sum().backward()
    return y, x.grad


@program
def set_grad_none_between(c):
    m = mlp()
    f = c(m)
    f(torch.ones(2, 4)).sum().backward()
    m[0].weight.grad = None
    f(torch.ones(2, 4)).sum().backward()
    return grads(m)


@program
def deepcopy_compiled_module(c):
    m = mlp()
    cm = c(m)
    cm(torch.ones(1, 4))
    m2 = copy.deepcopy(cm)
    m2(torch.ones(1, 4)).sum().backward()
    return grads(m), [p.grad for p in m2.parameters()]


@program
def train_eval_no_grad_interleaved(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    f = c(m)
    r = []
    for k in range(4):
        m.train(k % 2 == 0)
        with contextlib.nullcontext() if k % 2 == 0 else torch.no_grad():
            o = f(torch.randn(5, 4))
            r.append(o.detach())
        if o.requires_grad:
            o.sum().backward()
    return r, grads(m), list(m.buffers())


@program
def channels_last_training(c):
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).to(
        memory_format=torch.channels_last
    )
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    c(m)(x).sum().backward()
    return [g.stride() for g in grads(m)], x.grad.stride(), grads(m)


@program
def noncontiguous_param(c):
    w = nn.Parameter(torch.randn(4, 3).t())
    c(lambda x: (x @ w).sum())(torch.randn(2, 3)).backward()
    return w.grad, w.grad.stride()


@program
def zero_size_batch(c):
    m = mlp()
    y = c(m)(torch.randn(0, 4))
    y.sum().backward()
    return y.shape, grads(m)


@program
def scalar_param(c):
    s = nn.Parameter(torch.tensor(2.0))
    c(lambda x: (x * s).sum())(torch.ones(3)).backward()
    return s.grad


@program
def integer_embedding_positions(c):
    e = nn.Embedding(8, 4)
    p = nn.Parameter(torch.randn(5, 4))

    def f(i):
        return (e(i) + p[: i.shape[1]]).square().sum()

    F_ = c(f)
    for n in (3, 5, 2):
        F_(torch.randint(0, 8, (2, n))).backward()
    return e.weight.grad, p.grad


@program
def kv_cache_outputs_all_used(c):
    q, k = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(x):
        kk = k(x)
        a = (q(x) @ kk.t()).softmax(-1)
        return a @ kk, kk

    o, kk = c(f)(torch.randn(3, 4))
    (o.sum() + kk.square().sum()).backward()
    return grads(q), grads(k)


@program
def hook_on_sibling_output(c):
    def f(x):
        y = x * 2
        return y, y.sin()

    x = leaf(3)
    y, z = c(f)(x)
    log = []
    y.register_hook(lambda g: log.append(g.clone()))
    z.sum().backward()
    return log, x.grad


@program
def grad_wrt_sibling_output(c):
    def f(x):
        y = x * 2
        return y, y.sin()

    x = leaf(3)
    y, z = c(f)(x)
    return torch.autograd.grad(z.sum(), y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")  # of torch's own, about schedulers and optimizers called by themselves
def test_as_in_eager(name: str, backend: str) -> None:
    fxloom.reset()
    got, wanted = both(PROGRAMS[name], backend)
    same(got, wanted, name, 1e-4)
