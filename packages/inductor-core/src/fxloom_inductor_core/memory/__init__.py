"""Memory: `liveness` says when a buffer is read last, `reuse` which memory a buffer gets and what becomes of it then."""
