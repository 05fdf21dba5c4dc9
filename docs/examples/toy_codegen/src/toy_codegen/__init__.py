"""A code generator that writes NumPy."""
