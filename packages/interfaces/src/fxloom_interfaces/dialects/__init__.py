"""The graph dialects and their verifiers: `verify(gm)` names node and rule."""
