"""Symbolic shapes and fake tensors for fxloom."""
