"""What runs at every call of a compiled graph: inputs, outputs, nodes of autograd, backward graphs."""
