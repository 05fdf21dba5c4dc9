"""Decompositions of ATen operators to core ATen and prims."""
