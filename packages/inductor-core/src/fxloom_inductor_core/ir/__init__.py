"""What lowering makes and scheduling takes: tensors and their layouts, traced loops, calls, and the graph of them.

Nothing here knows an operator of ATen, a rule of fusion or a device.
"""
