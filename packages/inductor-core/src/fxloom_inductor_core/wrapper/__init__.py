"""The wrapper: `program` puts kernels, calls and memory in one line of steps, `python` prints them as the source of `call`."""
