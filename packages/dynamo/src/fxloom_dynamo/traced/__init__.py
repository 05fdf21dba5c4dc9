"""Python of fxloom that is evaluated like the program's own: every file in this folder is traced."""
