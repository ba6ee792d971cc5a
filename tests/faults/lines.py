"""A line of the fault table: what is done to a crawl, how much of it, and what must hold all the same.

A line's `run` is given a bench and a dose and returns a verdict. Modules list their lines in `LINES`; the table's order
is that of `tests.faults.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.bench import Bench

Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Dose:
    """How much: `times` the fault happens, over `seconds`, in a crawl of `size` pages (or what the line counts)."""

    text: str
    times: int = 1
    seconds: float = 0.0
    size: int = 0

    def lasting(self, seconds: float) -> Dose:
        """The same for another time, in a crawl as much larger or smaller. ValueError if it has no time of its own."""
        if not self.seconds:
            raise ValueError(f"the dose lasts as long as it takes: {self.text}")
        share = seconds / self.seconds
        text = f"{share:.3g} of: {self.text}"
        return replace(self, text=text, seconds=seconds, size=max(1, round(self.size * share)))


@dataclass(slots=True)
class Verdict:
    """What a line found. It holds if there are no `problems`; `figures` are measured, and printed either way."""

    figures: dict[str, Figure] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all that must hold does."""
        return not self.problems

    def require(self, condition: bool, problem: str) -> None:
        """Note a problem unless the condition is met."""
        if not condition:
            self.problems.append(problem)

    def add(self, other: Verdict, prefix: str = "") -> None:
        """Take over what a part of the line found."""
        self.figures |= {prefix + name: value for name, value in other.figures.items()}
        self.problems += [prefix + problem for problem in other.problems]


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table. `short` None: only in the long form."""

    name: str
    fault: str
    holds: str
    run: Callable[[Bench, Dose], Verdict]
    long: Dose
    short: Dose | None

    def dose(self, *, short: bool) -> Dose | None:
        """The dose of one of the two forms."""
        return self.short if short else self.long


def named(lines: tuple[Line, ...], name: str) -> Line:
    """The line of that name. KeyError with all names if there is none."""
    by_name: Mapping[str, Line] = {line.name: line for line in lines}
    if name not in by_name:
        raise KeyError(f"no line {name!r}; there are: {', '.join(by_name)}")
    return by_name[name]
