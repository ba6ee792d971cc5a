"""What a build that breaks a promise leaves in the topics is caught: recorded topics, changed as it would, and judged.

The same builds run on a real broker by `make faults LINE=sabotage`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from streams import messages as m
from streams.codecs import encode
from streams.definitions import CrawlDefinition
from streams.frontier.rows import URL_KEY, State, UrlRow, encode_row
from streams.state.fencing import MARKER, MARKER_VALUE, epoch_headers
from tests.faults import checker, facts, tables
from tests.faults.checker import Fault, Limits
from tests.faults.site import Fate
from tests.servers.hosts import Entry

CRAWL, PREFIX, HOST = "c", "p.", "a.test"
COUNT = 8
LIMITS = Limits(delay=1.0, parallelism=1)
VICTIM = 5
"""The page that was being worked on when the worker was killed, or ended."""
URLS = [f"http://{HOST}/p/{number}.html" for number in range(COUNT)]
EXPECTED: dict[str, Fate] = dict.fromkeys(URLS, "done")


@dataclass(frozen=True)
class Log:
    """A record, as the consumer returns it."""

    offset: int
    at: float
    value: bytes | None
    key: bytes = b""
    headers: Sequence[tuple[str, bytes]] = ()
    partition: int = 0

    @property
    def timestamp(self) -> int:
        return round(self.at * 1000)


@dataclass
class Recording:
    """A crawl: its topics, the lines of its exporter, the log of the server."""

    topics: dict[str, list[Log]] = field(default_factory=lambda: {
        name: [] for name in (*facts.READ, facts.CHANGELOG, facts.OFFSETS)
    })  # fmt: skip
    lines: list[tuple[str, int]] = field(default_factory=list)
    requests: list[Entry] = field(default_factory=list)

    def add(self, topic: str, at: float, value: bytes | None, **more: object) -> int:
        offset = len(self.topics[topic])
        self.topics[topic].append(Log(offset, at, value, **more))  # type: ignore[arg-type]  # by name
        return offset

    def commit(self, group: str, topic: str, offset: int, at: float) -> None:
        key = struct.pack(">h", 1) + b"".join(text(PREFIX + name) for name in (group, topic)) + struct.pack(">i", 0)
        self.add(facts.OFFSETS, at, struct.pack(">hq", 3, offset), key=key)

    def drop(self, topic: str, offsets: Iterable[int]) -> None:
        """Those records were never written; the others keep their offsets."""
        gone = set(offsets)
        self.topics[topic] = [record for record in self.topics[topic] if record.offset not in gone]

    def facts(self) -> facts.Facts:
        self.topics[facts.OFFSETS].sort(key=lambda record: record.at)
        found = facts.gather(CRAWL, PREFIX, self.topics)
        found.seeds, found.exported_records, found.requests = URLS[:1], self.lines, self.requests
        return found

    def problems(self) -> str:
        faults = [Fault("kill", 100.0 + VICTIM, 100.5 + VICTIM)]
        return "\n".join(checker.judge(EXPECTED, self.facts(), faults, LIMITS).problems)


def text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def row(url: str, state: State) -> bytes:
    return encode_row(UrlRow(1, state, 0, 0, CRAWL, url, HOST, 1, 0, 0))


def recorded() -> Recording:
    """A page each second, in eight steps, each after the one before it: the crawl of a build that is right."""
    crawl = Recording()
    crawl.add(facts.CHANGELOG, 99.0, MARKER_VALUE, key=MARKER)
    for number, url in enumerate(URLS):
        at, fingerprint = 100.0 + number, bytes([number]) * 16
        of: dict[str, object] = {"crawl": CRAWL, "fingerprint": fingerprint, "visit": 1}
        order = m.FetchOrder(url=url, host=HOST, shard=0, epoch=0, attempt=0, **of)  # type: ignore[arg-type]  # by name
        crawl.add("fetches", at - 0.5, encode(order))
        crawl.requests.append(Entry(at, at + 0.1, at + 0.1, HOST, f"/p/{number}.html", 200))
        page = crawl.add("pages", at + 0.2, b"<p>", headers=(("crawl", CRAWL.encode()),))
        outcome = m.FetchOutcome(url=url, attempt=0, result="fetched", **of)  # type: ignore[arg-type]  # by name
        crawl.add("inbox", at + 0.3, encode(m.Outcomes(items=(outcome,))))
        crawl.commit("fetcher", "fetches", number + 1, at + 0.4)
        record = m.Record(url=url, crawl=CRAWL, visit=1, status=200, content_type="", title="", text="", links=[],
                          link_count=0, depth=0, parent="", fetched_at=0)  # fmt: skip
        crawl.add("records", at + 0.5, encode(record))
        crawl.lines.append((url, 1))
        parsed = m.ParseOutcome(depth=0, page=(0, page), **of)  # type: ignore[arg-type]  # by name
        crawl.add("inbox", at + 0.6, encode(m.Outcomes(items=(parsed,))))
        crawl.commit("parser", "pages", number + 1, at + 0.7)
        crawl.add(facts.CHANGELOG, at + 0.8, row(url, State.DONE), key=URL_KEY + fingerprint, headers=epoch_headers(0))
    crawl.add("crawls", 120.0, encode(CrawlDefinition(id=CRAWL, created=0, version=3, state="ended")))
    return crawl


def left_open(crawl: Recording, number: int, state: State) -> None:
    """A page stays where it is, so the crawl never ends."""
    old = crawl.topics[facts.CHANGELOG][1 + number]
    crawl.topics[facts.CHANGELOG][1 + number] = replace(old, value=row(URLS[number], state))
    crawl.lines.remove((URLS[number], 1))
    crawl.drop("records", [number])
    crawl.topics["crawls"].clear()


def commit_early(crawl: Recording) -> None:
    """The fetcher commits over the order when it takes it, and is killed before it asks."""
    crawl.commit("fetcher", "fetches", VICTIM + 1, 99.6 + VICTIM)
    crawl.drop("inbox", (2 * VICTIM, 2 * VICTIM + 1))
    del crawl.requests[VICTIM]
    left_open(crawl, VICTIM, State.WAITING)


def commit_early_unharmed(crawl: Recording) -> None:
    """As `commit_early`, and nobody dies."""
    crawl.commit("fetcher", "fetches", VICTIM + 1, 99.6 + VICTIM)


def swallow_errors(crawl: Recording) -> None:
    """The brokers refuse a record; the parser says and acks what it would have said of a record that was taken."""
    crawl.drop("records", [VICTIM])
    crawl.lines.remove((URLS[VICTIM], 1))


def drop_last_batch(crawl: Recording) -> None:
    """A parser that ends commits over the pages that it has not sent yet."""
    for number in (VICTIM, VICTIM + 1):
        left_open(crawl, number, State.FETCHED)
    crawl.drop("inbox", (2 * VICTIM + 1, 2 * VICTIM + 3))


def ack_out_of_order(crawl: Recording) -> None:
    """The answer to a later order is there first; the commit moves over both. Nobody dies, so nothing is lost."""
    crawl.drop(facts.OFFSETS, [2 * VICTIM])
    crawl.commit("fetcher", "fetches", VICTIM + 2, 100.2 + VICTIM)


def forget_delay(crawl: Recording) -> None:
    """The fetcher that takes the host over asks at once."""
    crawl.requests[VICTIM] = Entry(100.2 + VICTIM - 1, 100.3 + VICTIM - 1, 100.3 + VICTIM - 1, HOST,
                                   f"/p/{VICTIM}.html", 200)  # fmt: skip


BUILDS: tuple[tuple[Callable[[Recording], None], tuple[str, ...]], ...] = (
    (commit_early, ("lost: 1: http://a.test/p/5.html (waiting)", "not announced", "acked before it was done: 1 ord")),
    (commit_early_unharmed, ("acked before it was done: 1 orders: ['0@5 answered 0.700 s later']",)),
    (swallow_errors, ("lost: 1: http://a.test/p/5.html (not exported)",)),
    (drop_last_batch, ("lost: 2: ", "not announced", "acked before it was done: 2 pages")),
    (ack_out_of_order, ("acked before it was done: 2 orders",)),
    (forget_delay, ("politeness: a.test: 0.2000 s between /p/4.html and /p/5.html",)),
)


def test_rebalances_are_read_beside_the_commits() -> None:
    crawl = recorded()
    crawl.add(facts.OFFSETS, 101.5, b"\0\3...", key=struct.pack(">h", 2) + text(PREFIX + "fetcher"))
    crawl.add(facts.OFFSETS, 102.5, b"\0\3...", key=struct.pack(">h", 2) + text("other.fetcher"))
    assert crawl.facts().rebalances == {"fetcher": [101.5]}
    assert len(crawl.facts().commits) == 2 * COUNT


def test_a_right_build_is_found_right() -> None:
    assert recorded().problems() == ""


@pytest.mark.parametrize(("sabotage", "signs"), BUILDS, ids=[build.__name__ for build, _ in BUILDS])
def test_a_wrong_build_is_caught(sabotage: Callable[[Recording], None], signs: tuple[str, ...]) -> None:
    crawl = recorded()
    sabotage(crawl)
    found = crawl.problems()
    assert [sign for sign in signs if sign not in found] == [], found


# --- without fencing


def zombie(*, mended: bool) -> list[Log]:
    """A log in which a batch of the first owner lands after the second one's marker."""
    key, log = URL_KEY + b"\0", [Log(0, 1.0, MARKER_VALUE, MARKER), Log(1, 2.0, MARKER_VALUE, MARKER)]
    log += [
        Log(2, 3.0, row(URLS[0], State.DONE), key, epoch_headers(1)),
        Log(3, 4.0, row(URLS[0], State.WAITING), key, epoch_headers(0)),
    ]
    return [*log, Log(4, 5.0, log[2].value, key, epoch_headers(1))] if mended else log


