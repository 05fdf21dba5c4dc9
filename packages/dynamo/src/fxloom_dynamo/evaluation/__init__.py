"""Capture of one frame: attempts of the evaluator, until one ends without a graph break or a refused inlining."""
