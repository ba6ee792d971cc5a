"""The checker: a verdict for every URL, from facts that were collected. Pure; its own tests are tables.

    right             one terminal row, of the kind that the site says, and its line exported once
    lost              no terminal row, or no line
    unexpected        a row, line or request that the site does not account for
    duplicated        a line exported twice, or two rows
    fetched too often more often than its orders were out, unanswered, at a fault

and for the crawl as a whole: politeness broken (the server's log), the end unseen or early, commits that moved
backwards or over work that was not done (`tests.faults.acks`), messages left unread.

What may be repeated is bounded twice: for each URL by the number of faults at which its order was out, in all by the
number of orders that were out at the moments of the faults, and when fetchers changed places for them (who comes back
takes partitions from another). Only faults that can make a fetcher ask again count: those of parsers and exporters
cannot, and several at one moment are one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from streams.frontier.rows import OPEN, State
from tests.faults.acks import ack_problems
from tests.faults.facts import Commit, Facts, Visit
from tests.faults.lines import Verdict
from tests.faults.site import Fate
from tests.servers.hosts import Entry

Finding = Literal["right", "lost", "unexpected", "duplicated", "fetched too often"]

ROUNDING: Final = 0.001
"""Seconds: times of both witnesses may be off by so much."""

LAST_CHECK: Final = 0.1
"""Seconds after a frozen fetcher goes on in which it sends what was past its last check: one request of a host."""

LATE: Final = 40.0
"""Seconds after a fault was to be over in which a worker that was killed may still come back: machines are loaded."""

Window = tuple[float, float]
"""From, to; seconds since the epoch."""

SHOWN: Final = 8

_STATES: Final[Mapping[State, Fate]] = {
    State.DONE: "done", State.FAILED: "failed", State.REDIRECTED: "redirected", State.EXCLUDED: "excluded",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was done to the crawl from `at` until `until`, when it was surely over (seconds since the epoch).

    `thawed`: a process was stopped at `at` and went on then; by `looked` it had surely looked again at what it may do.
    `stage`: to whose workers, if to those of one only.
    """

    what: str
    at: float
    until: float
    thawed: float = 0.0
    stage: str = ""
    looked: float = 0.0

    @property
    def excuses(self) -> bool:
        """Whether a request may be on its way from a process that was stopped after its last check."""
        return bool(self.thawed) and self.stage in ("", "fetcher")

    @property
    def thaw(self) -> Window:
        """When that request leaves: at once, on a machine that is not loaded."""
        return self.thawed, max(self.looked, self.thawed + LAST_CHECK)

    @property
    def refetches(self) -> bool:
        """Whether pages may be fetched again for it: what parsers and exporters read is in Kafka."""
        return self.stage not in ("parser", "exporter")

    @property
    def windows(self) -> tuple[Window, ...]:
        """The times in each of which an order that is out may be carried out once more.

        By who takes over; and once more if the process was only stopped, when it is back.
        """
        if self.thawed:
            return (self.at, self.thawed), (self.thawed, self.until)
        return ((self.at, self.until),)


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
    rebalances = facts.rebalances.get("fetcher", ())
    faults = [lasting(fault, rebalances) for fault in faults]
    findings = of_urls(expected, facts, faults)
    count = Counter(findings.urls.values())
    repeated = repeats(facts.requests)
    spans = out_spans(facts.orders, facts.answers)
    allowed = sum(out_at(spans, at) for at in moments(faults, rebalances))
    verdict = Verdict()
    verdict.figures = {
        "URLs": len(expected), **{name: count[name] for name in ("right", "lost", "unexpected", "duplicated")},
        "faults": len(faults), "fetches repeated": repeated, "released and unanswered at the faults": allowed,
        "records repeated in the topic": len(facts.records) - len(set(facts.records)),
    }  # fmt: skip
    verdict.problems += findings.offenders()
    verdict.require(repeated <= allowed, f"{repeated} fetches repeated, {allowed} were out at the faults")
    verdict.require(
        sorted(facts.seeds) == sorted(url for url in expected if url in set(facts.seeds)) and bool(facts.seeds),
        "the journal of seeds is not of this site",
    )
    verdict.problems += end_problems(facts)
    thaws = [fault.thaw for fault in faults if fault.excuses]
    verdict.problems += politeness_problems(facts.requests, limits, thaws)
    verdict.problems += commit_problems(facts.commits)
    verdict.problems += ack_problems(facts)
    verdict.require(not any(facts.unread.values()), f"left unread: {facts.unread}")
    verdict.require(not facts.unreadable, f"{facts.unreadable} messages could not be read")
    return verdict


def lasting(fault: Fault, rebalances: Iterable[float]) -> Fault:
    """A fault lasts until fetchers have changed places for the last time for it, if that is later than it was to be."""
    late = [at for at in rebalances if fault.until < at <= fault.until + LATE]
    return replace(fault, until=max(late)) if late and fault.refetches else fault


def moments(faults: Sequence[Fault], rebalances: Iterable[float]) -> set[float]:
    """When orders may have changed hands: at faults that do that, and at the rebalances of fetchers they led to."""
    causes = [fault for fault in faults if fault.refetches]
    return {fault.at for fault in causes} | {
        at for at in rebalances if any(fault.at <= at <= fault.until for fault in causes)
    }


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
    windows = {window for fault in faults if fault.refetches for window in fault.windows}
    for url, number in asked.items():
        if expected.get(url, "excluded") == "excluded":
            findings.blame(url, "unexpected", "a request")
            continue
        allowed = 1 + sum(any(a <= until and at <= b for a, b in spans.get(url, ())) for at, until in windows)
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


def politeness_problems(requests: Iterable[Entry], limits: Limits, thaws: Sequence[Window] = ()) -> list[str]:
    """Requests of a host that the server got too close together, or too many at a time.

    A process that is frozen after its last check sends its request when it goes on: that is not promised. So each of
    the `thaws` of a fetcher excuses one request of a host.
    """
    by_host: dict[str, list[Entry]] = defaultdict(list)
    for entry in requests:
        by_host[entry.host].append(entry)
    return [problem for host, found in by_host.items() for problem in _impolite(host, found, limits, list(thaws))]


def _impolite(host: str, requests: Iterable[Entry], limits: Limits, thaws: list[Window]) -> Iterator[str]:
    kept: list[Entry] = []
    for entry in sorted(requests, key=lambda entry: entry.start):
        gap = entry.start - kept[-1].start if kept else limits.delay
        if gap < limits.delay - ROUNDING:
            if _excuse(entry, thaws):
                continue
            if not _excuse(kept[-1], thaws):
                yield f"politeness: {host}: {gap:.4f} s between {kept[-1].uri} and {entry.uri}"
        kept.append(entry)
    if most_at_a_time(kept) > limits.parallelism:
        kept = [entry for entry in kept if not _excuse(entry, thaws)]
        if (most := most_at_a_time(kept)) > limits.parallelism:
            yield f"politeness: {host}: {most} requests at a time"


def _excuse(entry: Entry, thaws: list[Window]) -> bool:
    """Whether a request came right after one of the thaws, which is used up by it."""
    for begin, end in thaws:
        if begin <= entry.start <= end:
            thaws.remove((begin, end))
            return True
    return False


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
