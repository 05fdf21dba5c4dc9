"""Expressions of a C-like target as text with its operator precedence.

In: texts of operands. Out: `Text`, put in parentheses only where the operator around it binds tighter.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Precedence levels of C (and of Python, as far as both have the operator): higher binds tighter.
TERNARY, LOGICAL_OR, LOGICAL_AND, BIT_OR, BIT_XOR, BIT_AND, EQUALITY, RELATION, SHIFT, ADDITIVE, MULTIPLICATIVE, UNARY, ATOM = (
    range(13)
)


@dataclass(frozen=True, slots=True)
class Text:
    """Source text of an expression whose outermost operator has this precedence."""

    text: str
    precedence: int = ATOM

    def at(self, precedence: int) -> str:
        """The text, in parentheses when it binds looser than `precedence`."""
        return self.text if self.precedence >= precedence else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def infix(operator: str, precedence: int, a: Text, b: Text) -> Text:
    """`a operator b`, left-associative. Unlike bit operators next to each other get parentheses (compilers warn)."""
    if precedence in (BIT_OR, BIT_XOR, BIT_AND, SHIFT, LOGICAL_OR):
        return Text(f"{a.at(UNARY)} {operator} {b.at(UNARY)}", precedence)
    return Text(f"{a.at(precedence)} {operator} {b.at(precedence + 1)}", precedence)


def prefix(operator: str, a: Text) -> Text:
    """`operator a`."""
    inner = a.at(UNARY)
    return Text(f"{operator} {inner}" if inner.startswith(operator[-1]) else f"{operator}{inner}", UNARY)


def call(function: str, *args: Text) -> Text:
    """`function(args)`."""
    return Text(f"{function}({', '.join(a.text for a in args)})", ATOM)
