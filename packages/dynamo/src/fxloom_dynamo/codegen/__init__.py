"""Replacement code of a frame: calls of graphs, values made again, writes, continuations."""
