"""The checker: a verdict for every URL, from facts that were collected. Pure; its own tests are tables.

    right             one terminal row, of the kind that the site says, and its line exported once
    lost              no terminal row, or no line
    unexpected        a row, line or request that the site does not account for
    duplicated        a line exported twice, or two rows
    fetched too often more often than its orders were out, unanswered, at a fault

and for the crawl as a whole: politeness broken (the server's log), the end unseen or early, commits that moved
backwards, messages left unread. What may be repeated is bounded twice: for each URL by the number of faults at which
its order was out, in all by the number of orders that were out at the moments of the faults.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from streams.frontier.rows import OPEN, State
from tests.faults.facts import Commit, Facts, Visit
from tests.faults.lines import Verdict
from tests.faults.site import Fate
from tests.servers.hosts import Entry

Finding = Literal["right", "lost", "unexpected", "duplicated", "fetched too often"]

ROUNDING: Final = 0.001
"""Seconds: times of both witnesses may be off by so much."""

LAST_CHECK: Final = 0.1
"""Seconds after a frozen fetcher goes on in which it sends what was past its last check (DESIGN §3)."""

SHOWN: Final = 8

_STATES: Final[Mapping[State, Fate]] = {
    State.DONE: "done", State.FAILED: "failed", State.REDIRECTED: "redirected", State.EXCLUDED: "excluded",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was done to the crawl from `at` until `until`, when it was surely over (seconds since the epoch).

    `frozen`: a process was stopped; at `thawed` it went on.
    """

    what: str
    at: float
    until: float
    thawed: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a host may be asked: `delay` seconds between starts, `parallelism` requests at a time."""

    delay: float
    parallelism: int


@dataclass(slots=True)
class Findings:
    """A verdict per URL, and what is wrong with the whole."""

    urls: dict[str, Finding] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def blame(self, url: str, finding: Finding, why: str) -> None:
        """The first and gravest that is found about a URL counts."""
        if self.urls.get(url, "right") == "right":
            self.urls[url] = finding
            self.why[url] = why

    def offenders(self) -> list[str]:
        """What is printed of them."""
        by_finding: dict[str, list[str]] = defaultdict(list)
        for url, finding in self.urls.items():
            if finding != "right":
                by_finding[finding].append(f"{url} ({self.why[url]})")
        return [f"{finding}: {len(found)}: {', '.join(sorted(found)[:SHOWN])}" for finding, found in by_finding.items()]


def judge(expected: Mapping[str, Fate], facts: Facts, faults: Sequence[Fault], limits: Limits) -> Verdict:
    """All of it."""
    findings = of_urls(expected, facts, faults)
    count = Counter(findings.urls.values())
    repeated = repeats(facts.requests)
    released = {fault.what: 0 for fault in faults}
    spans = out_spans(facts.orders, facts.answers)
    for fault in faults:
        released[fault.what] += out_at(spans, fault.at)
    allowed = sum(released.values())
    verdict = Verdict()
    verdict.figures = {
        "URLs": len(expected), **{name: count[name] for name in ("right", "lost", "unexpected", "duplicated")},
        "faults": len(faults), "fetches repeated": repeated, "released and unanswered at the faults": allowed,
        "records repeated in the topic": len(facts.records) - len(set(facts.records)),
    }  # fmt: skip
    verdict.problems += findings.offenders()
    verdict.require(repeated <= allowed, f"{repeated} fetches repeated, {allowed} were out at the faults: {released}")
    verdict.require(
        sorted(facts.seeds) == sorted(url for url in expected if url in set(facts.seeds)) and bool(facts.seeds),
        "the journal of seeds is not of this site",
    )
    verdict.problems += end_problems(facts)
    verdict.problems += politeness_problems(facts.requests, limits, [fault.thawed for fault in faults if fault.thawed])
    verdict.problems += commit_problems(facts.commits)
    verdict.require(not any(facts.unread.values()), f"left unread: {facts.unread}")
    verdict.require(not facts.unreadable, f"{facts.unreadable} messages could not be read")
    return verdict


# --- every URL


def of_urls(expected: Mapping[str, Fate], facts: Facts, faults: Sequence[Fault] = ()) -> Findings:
    """A finding for every URL that is expected or was met."""
    findings = Findings(dict.fromkeys(expected, "right"))
    _rows(findings, expected, facts)
    _lines(findings, expected, facts)
    _requests(findings, expected, facts, faults)
    return findings


def _rows(findings: Findings, expected: Mapping[str, Fate], facts: Facts) -> None:
    states: dict[str, list[State]] = defaultdict(list)
    for row in facts.rows:
        states[row.url].append(row.state)
    for url, fate in expected.items():
        found = states.pop(url, [])
        if len(found) > 1:
            findings.blame(url, "duplicated", f"{len(found)} rows")
        elif not found or found[0] in OPEN:
            findings.blame(url, "lost", found[0].name.lower() if found else "no row")
        elif _STATES[found[0]] != fate:
            findings.blame(url, "lost", f"{_STATES[found[0]]} instead of {fate}")
    for url in states:
        findings.blame(url, "unexpected", "a row")


def _lines(findings: Findings, expected: Mapping[str, Fate], facts: Facts) -> None:
    written = {
        "done": Counter(url for url, _ in facts.exported_records),
        "failed": Counter(url for url, _, action in facts.exported_failures if action == "none"),
    }
    for fate, lines in written.items():
        for url, number in lines.items():
            if expected.get(url) != fate:
                findings.blame(url, "unexpected", f"exported as {fate}")
            elif number > 1:
                findings.blame(url, "duplicated", f"{number} lines")
        for url in (url for url, wanted in expected.items() if wanted == fate and url not in lines):
            findings.blame(url, "lost", "not exported")


def _requests(findings: Findings, expected: Mapping[str, Fate], facts: Facts, faults: Sequence[Fault]) -> None:
    asked = Counter(url_of(entry) for entry in facts.requests if entry.uri != "/robots.txt")
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (fingerprint, _), found in out_spans(facts.orders, facts.answers).items():
        spans[facts.urls[fingerprint]] += found
    for url, number in asked.items():
        if expected.get(url, "excluded") == "excluded":
            findings.blame(url, "unexpected", "a request")
            continue
        allowed = 1 + sum(any(a <= fault.until and fault.at <= b for a, b in spans.get(url, ())) for fault in faults)
        if number > allowed:
            findings.blame(url, "fetched too often", f"{number} times, {allowed} allowed")
    for url, fate in expected.items():
        if fate != "excluded" and url not in asked:
            findings.blame(url, "lost", "never asked for")


def url_of(entry: Entry) -> str:
    """What a request of the log asked for."""
    return f"http://{entry.host}{entry.uri}"


def repeats(requests: Iterable[Entry]) -> int:
    """Requests that were not the first for their URL, robots.txt left out."""
    asked = Counter(url_of(entry) for entry in requests if entry.uri != "/robots.txt")
    return asked.total() - len(asked)


def out_spans(
    orders: Mapping[Visit, Sequence[float]], answers: Mapping[Visit, Sequence[float]]
) -> dict[Visit, list[tuple[float, float]]]:
    """When each visit was ordered and not answered yet, as (from, to); `inf`: to this day."""
    spans = {}
    for visit, ordered in orders.items():
        events = sorted([*((at, 0) for at in ordered), *((at, 1) for at in answers.get(visit, ()))])
        found: list[tuple[float, float]] = []
        since: float | None = None
        for at, answered in events:
            if answered and since is not None:
                found.append((since, at))
                since = None
            elif not answered and since is None:
                since = at
        if since is not None:
            found.append((since, float("inf")))
        spans[visit] = found
    return spans


def out_at(spans: Mapping[Visit, Sequence[tuple[float, float]]], at: float) -> int:
    """How many visits were ordered and unanswered at a time."""
    return sum(any(since <= at <= until for since, until in found) for found in spans.values())


# --- the whole


def end_problems(facts: Facts) -> list[str]:
    """The end is announced once, and nothing is asked for after it."""
    if not facts.ends:
        return ["the end was not announced"]
    if len(facts.ends) > 1:
        return [f"the end was announced {len(facts.ends)} times"]
    late = [url_of(entry) for entry in facts.requests if entry.start > facts.ends[0] + ROUNDING]
    return [f"{len(late)} requests after the end: {late[:SHOWN]}"] if late else []


def politeness_problems(requests: Iterable[Entry], limits: Limits, thaws: Sequence[float] = ()) -> list[str]:
    """Requests of a host that the server got too close together, or too many at a time."""
    by_host: dict[str, list[Entry]] = defaultdict(list)
    for entry in requests:
        by_host[entry.host].append(entry)
    problems = []
    for host, found in by_host.items():
        found.sort(key=lambda entry: entry.start)
        for earlier, later in pairwise(found):
            gap = later.start - earlier.start
            if gap < limits.delay - ROUNDING and not past_last_check(earlier, later, thaws):
                problems.append(f"politeness: {host}: {gap:.4f} s between {earlier.uri} and {later.uri}")
        most = most_at_a_time([entry for entry in found if not _thawing(entry.start, thaws)])
        if most > limits.parallelism:
            problems.append(f"politeness: {host}: {most} requests at a time")
    return problems


def past_last_check(earlier: Entry, later: Entry, thaws: Sequence[float]) -> bool:
    """Whether one of the two came from a process that was frozen after its last check: that is not promised."""
    return _thawing(earlier.start, thaws) or _thawing(later.start, thaws)


def _thawing(at: float, thaws: Sequence[float]) -> bool:
    return any(0 <= at - thaw <= LAST_CHECK for thaw in thaws)


def most_at_a_time(requests: Iterable[Entry]) -> int:
    """A request is under way from its arrival until its answer leaves."""
    steps = sorted(step for entry in requests for step in ((entry.start, 1), (entry.answered, -1)))
    most = count = 0
    for _, step in steps:
        count += step
        most = max(most, count)
    return most


def commit_problems(commits: Iterable[Commit]) -> list[str]:
    """Commits of a partition that moved backwards: what was done would be done again, or worse."""
    highest: dict[tuple[str, str, int], int] = {}
    problems = []
    for commit in commits:
        place = (commit.group, commit.topic, commit.partition)
        if commit.offset < highest.get(place, 0):
            problems.append(f"a commit moved backwards: {commit}, after {highest[place]}")
        highest[place] = max(commit.offset, highest.get(place, 0))
    return problems[:SHOWN]
