"""Regular expressions over URLs in linear time: rules are written by people and asked about URLs that sites make up.

Backtracking engines need exponential time for some pairs of both (`(a+)+b`), and cubic time for harmless-looking ones
(`.*a.*b`). Here the expression becomes a set of states that are followed all at once (Thompson 1968), and sets that
were met before are remembered as states of a deterministic automaton: a URL costs one look-up a character.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streams.errors import UsageError
from streams.policy.regex_syntax import (
    ALL_CHARACTERS,
    WORD_CHARACTERS,
    Assertion,
    Chars,
    Choice,
    Parser,
    Part,
    Repeat,
    Sequence,
)

STATES: Final = 1000
"""States of a pattern; `x{2,5}` counts `x` five times."""

_REMEMBERED: Final = 1000  # sets of states; all are forgotten when there are more: a bound on memory


@dataclass(slots=True)
class _State:
    """A state of the set: eats one of `mask`, or passes if `assertion` holds here ("" always); then `targets`."""

    mask: int = 0
    assertion: str = ""
    targets: list[int] = field(default_factory=list)


class _States:
    """The states of a pattern; `ACCEPT` is reached by a match."""

    ACCEPT: Final = 0

    def __init__(self, part: Part, pattern: str) -> None:
        self._pattern = pattern
        self.all = [_State()]
        self.first = self._add(part, self.ACCEPT)

    def _new(self, state: _State) -> int:
        if len(self.all) >= STATES:
            raise UsageError(
                f"the regular expression {self._pattern[:100]!r} is too large",
                "Repeat less with {…}, or use two rules.",
            )
        self.all.append(state)
        return len(self.all) - 1

    def _add(self, part: Part, after: int) -> int:
        """The state at which `part` begins, when `after` comes behind it."""
        match part:
            case Chars(mask):
                return self._new(_State(mask, targets=[after]))
            case Assertion(kind):
                return self._new(_State(assertion=kind, targets=[after]))
            case Sequence(parts):
                for each in reversed(parts):
                    after = self._add(each, after)
                return after
            case Choice(options):
                return self._new(_State(targets=[self._add(option, after) for option in options]))
            case Repeat(inner, least, most):
                return self._repeated(inner, least, most, after)

    def _repeated(self, part: Part, least: int, most: int | None, after: int) -> int:
        entry = after
        if most is None:
            entry = self._new(_State())
            self.all[entry].targets = [self._add(part, entry), after]
        else:
            for _ in range(most - least):
                entry = self._new(_State(targets=[self._add(part, entry), after]))
        for _ in range(least):
            entry = self._add(part, entry)
        return entry


class _Known:
    """A set of states that was met, before a character: what comes after each of the 128 characters, and the end."""

    __slots__ = ("after", "matches_at_end", "previous", "states")

    def __init__(self, states: frozenset[int], previous: int) -> None:
        self.states = states
        self.previous = previous  # mask of the character before; 0 at the beginning
        self.after: list[_Known | None] = [None] * 128
        self.matches_at_end: bool | None = None


_MATCHED: Final = _Known(frozenset(), 0)


class LinearRegex:
    """A compiled pattern. Raises `UsageError` for one that cannot be used."""

    def __init__(self, pattern: str) -> None:
        part = Parser(pattern).parse()
        states = _States(part, pattern)
        self._states = states.all
        self._first = states.first
        self._literal = _longest_literal(part)
        self._forget()

    def found_in(self, text: str) -> bool:
        """Whether it matches anywhere in `text`, which should be ASCII; other characters count as `?`."""
        if self._literal not in text:
            return False
        known = self._begin
        for code in text.encode("ascii", "replace"):
            after = known.after[code]
            if after is None:
                after = known.after[code] = self._step(known, code)
            if after is _MATCHED:
                return True
            known = after
        if known.matches_at_end is None:
            known.matches_at_end = self._closure(known, 0) is None
        return known.matches_at_end

    def _forget(self) -> None:
        self._begin = _Known(frozenset(), 0)
        self._known = {(self._begin.states, 0): self._begin}

    def _step(self, known: _Known, code: int) -> _Known:
        """What is known after one more character."""
        character = 1 << code
        reached = self._closure(known, character)
        if reached is None:
            return _MATCHED
        states = frozenset(
            target
            for state in reached
            if self._states[state].mask & character
            for target in self._states[state].targets
        )
        word = character & WORD_CHARACTERS and WORD_CHARACTERS  # only this is asked of the character before
        key = (states, word or ALL_CHARACTERS)
        after = self._known.get(key)
        if after is None:
            if len(self._known) >= _REMEMBERED:
                self._forget()
            after = self._known[key] = _Known(*key)
        return after

    def _closure(self, known: _Known, following: int) -> set[int] | None:
        """The states that wait for a character, reached without one; None: a match. `following`: 0 at the end."""
        reached: set[int] = set()
        open_ = [self._first, *known.states]  # a match may begin anywhere
        while open_:
            number = open_.pop()
            if number in reached:
                continue
            if number == _States.ACCEPT:
                return None
            reached.add(number)
            state = self._states[number]
            if not state.mask and _holds(state.assertion, known.previous, following):
                open_ += state.targets
        return reached


def _holds(assertion: str, previous: int, following: int) -> bool:
    """Whether an assertion holds between two characters; 0 stands for the edge of the text."""
    match assertion:
        case "":
            return True
        case "begin":
            return not previous
        case "end":
            return not following
    at_boundary = (previous == WORD_CHARACTERS) != bool(following & WORD_CHARACTERS)
    return at_boundary == (assertion == "boundary")


def _longest_literal(part: Part) -> str:
    """The longest run of characters that every match holds: most URLs lack it, and that is seen at once."""
    best = run = ""
    for each in part.parts if isinstance(part, Sequence) else [part]:
        if isinstance(each, Chars) and each.mask.bit_count() == 1:
            run += chr(each.mask.bit_length() - 1)
        else:
            run = _longest_literal(each) if isinstance(each, Sequence) else ""
        best = max(best, run, key=len)
        if isinstance(each, Sequence):
            run = ""
    return best
