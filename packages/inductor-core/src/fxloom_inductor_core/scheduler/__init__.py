"""Scheduling: `fusion` forms groups of loops, `kernels` makes each group a `Kernel`, `spaces` is the arithmetic of their axes."""
