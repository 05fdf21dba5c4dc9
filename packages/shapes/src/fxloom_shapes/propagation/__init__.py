"""Run operators on fakes: from the arguments to a plan, by rules or Meta kernels, and the mode and context to do it in."""
