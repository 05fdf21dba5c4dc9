"""Numbers made of symbols, and statements about them: immutable values that know nothing of what holds for the symbols."""
