"""What the frontier owes: to a host by definition and robots.txt, to a crawl for every URL that was accepted (pure).

For `fyke audit`, which reads the log and the rows' changelog; how gaps are checked is in `streams.policy.audit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from streams.definitions import CrawlDefinition
from streams.frontier.robots import DELAY_CAP
from streams.frontier.rows import OPEN, State
from streams.messages import Candidates, FetchOutcome, Inbox, Links
from streams.policy.audit import Owed
from streams.policy.limits import LimitRules
from streams.policy.politeness import Limits

MOST: Final = 2**31
"""Stands for any number of requests."""

Account = Literal["open", "done", "failed", "excluded", "redirected", "removed", "late", "lost", "left open"]
"""Where an accepted URL stands. Offenders are `lost` (no row) and `left open` (its crawl has ended without it)."""

OFFENDERS: Final[tuple[Account, ...]] = ("lost", "left open")

_TERMINAL: Final[dict[State, Account]] = {
    State.DONE: "done", State.FAILED: "failed", State.EXCLUDED: "excluded", State.REDIRECTED: "redirected",
}  # fmt: skip


def account(state: State | None, named: int, crawl: CrawlDefinition | None, *, removed: bool = False) -> Account:
    """Where a URL stands by its row's state (None: it has no row), `named` (ms) being when a message named it.

    `removed`: its row was deleted on purpose (forgotten, or expired with its crawl). A URL named after its crawl's end,
    or in a crawl that is not defined (any more), is kept out without a row. A crawl that somebody cancelled drops
    what is on its way, and its last orders may still be out.
    """
    if state is not None and state not in OPEN:
        return _TERMINAL[state]
    if removed:
        return "removed"
    ended = crawl is not None and crawl.state == "ended"
    exact = crawl is not None and crawl.result != "cancelled"
    if state is not None:
        return "left open" if ended and exact else "open"
    if crawl is None or (ended and (not exact or named > crawl.ended)):
        return "late"
    return "lost"


@dataclass(frozen=True, slots=True)
class Named:
    """A URL that a message asks the frontier to look after."""

    fingerprint: bytes
    crawl: str
    url: str


def named_in(message: Inbox) -> Iterable[Named]:
    """The URLs that a message names: seeds, redirect targets, links."""
    if isinstance(message, Candidates):
        return [Named(item.fingerprint, item.crawl, item.url) for item in message.items]
    if isinstance(message, Links):
        joined = message.fingerprints
        return [Named(joined[16 * i : 16 * i + 16], message.crawl, url) for i, url in enumerate(message.urls)]
    return ()


class Duties:
    """The least that a request's crawl and robots.txt ask for, learned from the definitions and robots outcomes read.

    What neither names is not known: then nothing is owed. A version of robots rules is the hash of what it says, so its
    delay is the same wherever it was seen. A crawl's limit rules are about URLs: a robots.txt is asked for under the
    strictest that can apply to its host, which is not worked out here.
    """

    def __init__(self) -> None:
        self._crawls: dict[str, dict[int, tuple[LimitRules, int]]] = {}  # by version: its rules, when it came
        self._delays: dict[str, float] = {}

    def defined(self, definition: CrawlDefinition, at: int) -> None:
        """A version of a crawl, in the log since `at` (ms). Of two with one number the first holds, as for workers."""
        self._crawls.setdefault(definition.id, {}).setdefault(definition.version, (LimitRules(definition), at))

    def learn(self, outcome: FetchOutcome) -> None:
        """A robots.txt was read."""
        rules = outcome.robots_rules
        if rules is not None and rules.crawl_delay:
            self._delays[rules.version] = min(rules.crawl_delay, DELAY_CAP)

    def owed(self, outcome: FetchOutcome) -> Owed:
        """Delay and parallelism that hold for the requests of an outcome at the least; parallelism 0: any.

        Where the next version is not in the log any more, nobody knows since when another one held: always, then.
        """
        versions = self._crawls.get(outcome.crawl, {})
        known = versions.get(outcome.rules)
        newer = [rules for version, (rules, _) in versions.items() if version > outcome.rules]
        if not newer:
            return Owed(self._least(outcome, known[0] if known else None))
        _, since = versions.get(outcome.rules + 1, (None, 1))
        later = [self._least(outcome, rules) for rules in newer]
        kindest = Limits(min(each.delay for each in later), max(each.parallelism or MOST for each in later))
        return Owed(self._least(outcome, known[0] if known else None), since, kindest)

    def _least(self, outcome: FetchOutcome, rules: LimitRules | None) -> Limits:
        delay = self._delays.get(outcome.robots, 0.0)
        if rules is None or (rules.rules and outcome.kind == "robots"):
            return Limits(delay, 0)
        values = rules.for_url(outcome.url)
        delay = delay if values.robots else 0.0
        return Limits(max(delay, values.limits.delay), values.limits.parallelism)
