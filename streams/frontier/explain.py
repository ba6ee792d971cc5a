"""Why a URL is where it is: what it waits for, what it came to, or which rule keeps it out. Pure; for `fyke why`.

Rows say most of it. What only the shard's owner has in memory (orders that are out, the host's next turn) comes as
`Facts` and may be absent: then the answer is as good as the rows. Of several reasons to wait the one is given that
holds longest or that a person can do something about.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier import budgets
from streams.frontier.candidates import kept_out, ruled_out
from streams.frontier.index import queue_entry, queue_prefix
from streams.frontier.novelty import no_news
from streams.frontier.reasons import RETRY_AFTER, Reason, excluded_by, failed_with
from streams.frontier.robots import RobotsGate
from streams.frontier.rows import HostRow, State, UrlRow
from streams.frontier.turn import RowReader
from streams.policy.bounds import bounds_of
from streams.policy.keys import SAFE, canonical_by
from streams.policy.limits import LimitRules
from streams.policy.retry import phase
from streams.policy.urls import PolitenessMode, fingerprint

COUNTED = 10_000
"""URLs that stand before one in its queue are counted up to so many."""
SOON = 1000
"""ms; a host whose turn is nearer than this waits for nothing."""

Witness = Literal["worker", "state", "changelog"]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer. `reason` is for programs: the kind of wait, the failure class or the rule; `text` for people.

    `state` is that of the row in lower case, or `unknown`. `before`: URLs that stand before it in its queue, at least
    as many if `more`. Times in ms. `witness`: who was asked; `at`: as of when.
    """

    url: str
    crawl: str
    state: str
    reason: str
    text: str
    advice: str = ""
    witness: Witness = "worker"
    at: int = 0
    until: int = 0
    visit: int = 0
    attempt: int = 0
    depth: int = 0
    priority: int = 0
    before: int | None = None
    more: bool = False
    host: str = ""
    status: int = 0
    visited: int = 0
    failure: str = ""
    page: tuple[int, int] | None = None
    parent: str = ""
    via: tuple[str, ...] = ()
    rules: int = 0  # version of the crawl's definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What only the shard's owner knows of a waiting URL. Times in ms."""

    out: int = 0  # since when its order is out; 0: it is not
    next_at: float = 0.0  # when its host has its next turn
    robots_out: bool = False  # its host's robots.txt is being fetched
    held: bool = False  # its crawl may not go on
    unplaced: bool = False  # all places that its crawl's page limit leaves are out
    behind: bool = False  # the parsers are too far behind
    full: bool = False  # as many orders are out as may be


def fingerprint_of(url: str, crawl_id: str, crawl: CrawlDefinition | None) -> bytes:
    """The fingerprint of a URL (wire form) in a crawl that is defined as `crawl`, or not at all."""
    return fingerprint(crawl_id, canonical_by(crawl.keys if crawl is not None else SAFE)(url))


class Place(NamedTuple):
    """How many stand before a URL in its queue; at least so many if `more`."""

    before: int
    more: bool


