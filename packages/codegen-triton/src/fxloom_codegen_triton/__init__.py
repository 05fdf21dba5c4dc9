"""Triton kernels and templates for GPUs."""
