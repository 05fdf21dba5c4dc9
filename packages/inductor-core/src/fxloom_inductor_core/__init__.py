"""Lowerings, loop bodies, scheduler, fusion, memory planning and the wrapper."""
