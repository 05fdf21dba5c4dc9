"""Calls of torch functions with symbolic numbers, said with operators that take them."""
