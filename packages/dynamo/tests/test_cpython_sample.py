"""A sample of CPython's own test methods, captured whole: `benchmarks/cpython_tests.py` runs all of them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig

pytest.importorskip("test.test_list", reason="an interpreter without its test suite")

WHOLE = (
    ("test_list", "ListTest", "test_keyword_args"),
    ("test_dictcomps", "DictComprehensionTest", "test_local_visibility"),
    ("test_grammar", "GrammarTests", "test_try"),
    ("test_grammar", "GrammarTests", "test_classdef"),
    ("test_named_expressions", "NamedExpressionAssignmentTest", "test_named_expression_assignment_16"),
    ("test_patma", "TestPatma", "test_patma_040"),
    ("test_raise", "TestContext", "test_class_context_instance_raise"),
    ("test_raise", "TestCause", "test_instance_cause"),
    ("test_scope", "ScopeTests", "testNestedNonLocal"),
    ("test_with", "NestedNonexceptionalTestCase", "testSingleArgInlineGeneratorSyntax"),
    ("test_generators", "ExceptionTest", "test_except_next"),
    ("test_set", "TestSet", "test_symmetric_difference"),
    ("test_userdict", "UserDictTest", "test_missing"),
    ("test_property", "PropertyTests", "test_property_decorator_subclass"),
    ("test_with", "ExceptionalTestCase", "testRaisedGeneratorExit1"),
    ("test_yield_from", "TestPEP380Operation", "test_throwing_GeneratorExit_into_subgen_that_returns"),
    ("test_subclassinit", "Test", "test_init_subclass"),
)


@pytest.mark.parametrize(("file", "cls", "name"), WHOLE)
@pytest.mark.parametrize("whole", [True, False])
def test_method_inside_a_compiled_region(file: str, cls: str, name: str, whole: bool) -> None:
    case = getattr(importlib.import_module(f"test.{file}"), cls)(name)
    method = getattr(case, name)

    def f(x: Any) -> Any:
        y = x + 1
        method()
        return y * 2

    frames: list[Any] = []
    x = torch.arange(3.0)
    case.setUp()
    try:
        result = compile_callable(f, CaptureConfig(fullgraph=whole, on_capture=frames.append))(x)
    finally:
        case.tearDown()
    assert torch.equal(result, (x + 1) * 2)
    if whole:
        assert [frame.info.graph is not None for frame in frames] == [True]
        assert frames[0].info.broke is None
