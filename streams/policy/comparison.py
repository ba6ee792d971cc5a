"""What another set of rules would have changed: two versions of a definition compared on the same URLs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from streams.policy.limits import Effective, LimitRules

EXAMPLES: Final = 3

Kept = Callable[[str, int], str]
"""The rule that keeps a URL at a depth out of a crawl, "" for none."""


@dataclass(slots=True)
class Change:
    """One kind of change: how often, and some URLs."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, url: str) -> None:
        """One more."""
        self.count += 1
        if len(self.examples) < EXAMPLES and url not in self.examples:
            self.examples.append(url)


@dataclass(frozen=True, slots=True)
class Asked:
    """A URL that was ordered, at depth `depth` and time `at` (ms)."""

    url: str
    depth: int
    at: int


@dataclass(slots=True)
class Comparison:
    """Differences over `orders` URLs; `changed`: those with any. `by_rule`: how many a new rule decides about."""

    orders: int = 0
    changed: int = 0
    changes: dict[str, Change] = field(default_factory=dict)
    by_rule: Counter[str] = field(default_factory=Counter)


def compare(asked: Iterable[Asked], before: LimitRules, after: LimitRules, old: Kept, new: Kept) -> Comparison:
    """What `after` and `new` would have changed."""
    found = Comparison()
    for order in asked:
        found.orders += 1
        now = after.for_url(order.url)
        found.by_rule[now.rule] += 1
        what = list(_scope(old(order.url, order.depth), new(order.url, order.depth)))
        what += _values(before.for_url(order.url), now, order.at)
        found.changed += bool(what)
        for each in what:
            found.changes.setdefault(each, Change()).note(order.url)
    return found


def _scope(old: str, new: str) -> Iterator[str]:
    if bool(old) != bool(new):
        yield f"kept out by {new}" if new else f"no longer kept out by {old}"


def _values(old: Effective, new: Effective, at: int) -> Iterator[str]:
    """The values that differ, in words."""
    for name, before, after in zip(_NAMES, _parts(old), _parts(new), strict=True):
        if before != after:
            yield f"{name}: {_text(before)} → {_text(after)}"
    if old.opening(at).open != new.opening(at).open:
        yield "ordered outside of its time window" if not new.opening(at).open else "no longer outside of its window"


_NAMES: Final = (
    "delay", "random_delay", "parallelism", "robots", "user_agent", "headers", "timeout", "max_body", "accept",
    "recrawl",
)  # fmt: skip


_UNSET: Final = {
    **dict.fromkeys(("user_agent", "timeout", "max_body"), "as the workers are set"), "recrawl": "no"
}  # fmt: skip


def described(values: Effective) -> dict[str, str]:
    """The values of a rule by their names, for people."""
    found = zip(_NAMES, _parts(values), strict=True)
    return {name: _text(value) if value else _UNSET.get(name, _text(value)) for name, value in found}


def _parts(values: Effective) -> tuple[object, ...]:
    limits = values.limits
    return (
        limits.delay, limits.random_delay, limits.parallelism, values.robots, values.user_agent,
        dict(sorted(values.headers.items())), values.timeout, values.max_body, values.accept, values.recrawl,
    )  # fmt: skip


def _text(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float() | int():
            return f"{value:g}" if value else "0"
        case tuple():
            return ", ".join(map(str, value)) or "all"
        case dict():
            return ", ".join(f"{name}: {text}" for name, text in value.items()) or "none"
    return str(value) if value else "none"
