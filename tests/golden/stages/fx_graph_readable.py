def forward(self, x, weight, residual):
    # x: L['x']  # f32[4096, 256] strides (256, 1) cpu
    # weight: L['weight']  # f32[256, 512] strides (512, 1) cpu
    # residual: L['residual']  # f32[4096, 512] strides (512, 1) cpu
    # program.py:7 in score: return torch.softmax(x @ weight + residual, dim=-1)
    matmul = operator.matmul(x, weight)  # f32[4096, 512] strides (512, 1) cpu
    add = operator.add(matmul, residual)  # f32[4096, 512] strides (512, 1) cpu
    softmax = torch.softmax(add, dim=-1)  # f32[4096, 512] strides (512, 1) cpu
    return (softmax,)
