"""Rules down to prims, one family per module: ordinary functions of tensors that call prims and nothing else."""
