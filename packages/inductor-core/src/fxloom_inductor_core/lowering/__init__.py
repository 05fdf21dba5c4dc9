"""Lowering: from the aten dialect to loops and calls. `lower` walks a graph; its rules stand in one module per family of operators.

`registry` holds the rules, `load_all` imports all that register, `context` is what a rule works with.
"""
