"""What a library has registered for an operator of its own: its fake kernel, its derivative."""

from __future__ import annotations

from fxloom_ops._torch_private import custom_operator, fake_kernel

__all__ = ["custom_operator", "fake_kernel"]
