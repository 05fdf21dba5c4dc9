"""What happens at run time: misses of the code cache, and the callables that users hold."""
