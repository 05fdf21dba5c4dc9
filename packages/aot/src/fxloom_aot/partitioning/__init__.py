"""Which calls of a joint log run forward, which backward, and which values are kept in between."""
