"""Symbolic shapes and fake tensors."""

from fxloom_shapes.context import TraceContext, saved_tensors_hooks_off, trace_context, use_trace_context
from fxloom_shapes.descriptor import Descriptor, contiguous_stride, describe, describe_contiguous
from fxloom_shapes.errors import DataDependent, NoFakeKernel, UnsupportedTensor
from fxloom_shapes.fake import FakeStorage, FakeTensor, make_fake
from fxloom_shapes.mode import FakeMode
from fxloom_shapes.propagate import propagate

__all__ = [
    "DataDependent",
    "Descriptor",
    "FakeMode",
    "FakeStorage",
    "FakeTensor",
    "NoFakeKernel",
    "TraceContext",
    "UnsupportedTensor",
    "contiguous_stride",
    "describe",
    "describe_contiguous",
    "make_fake",
    "propagate",
    "saved_tensors_hooks_off",
    "trace_context",
    "use_trace_context",
]
