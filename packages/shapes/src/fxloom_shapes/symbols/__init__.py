"""The symbol environment of a compilation, and the nodes that torch sees under SymInt, SymFloat and SymBool."""
