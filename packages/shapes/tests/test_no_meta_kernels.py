"""Operators for which torch has no Meta kernel: results of fakes beside the real ones, over layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxloom_shapes import FakeMode
from fxloom_shapes.propagation.propagate import propagate
from fxloom_shapes.rules.registry import RULES

aten = torch.ops.aten
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "with gaps": lambda t: t.repeat_interleave(2, -1)[..., ::2],
}
positive = torch.rand(3, 4, 5) + 0.5
rows = torch.rand(3, 5)
places = torch.tensor([0, 1, 2])
labels = torch.zeros(3, 5, dtype=torch.int64)
volume = torch.rand(2, 3, 6, 6, 6)
CALLS: dict[str, tuple[Any, torch.Tensor, Callable[[torch.Tensor], tuple[Any, ...]]]] = {
    "gamma, derivative": (aten._standard_gamma_grad.default, positive, lambda x: (x, positive)),
    "gamma, derivative, both": (aten._standard_gamma_grad.default, positive, lambda x: (x, x)),
    "gamma": (aten._standard_gamma.default, positive, lambda x: (x,)),
    "dirichlet": (aten._sample_dirichlet.default, positive, lambda x: (x,)),
    "dirichlet, derivative": (aten._dirichlet_grad.default, positive, lambda x: (x, positive, positive)),
    "binomial": (aten.binomial.default, positive, lambda x: (x, positive.clamp(max=1))),
    "multi margin": (aten.multi_margin_loss_backward.default, rows, lambda x: (torch.ones(()), x, places, 1, 1.0, None, 1)),
    "multi margin, loss": (aten.multi_margin_loss.default, rows, lambda x: (x, places, 1, 1.0, None, 0)),
    "multi margin, loss of one": (aten.multi_margin_loss.default, rows, lambda x: (x[0], places[0], 1, 1.0, None, 0)),
    "multilabel margin": (
        aten.multilabel_margin_loss_backward.default,
        rows,
        lambda x: (torch.ones(()), x, labels, 1, aten.multilabel_margin_loss_forward(x, labels, 1)[1]),
    ),
    "fractional pool": (
        aten.fractional_max_pool3d_backward.default,
        volume,
        lambda x: (torch.ones(2, 3, 3, 3, 3), x, [2, 2, 2], [3, 3, 3], torch.zeros(2, 3, 3, 3, 3, dtype=torch.int64)),
    ),
    "antialiased": (
        aten._upsample_bicubic2d_aa_backward.default,
        torch.rand(2, 3, 4, 5),
        lambda g: (g, [4, 5], [2, 3, 7, 9], False),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_fakes_are_as_the_real_results(name: str, layout: str) -> None:
    op, base, arguments = CALLS[name]
    args = arguments(LAYOUTS[layout](base))
    real = op(*args)
    mode = FakeMode()
    fake = propagate(op, tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args), {}, mode)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


#: those without a fake kernel: their shapes depend on values, they are torch's own tests, or they are parts of others that have one
WITHOUT = {
    "_add_relu.Scalar", "_aminmax", "_aminmax.dim", "_compute_linear_combination", "_ctc_loss.Tensor", "_foobar", "_logcumsumexp",
    "_masked_softmax", "_masked_softmax_backward", "_padded_dense_to_jagged_forward", "_slow_conv2d_backward.output_mask",
    "_slow_conv2d_forward", "_spdiags", "_test_functorch_fallback", "_test_optional_filled_intlist", "_test_optional_floatlist",
    "_test_optional_intlist", "_transform_bias_rescale_qkv", "_unique", "_unique2", "batch_norm_update_stats", "bincount", "equal",
    "from_file", "glu_backward_jvp", "glu_jvp", "is_set_to", "masked_select", "slow_conv3d_forward", "slow_conv_dilated2d",
    "slow_conv_dilated3d", "slow_conv_transpose3d", "unique_consecutive", "unique_dim", "unique_dim_consecutive",
}  # fmt: skip


def test_which_operators_have_none() -> None:
    """A new release of torch may bring operators that capture could only break at."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    makers = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    elsewhere = ("cudnn", "miopen", "mkldnn", "quantize", "sparse", "nested", "fbgemm", "mps", "nnpack", "choose_qparams", "q_", "xnn")
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, base, None), overload or "default", None) if name.startswith("aten::") else None
        if op is None or op._schema.is_mutable or any(part in base for part in elsewhere) or not has(name, "CPU"):
            continue
        if op not in RULES and torch._C.DispatchKey.Meta not in op.py_kernels and not any(has(name, key) for key in makers):
            found.add(name.removeprefix("aten::"))
    assert found <= WITHOUT
