"""Ahead-of-time autograd: functionalization, joint tracing, partitioning, runtime wrappers."""
