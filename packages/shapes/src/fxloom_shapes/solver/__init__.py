"""What is known about symbols, and what follows from it."""
