"""C++/OpenMP kernels for the CPU."""
