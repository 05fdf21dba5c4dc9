"""What callers use: graphs, functions and modules compiled ahead of time, and the compiler that runs graphs operator by operator."""
