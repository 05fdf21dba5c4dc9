"""What a program does with tensors beyond calling operators: attributes, gradients, subclasses, modes, NumPy."""
