"""Patterns with `*` for any characters: robots.txt paths (RFC 9309 §2.2.3), host names, parameter names."""

from __future__ import annotations


class Glob:
    """A beginning: literal pieces between stars, held to the end by a final `$`. Matches in linear time."""

    __slots__ = ("head", "held", "middle", "probe", "tail")

    def __init__(self, pattern: str) -> None:
        self.held = pattern.endswith("$")
        self.head, *pieces = pattern.removesuffix("$").split("*")
        self.tail = pieces.pop() if self.held and pieces else None
        self.middle = tuple(piece for piece in pieces if piece)
        self.probe = max((self.head, *self.middle, self.tail or ""), key=len)
        """The longest literal: a text without it cannot match."""

    @property
    def literal(self) -> bool:
        """Whether this is a plain prefix."""
        return not self.held and not self.middle

    def matches(self, text: str) -> bool:
        """Each star takes as little as it can: if any way of matching exists, so does this one."""
        if not text.startswith(self.head):
            return False
        at = len(self.head)
        for piece in self.middle:
            found = text.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        if self.tail is not None:
            return text.endswith(self.tail) and len(text) - len(self.tail) >= at
        return not self.held or at == len(text)
