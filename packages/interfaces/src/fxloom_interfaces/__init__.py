"""Contracts of fxloom: graph dialects, loop IR, plugin protocols, errors, configuration."""
