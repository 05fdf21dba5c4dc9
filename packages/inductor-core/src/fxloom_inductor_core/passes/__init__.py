"""Passes over aten graphs, before they are lowered: `pipeline` is their list, each pass has a module of its own."""
