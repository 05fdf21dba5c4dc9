"""Shape rules for the commonest operators, one module per family of operators.

A rule takes the result's device and the operator's arguments and gives a plan (what the result is), or None to leave the case to
torch's Meta kernel: it answers only what it is sure of, and it never raises on a program's behalf. Rules register themselves in
`registry`; a new family is a module here and a line in `load_all`.
"""