def place_of(store: RowReader, row: UrlRow, out: Container[bytes] = ()) -> Place | None:
    """A waiting row's place among its crawl's URLs on its host; None for one that waits for a time. `out`: are out."""
    if row.state is not State.WAITING or row.due:
        return None
    own = queue_entry(row)
    before = 0
    entries = store.scan(queue_prefix(row.host, row.crawl, revisits=row.kept), limit=COUNTED + 1)
    for entry, other in entries:
        if entry >= own:
            return Place(before, more=False)
        before += other not in out
    return Place(min(before, COUNTED), more=len(entries) > COUNTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is known when somebody asks about a URL. `row` None: the shard has none; `facts` None: its owner is away."""

    url: str
    crawl_id: str
    row: UrlRow | None
    host: HostRow
    crawl: CrawlDefinition | None
    now: int
    politeness: PolitenessMode = "host"
    facts: Facts | None = None
    place: Place | None = None
    witness: Witness = "worker"

    def answer(self) -> Explanation:
        """Explain it."""
        row = self.row
        rules = self.crawl.version if self.crawl is not None else 0
        if row is None:
            reason = _unmet(self)
            return Explanation(
                url=self.url, crawl=self.crawl_id, state="unknown", reason=reason.id, text=reason.text,
                advice=reason.advice, witness=self.witness, at=self.now, rules=rules,
            )  # fmt: skip
        reason = _waiting(self, row) if row.state is State.WAITING else _settled(self, row)
        if row.open and row.then is not None:
            reason = reason._replace(text=f"{reason.text} A seed came meanwhile that wants one more visit after it.")
        place = self.place
        return Explanation(
            url=row.url, crawl=row.crawl, state=row.state.name.lower(), reason=reason.id, text=reason.text,
            advice=reason.advice, witness=self.witness, at=self.now, until=reason.until, visit=row.visit,
            attempt=row.attempt, depth=row.depth, priority=row.priority, before=place.before if place else None,
            more=bool(place and place.more), host=row.host, status=row.status, visited=row.visited,
            failure=_failure(row), page=row.page, parent=row.parent, via=row.via, rules=rules,
        )  # fmt: skip


# --- a URL that has no row


def _unmet(asked: Inquiry) -> Reason:
    """What would become of a URL that nobody has named yet, by the rules that hold now."""
    crawl = asked.crawl
    if crawl is None:
        return Reason("no_crawl", f"No crawl is called {asked.crawl_id}.",
                      "`fyke status` lists the crawls; name one with --crawl.")  # fmt: skip
    if crawl.state == "ended":
        return Reason("ended", f"It has no row, and crawl {crawl.id} has ended ({crawl.result or 'ended'}): what is "
                      "named now is kept out. If it was crawled, its row may have expired since.",
                      "Crawl again, or look for it in the output.")  # fmt: skip
    if rule := kept_out(asked.url, 0, crawl) or bounds_of(crawl).trap(asked.url, asked.now):
        reason = excluded_by(rule, crawl)
        return reason._replace(text=f"It has no row. By the rules of now it would be kept out: {reason.text}")
    if _obeys_robots(asked, asked.url) and not _allowed(asked):
        reason = excluded_by("robots", crawl)
        return reason._replace(text=f"It has no row. By the rules of now it would be kept out: {reason.text}")
    return Reason(
        "not_met", "It has no row: no seed, link or redirect has named it so far. Neither scope nor robots.txt as they "
        "are known now would keep it out; how deep it lies cannot be known.",
        f"Hand it in: fyke seed {asked.url} --crawl {crawl.id}",
    )  # fmt: skip


def _obeys_robots(asked: Inquiry, url: str) -> bool:
    return asked.crawl is not None and LimitRules(asked.crawl, asked.politeness).for_url(url).robots


def _allowed(asked: Inquiry) -> bool:
    """Whether the rules of robots.txt that were read last, be they old, let a URL be fetched; unknown rules do."""
    verdict = RobotsGate(asked.politeness).ask(asked.host, asked.url, 0)
    return bool(verdict.order or verdict.hold_until or verdict.unreachable) or verdict.allowed


# --- a URL that waits


def _waiting(asked: Inquiry, row: UrlRow) -> Reason:
    """The first reason that holds, in the order in which the frontier asks."""
    reasons = (_order_out, _by_definition, _by_time, _by_window, _by_host, _by_robots, _by_load, _by_turn)
    return next(reason for ask in reasons if (reason := ask(asked, row)) is not None)


def _order_out(asked: Inquiry, _row: UrlRow) -> Reason | None:
    facts = asked.facts
    if facts is None or not facts.out:
        return None
    return Reason(
        "out", f"Its order has been with the fetchers since {_at(facts.out)}; the answer is awaited.",
        "If that lasts, look at the fetchers: `fyke status` shows how far they are behind.",
    )  # fmt: skip


def _by_definition(asked: Inquiry, row: UrlRow) -> Reason | None:
    crawl, facts = asked.crawl, asked.facts
    if crawl is None:
        return Reason("no_crawl", f"The definition of crawl {row.crawl} is not known (any more).",
                      "Publish it again, or forget the URL.")  # fmt: skip
    if crawl.state == "paused":
        return Reason("paused", f"Crawl {crawl.id} is paused.", f"Let it go on: fyke unpause {crawl.id}")
    if rule := _over(crawl, asked.now) or _ruled_out(asked, row, crawl):
        reason = excluded_by(rule, crawl)
        return reason._replace(text=f"It is about to be excluded: {reason.text}")
    if facts is not None and facts.held:
        return Reason("concurrency", f"As many orders of crawl {crawl.id} are out as its concurrency lets out.",
                      "It goes out when others are answered; a higher concurrency makes it sooner.")  # fmt: skip
    if facts is not None and facts.unplaced:
        return Reason("limit", f"All pages that the limit of crawl {crawl.id} leaves are out already; it is excluded "
                      "when they succeed.", f"Raise the limit ({crawl.limit:,} pages) if it is needed.")  # fmt: skip
    return None


def _ruled_out(asked: Inquiry, row: UrlRow, crawl: CrawlDefinition) -> str:
    on_host = budgets.over_on_host(crawl, asked.host)
    if row.kept and on_host in budgets.ABOUT_PAGES:
        on_host = ""
    return ruled_out(row, crawl, asked.now) or no_news(asked.host, row, crawl) or on_host


def _over(crawl: CrawlDefinition, now: int) -> str:
    """What the definition alone says; how much was fetched only the owner knows."""
    if crawl.state == "ended":
        return "cancelled" if crawl.result == "cancelled" else "ended"
    return "deadline" if now >= budgets.deadline(crawl) else ""


def _by_time(asked: Inquiry, row: UrlRow) -> Reason | None:
    if row.due <= asked.now:
        return None
    if not row.outcome:
        return _shut(row, row.due)
    attempts = asked.crawl.attempts if asked.crawl is not None else 0
    status = f" ({row.status})" if row.status else ""
    return Reason("retry", f"Attempt {row.attempt} of {attempts} failed with {row.outcome}{status}; the next one is "
                  f"due at {_at(row.due)}.", f"See what happened: fyke failures --crawl {row.crawl} --host {row.host}",
                  row.due)  # fmt: skip


def _by_window(asked: Inquiry, row: UrlRow) -> Reason | None:
    """The time window of its own rule, or of one about its whole host."""
    rules = LimitRules(asked.crawl or CrawlDefinition(id=row.crawl), asked.politeness)
    openings = (rules.for_url(row.url).opening(asked.now), rules.for_host(row.host).opening(asked.now))
    shut = max((opening.until for opening in openings if not opening.open), default=0)
    if not shut:
        return None
    return _shut(row, shut)


def _shut(row: UrlRow, until: int) -> Reason:
    return Reason("window", f"Its rule lets it be fetched from {_at(until)} on.",
                  f"Which rule: fyke rules test {row.url} --crawl {row.crawl}", until)  # fmt: skip


def _by_host(asked: Inquiry, row: UrlRow) -> Reason | None:
    host, now = asked.host, asked.now
    if host.not_before > max(now, host.breaker.until):
        return Reason("retry_after", f"{row.host} is left alone until {_at(host.not_before)}: it asked for that, or "
                      "it is overloaded.", RETRY_AFTER, host.not_before)  # fmt: skip
    now_is = phase(host.breaker, now)
    if now_is == "closed":
        return None
    since, probes = _at(host.breaker.since), host.breaker.probes
    advice = f"Is the host up? See what happened: fyke failures --host {row.host}"
    if now_is == "open":
        return Reason("breaker", f"{row.host} has failed since {since} ({probes} failed probes); the next probe goes "
                      f"out at {_at(host.breaker.until)}. Waiting uses no attempts.", advice,
                      host.breaker.until)  # fmt: skip
    return Reason("probe", f"{row.host} has failed since {since}; one URL is fetched to see whether it is back.",
                  advice)  # fmt: skip


def _by_robots(asked: Inquiry, row: UrlRow) -> Reason | None:
    crawl, facts = asked.crawl, asked.facts
    if not _obeys_robots(asked, row.url):
        return None
    verdict = RobotsGate(asked.politeness).ask(asked.host, row.url, asked.now)
    if verdict.order:
        how = "is being fetched" if facts is not None and facts.robots_out else "must be fetched"
        return Reason("robots", f"{verdict.order}/robots.txt {how} first.", "It waits for that as long as it takes.")
    if verdict.unreachable:
        return Reason("robots_unreachable", f"It is about to fail: robots.txt of its origin could not be read "
                      f"({verdict.unreachable.reason}), and is not waited for any longer.",
                      f"See what happened: fyke failures --host {row.host}")  # fmt: skip
    if verdict.hold_until:
        return Reason("robots_unreachable", "robots.txt of its origin cannot be read, which forbids everything until "
                      f"it can (RFC 9309 §2.3.1.4); the next try is at {_at(verdict.hold_until)}.",
                      f"See what happened: fyke failures --host {row.host}", verdict.hold_until)  # fmt: skip
    if not verdict.allowed:
        reason = excluded_by("robots", crawl)
        return reason._replace(text=f"It is about to be excluded: {reason.text}")
    return None


def _by_load(asked: Inquiry, row: UrlRow) -> Reason | None:
    facts = asked.facts
    if facts is None:
        return Reason("owner_away", f"It stands in the queue of {row.host}{_before(asked.place)}, but the frontier "
                      "worker of its shard does not answer: nothing is released until one runs.",
                      "Start one: fyke worker frontier, or fyke resume.")  # fmt: skip
    if facts.behind:
        return Reason("parser", "Nothing is released while so many pages wait for the parsers.",
                      "Add parsers, or look into their logs.")  # fmt: skip
    if facts.full:
        return Reason("release_cap", "As many orders are out as the fetchers are expected to answer soon.",
                      "It goes out when others are answered; more fetchers make it sooner.")  # fmt: skip
    return None


def _by_turn(asked: Inquiry, row: UrlRow) -> Reason:
    facts, before = asked.facts, _before(asked.place)
    if facts is not None and facts.next_at - asked.now > SOON:
        return Reason("delay", f"{row.host} has its next turn at {_at(round(facts.next_at))}{before}.",
                      "The delay between two requests to a host is part of the crawl's definition.",
                      round(facts.next_at))  # fmt: skip
    return Reason("queue", f"It stands in the queue of {row.host}{before}.", "It goes out when its turn comes.")


def _before(place: Place | None) -> str:
    return "" if place is None else f"; {place.before:,}{' or more' if place.more else ''} of its crawl stand before it"


# --- a URL whose visit is over, or nearly


def _settled(asked: Inquiry, row: UrlRow) -> Reason:
    when = _at(row.visited)
    if row.state is State.FETCHED:
        return Reason("parsing", f"It was fetched at {when}; its page waits for the parser.",
                      "If that lasts, look at the parsers: `fyke status` shows how far they are behind.")  # fmt: skip
    reason = _ended(asked, row, when)
    again = f" It is visited again at {_at(row.due)}." if row.due else ""
    return reason._replace(text=reason.text + again, until=row.due)


def _ended(asked: Inquiry, row: UrlRow, when: str) -> Reason:
    """How the last visit ended."""
    if row.state is State.DONE:
        return Reason("done", f"It was fetched ({row.status}) and parsed at {when}.", "")
    if row.state is State.REDIRECTED:
        return Reason("redirected", f"It answered {row.status} at {when} and led to another URL, which is crawled in "
                      "its place.", "Ask about that one; its `via` names this one.")  # fmt: skip
    if row.state is State.FAILED:
        return failed_with(row.outcome, row.status, row.attempt + 1, when, row.crawl)
    reason = excluded_by(row.outcome, asked.crawl)
    return reason._replace(text=f"Excluded at {when}: {reason.text}")


def _failure(row: UrlRow) -> str:
    """The class of the last failure that is not resolved."""
    if row.state is State.FAILED or (row.state is State.WAITING and row.attempt):
        return row.outcome
    return row.unresolved.failure if row.unresolved else ""


def _at(ms: int) -> str:
    """A time for people, in UTC to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
