"""Graph capture from Python bytecode: frame hook, symbolic evaluator, guards, graph breaks."""
