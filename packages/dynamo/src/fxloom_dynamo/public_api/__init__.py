"""What users call: `optimize`, `capture`, `explain`, and what they say about single functions."""
