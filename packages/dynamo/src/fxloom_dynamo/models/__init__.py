"""Models of builtins that look at types and identities, call back, or read attributes; and of a few library functions.

A model here is a description of a callee, which the evaluator asks in its place; neural networks are the program's. Each
gets the evaluator, the arguments and the keyword arguments, and returns what the real callee would. Every module is a family and
registers its models in `interpreter.model_tables`; `load_all` imports them all.
"""
