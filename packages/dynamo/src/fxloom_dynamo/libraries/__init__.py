"""Facts about the libraries that programs use: Python's, torch's and NumPy's."""
