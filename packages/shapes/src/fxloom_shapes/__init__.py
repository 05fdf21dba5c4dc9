"""Symbolic shapes and fake tensors."""

from fxloom_shapes._torch_private import symbolic_kernels
from fxloom_shapes.errors import ConstraintViolated, DataDependent, NoFakeKernel, UnsupportedTensor
from fxloom_shapes.fake.descriptor import Descriptor, contiguous_stride, describe, describe_contiguous
from fxloom_shapes.fake.tensor import FakeStorage, FakeTensor, make_fake
from fxloom_shapes.propagation.active_context import trace_context
from fxloom_shapes.propagation.context import TraceContext, saved_tensors_hooks_off, use_trace_context
from fxloom_shapes.propagation.mode import FakeMode
from fxloom_shapes.propagation.propagate import propagate
from fxloom_shapes.propagation.special_operators import SIZE_QUERIES
from fxloom_shapes.symbols.env import SymbolEnv
from fxloom_shapes.symbols.options import EnvOptions
from fxloom_shapes.symbols.symbol import SizeGuard, Symbol

__all__ = [
    "SIZE_QUERIES",
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
