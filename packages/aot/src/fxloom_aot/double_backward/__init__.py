"""Gradients that are to be differentiated again: eager's autograd nodes, on the values that a compiled call kept."""
