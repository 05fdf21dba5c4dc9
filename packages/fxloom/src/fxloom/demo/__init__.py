"""Four programs that fxloom compiles and runs, and the table that says how it went."""