@pytest.mark.parametrize(
    ("state", "mended", "wrong"),
    [
        pytest.param(State.DONE, True, [], id="right"),
        pytest.param(State.WAITING, False, ["changelog", "compacted changelog"], id="taken for the truth"),
        pytest.param(State.WAITING, True, ["changelog", "compacted changelog"], id="another's row"),
        pytest.param(State.DONE, False, ["compacted changelog"], id="not written again"),
    ],
)
def test_a_build_without_fencing_is_caught(state: State, mended: bool, wrong: list[str]) -> None:
    log = zombie(mended=mended)
    held = {URL_KEY + b"\0": row(URLS[0], state)}
    assert [problem.partition(" what the ")[2] for problem in tables.differences(held, log)] == [
        f"{name} says" for name in wrong
    ]
    assert tables.late(log) == 1
    assert tables.stale({0: log}) == (not mended)


@pytest.mark.parametrize(("kept", "wrong"), [(State.DONE, 0), (State.WAITING, 2)])
def test_a_store_left_behind_is_judged_by_what_compaction_has_left(kept: State, wrong: int) -> None:
    """It ends at offset 2; of the key that was written again behind that, the log has only the newer row."""
    moved, still = URL_KEY + b"\0", URL_KEY + b"\1"
    log = [
        Log(0, 1.0, MARKER_VALUE, MARKER),
        Log(2, 3.0, row(URLS[1], State.DONE), still, epoch_headers(0)),
        Log(3, 4.0, row(URLS[0], State.DONE), moved, epoch_headers(0)),
    ]
    held = {moved: row(URLS[0], State.WAITING), still: row(URLS[1], kept)}
    assert tables.differences(held, log[:2])
    rows, records = tables.unchanged_since(2, held, log)
    assert len(tables.differences(rows, records)) == wrong
