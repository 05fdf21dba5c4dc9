"""Fake tensors, their metadata, and what shape rules are made of: plans, layouts, the table of rules."""
