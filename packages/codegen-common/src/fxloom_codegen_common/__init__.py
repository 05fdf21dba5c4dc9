"""What every code generator needs: writer, namer, expression text, reference interpreter of the loop IR."""
