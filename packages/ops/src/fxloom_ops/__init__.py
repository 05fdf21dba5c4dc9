"""What several layers know of an operator beyond its schema, and operators that graphs of fxloom call."""
