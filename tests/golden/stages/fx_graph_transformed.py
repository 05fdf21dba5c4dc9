def forward(self, x, weight, residual):
    # x: L['x']  # f32[4096, 256] strides (256, 1) cpu
    # weight: L['weight']  # f32[256, 512] strides (512, 1) cpu
    # residual: L['residual']  # f32[4096, 512] strides (512, 1) cpu
    # program.py:7 in score: return torch.softmax(x @ weight + residual, dim=-1)
    mm_default = torch.ops.aten.mm.default(x, weight)  # f32[4096, 512] strides (512, 1) cpu
    add_tensor = torch.ops.aten.add.Tensor(mm_default, residual)  # f32[4096, 512] strides (512, 1) cpu
    amax_default = torch.ops.aten.amax.default(add_tensor, [-1], True)  # f32[4096, 1] strides (1, 1) cpu
    sub_tensor = torch.ops.aten.sub.Tensor(add_tensor, amax_default)  # f32[4096, 512] strides (512, 1) cpu
    exp_default = torch.ops.aten.exp.default(sub_tensor)  # f32[4096, 512] strides (512, 1) cpu
    sum_dim_int_list = torch.ops.aten.sum.dim_IntList(exp_default, [-1], True)  # f32[4096, 1] strides (1, 1) cpu
    div_tensor = torch.ops.aten.div.Tensor(exp_default, sum_dim_int_list)  # f32[4096, 512] strides (512, 1) cpu
    return (div_tensor,)
