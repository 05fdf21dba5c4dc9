"""What gives meaning to Python needs of the evaluator: the protocol, its state, frames and tables."""
