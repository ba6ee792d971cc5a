"""The syntax of regular expressions that `streams.policy.regex` can follow in linear time, read into parts.

It is Python's, without what no finite automaton can do (references back, looking around, atomic groups) and without
flags but a leading `(?i)`. Wire URLs are ASCII, so a pattern with other characters is an error: it could not match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from streams.errors import UsageError

LONGEST: Final = 1000
"""Characters of a pattern."""

_GROUPS: Final = 100
_ASCII: Final = range(128)
ALL_CHARACTERS: Final = (1 << 128) - 1
_QUANTIFIER: Final = re.compile(r"[*+?]|\{(?=[\d,])(\d*)(,?)(\d*)\}")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


def _mask(test: str) -> int:
    """The ASCII characters that `test` matches, one bit each."""
    return sum(1 << code for code in _ASCII if re.match(test, chr(code)))


_KINDS: Final = {kind: _mask("\\" + kind) for kind in "dDwWsS"}
WORD_CHARACTERS: Final = _KINDS["w"]
_ANY: Final = _mask(".")
_LETTERS: Final = (1 << 26) - 1
_HEX: Final = re.compile(r"[0-7][0-9A-Fa-f]")
_OPENING: Final = re.compile(r"\?(?::|P<\w+>)")

_ASSERTIONS: Final = {"A": "begin", "Z": "end", "b": "boundary", "B": "inside"}


@dataclass(slots=True)
class Chars:
    """One character of a set: `mask` has a bit for each ASCII code."""

    mask: int


@dataclass(slots=True)
class Assertion:
    """A place: `begin` or `end` of the text, `boundary` of a word, or `inside` (no boundary)."""

    kind: str


@dataclass(slots=True)
class Sequence:
    """One after the other."""

    parts: list[Part]


@dataclass(slots=True)
class Choice:
    """Any one of them."""

    options: list[Part]


@dataclass(slots=True)
class Repeat:
    """`part` so many times; `most` None: without end."""

    part: Part
    least: int
    most: int | None


Part = Chars | Assertion | Sequence | Choice | Repeat


class Parser:
    """Reads a pattern; raises `UsageError` that says where it stops making sense."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups = 0
        self._fold = False

    def parse(self) -> Part:
        """The whole pattern."""
        if len(self._pattern) > LONGEST:
            raise self._fault(f"longer than {LONGEST} characters")
        if self._pattern.startswith("(?i)"):
            self._fold, self._at = True, len("(?i)")
        part = self._choice()
        if self._at < len(self._pattern):
            raise self._fault("a `)` that nothing opened")
        return part

    def _fault(self, problem: str) -> UsageError:
        return UsageError(
            f"the regular expression {self._pattern[:100]!r} cannot be used: {problem} at character {self._at + 1}",
            r"Known: literals . [a-z] \d \w \s \b ^ $ | ( ) (?: ) * + ? {2,5}, and (?i) at the very beginning.",
        )

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _choice(self) -> Part:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(options)

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            quantifier = _QUANTIFIER.match(self._pattern, self._at)
            parts.append(part if quantifier is None else self._repeat(part, quantifier))
        return Sequence(parts)

    def _repeat(self, part: Part, quantifier: re.Match[str]) -> Part:
        if isinstance(part, Assertion):
            raise self._fault("nothing to repeat")
        least, most = self._times(quantifier)
        self._at = quantifier.end()
        if self._peek() == "?":
            self._at += 1  # as few as possible: whether there is a match is the same
        elif self._peek() == "+":
            raise self._fault("a possessive quantifier")
        if _QUANTIFIER.match(self._pattern, self._at):
            raise self._fault("a quantifier after a quantifier")
        return Repeat(part, least, most)

    def _times(self, quantifier: re.Match[str]) -> tuple[int, int | None]:
        if quantifier[0] in "*+?":
            return int(quantifier[0] == "+"), 1 if quantifier[0] == "?" else None
        least = int(quantifier[1] or 0)
        if not quantifier[2]:
            return least, least
        most = int(quantifier[3]) if quantifier[3] else None
        if most is not None and most < least:
            raise self._fault("a smallest number above the largest")
        return least, most

    def _atom(self) -> Part:
        if _QUANTIFIER.match(self._pattern, self._at):
            raise self._fault("nothing to repeat")
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return Chars(self._folded(self._class()))
        if character == ".":
            return Chars(_ANY)
        if character in "^$":
            return Assertion("begin" if character == "^" else "end")
        if character == "\\" and self._peek() in _ASSERTIONS:
            return Assertion(_ASSERTIONS[self._next()])
        return Chars(self._folded(self._escape() if character == "\\" else self._literal(character)))

    def _group(self) -> Part:
        self._groups += 1
        if self._groups > _GROUPS:
            raise self._fault(f"more than {_GROUPS} groups")
        if self._peek() == "?":
            opening = _OPENING.match(self._pattern, self._at)
            if opening is None:
                raise self._fault("a group that looks around, refers back or sets flags")
            self._at = opening.end()
        part = self._choice()
        if self._next() != ")":
            raise self._fault("a `)` is missing")
        return part

    def _literal(self, character: str) -> int:
        if not character.isascii():
            raise self._fault("a character that stands in no URL as it goes on the wire (write %C3%A9, xn--…)")
        return 1 << ord(character)

    def _escape(self) -> int:
        """The characters of an escape whose backslash was read."""
        character = self._next()
        if character in _KINDS:
            return _KINDS[character]
        if character == "x" and (digits := _HEX.match(self._pattern, self._at)):
            self._at = digits.end()
            return 1 << int(digits[0], 16)
        if character in _ESCAPED:
            return 1 << ord(_ESCAPED[character])
        if not character or character.isalnum():
            raise self._fault("a reference back" if character.isdigit() else "an unknown escape")
        return self._literal(character)

    def _class(self) -> int:
        """The characters of a class whose `[` was read."""
        negated = self._peek() == "^"
        self._at += negated
        mask = self._class_item()
        while self._peek() != "]":
            mask |= self._class_item()
        self._at += 1
        return ALL_CHARACTERS & ~self._folded(mask) if negated else mask

    def _class_item(self) -> int:
        """A character, an escape or a range; the first one may be `]`."""
        low = self._class_character()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("", "]"):
            return low
        self._at += 1
        high = self._class_character()
        if low.bit_count() > 1 or high.bit_count() > 1 or high < low:
            raise self._fault("a range that ends before it begins")
        return (high << 1) - low

    def _class_character(self) -> int:
        character = self._next()
        if not character:
            raise self._fault("a `]` is missing")
        if character != "\\":
            return self._literal(character)
        if self._peek() == "b":
            self._at += 1
            return 1 << ord("\b")
        return self._escape()

    def _folded(self, mask: int) -> int:
        """Letters in both cases, if the pattern ignores case."""
        if not self._fold:
            return mask
        letters = (mask >> ord("A") | mask >> ord("a")) & _LETTERS
        return mask | letters << ord("A") | letters << ord("a")
