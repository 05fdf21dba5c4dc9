"""What every fxloom code generator needs: source writer, namer, expression printing, reference interpreter."""
