"""What Python's operations mean on the program's values: calls, attributes, operators, subscripts, iteration, text."""
