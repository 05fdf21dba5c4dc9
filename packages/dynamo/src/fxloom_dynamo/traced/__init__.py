"""Python of ours that is evaluated like the program's own: every file in this folder is traced."""
