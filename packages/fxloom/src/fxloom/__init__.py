"""fxloom.compile: the umbrella over the fxloom compile stack."""
