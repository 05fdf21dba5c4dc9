"""What every code generator needs: `writer` and `namer` for source text, `text` for expressions, `interpreter` for what a kernel
means, `reference` for a code generator that runs kernels in the interpreter.
"""
