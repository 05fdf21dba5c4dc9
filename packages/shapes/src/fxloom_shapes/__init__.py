"""Symbolic shapes and fake tensors."""

from fxloom_shapes._torch_private import symbolic_kernels
from fxloom_shapes.asking import EnvOptions
from fxloom_shapes.context import TraceContext, saved_tensors_hooks_off, use_trace_context
from fxloom_shapes.current import trace_context
from fxloom_shapes.descriptor import Descriptor, contiguous_stride, describe, describe_contiguous
from fxloom_shapes.env import SizeGuard, Symbol, SymbolEnv
from fxloom_shapes.errors import ConstraintViolated, DataDependent, NoFakeKernel, UnsupportedTensor
from fxloom_shapes.fake import FakeStorage, FakeTensor, make_fake
from fxloom_shapes.mode import FakeMode
from fxloom_shapes.propagate import propagate
from fxloom_shapes.special_operators import QUESTIONS

__all__ = [
    "QUESTIONS",
    "ConstraintViolated",
    "DataDependent",
    "Descriptor",
    "EnvOptions",
    "FakeMode",
    "FakeStorage",
    "FakeTensor",
    "NoFakeKernel",
    "SizeGuard",
    "Symbol",
    "SymbolEnv",
    "TraceContext",
    "UnsupportedTensor",
    "contiguous_stride",
    "describe",
    "describe_contiguous",
    "make_fake",
    "propagate",
    "saved_tensors_hooks_off",
    "symbolic_kernels",
    "trace_context",
    "use_trace_context",
]
