"""Fake tensors, their metadata, and what shape rules are written with: plans and layouts."""
