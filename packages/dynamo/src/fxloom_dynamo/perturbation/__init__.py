"""How `testing.perturb` changes what a program read, and compares what it does then."""
