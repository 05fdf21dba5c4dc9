"""Capture and replay of a compiled callable's GPU launches."""
