"""A shard of the frontier: messages and `now` in, rows, effects and orders out. No clock, sockets or Faust.

The agent calls `turn` with what arrived, then sends `candidates` and `failures`, makes the rows durable, sends the
orders, and acknowledges, in this order. When any of that fails it throws the shard away and loads a new one: whatever
was decided on memory that never became durable is forgotten with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams import messages as m
from streams.frontier import outcomes
from streams.frontier.candidates import ORDER_BITS, Admission
from streams.frontier.hosts import HostQueue
from streams.frontier.index import UNPARSED, queue_entry, split_timed_entry
from streams.frontier.release import Release, ShardConfig
from streams.frontier.released import Out
from streams.frontier.rows import State, UrlRow
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn
from streams.policy.retry import breaker_after, rule_for

Definitions = Mapping[str, m.CrawlDefinition]
PAGE_LIFE = 24 * 3600 * 1000
"""ms a page is kept at least; a page not parsed by then is gone and its URL is fetched again."""


class Shard:
    """One shard's state machine over its store. `epoch` fences its orders, see `streams.state`."""

    def __init__(self, config: ShardConfig, store: RowReader, epoch: int, crawls: Definitions) -> None:
        self.config = config
        self.epoch = epoch
        self.position = 0
        self.backlog = 0
        """The end of the inbox when this owner came. What stands before it may answer orders of the former owner:
        nothing is released before it is read, or pages that were fetched would be fetched again."""
        self.tallies = Tallies.from_counters(store.counters())
        self._store = store
        self._crawls = crawls
        self._admission = Admission(config.politeness)
        self._release = Release(config, store, epoch, crawls, self.tallies)
        self._checked = 0

    def turn(self, inbox: Sequence[tuple[int, m.Inbox]], now: int, elsewhere: Mapping[str, int]) -> Turn:
        """Apply messages (with their offsets) and release what may run now (ms).

        `elsewhere`: pages that other shards count for each crawl (for page limits).
        """
        turn = Turn(self._store, self.tallies, now)
        for offset, message in inbox:
            self._apply(turn, offset, message)
            self.position = offset + 1
        self._overdue(turn)
        self._settle(turn)
        if self.position >= self.backlog:
            self._release.run(turn, elsewhere)
        # After the release: these entries are in the index only once this turn is durable.
        for fingerprint, row in turn.changed.items():
            if row.state is State.WAITING:
                self._queue(turn, fingerprint, row)
        return turn

    def wake_at(self) -> float:
        """When the next turn is due even if nothing arrives (ms)."""
        return self._release.wake_at() if self.position >= self.backlog else float("inf")

    def progress(self, now: int) -> m.Progress:
        """The shard's numbers and the input they cover; only true once the last turn is durable."""
        hosts = self._release.hosts_by_crawl()
        return m.Progress(
            shard=self.config.shard, epoch=self.epoch, position=self.position, at=now,
            crawls={crawl: tally.counts(hosts.get(crawl, 0)) for crawl, tally in self.tallies.items()},
        )  # fmt: skip

    def unanswered(self) -> int:
        """Orders that are out."""
        return len(self._release.released)

    def runnable_hosts(self) -> int:
        """Hosts with waiting URLs."""
        return self._release.runnable_hosts()

    def _apply(self, turn: Turn, offset: int, message: m.Inbox) -> None:
        seq = offset << ORDER_BITS
        match message:
            case m.Links():
                if crawl := self._admitting(turn, message.crawl, len(message.urls)):
                    self._admission.links(turn, message, crawl, seq)
            case m.Candidates():
                for i, item in enumerate(message.items):
                    if crawl := self._admitting(turn, item.crawl, 1):
                        self._admission.candidate(turn, item, crawl, seq + i)
            case m.Outcomes():
                self._outcomes(turn, message)
            case m.Command():
                if self._admitting(turn, message.crawl, 1):
                    self._admission.command(turn, message, seq)

    def _outcomes(self, turn: Turn, message: m.Outcomes) -> None:
        turn.load(item.fingerprint for item in message.items)
        for outcome in message.items:
            if isinstance(outcome, m.ParseOutcome):
                self._parsed(turn, outcome)
            else:
                self._fetched(turn, outcome)

    def _admitting(self, turn: Turn, crawl_id: str, items: int) -> m.CrawlDefinition | None:
        """The crawl, if it still takes URLs: an ended crawl stays as a tombstone that keeps late ones out."""
        crawl = self._crawls.get(crawl_id)
        if crawl is not None and crawl.state != "ended":
            return crawl
        turn.tallies[crawl_id].duplicates += items
        return None

    def _fetched(self, turn: Turn, outcome: m.FetchOutcome) -> None:
        out = self._release.released.answer(outcome.fingerprint, outcome.visit, outcome.attempt)
        if outcome.kind == "robots":
            self._release.robots_answer(turn, outcome, out)
            return
        tally = turn.tallies[outcome.crawl]
        tally.activity += 1
        row = turn.url(outcome.fingerprint)
        queue = self._answered(turn, out) if out is not None else None
        if row is None or row.visit != outcome.visit:
            return
        if queue is None:
            queue = self._release.host(turn, row.host)
        if outcome.result == "deferred":
            self._deferred(turn, outcome, row, queue, out)
            return
        self._weigh(turn, outcome, queue)
        outcomes.fetched(turn, outcome, row, self._crawls.get(row.crawl))

    def _deferred(self, turn: Turn, outcome: m.FetchOutcome, row: UrlRow, queue: HostQueue, out: Out | None) -> None:
        """Given back without cost: queue it again; the host may have told the fetcher to wait."""
        if outcome.retry_after:
            self._hold_host(turn, queue, outcome.retry_after)
        if out is not None and row.state is State.WAITING:
            queue.queue(row.crawl).again.append(outcome.fingerprint)
            self._release.schedule(queue, turn.now)

    def _answered(self, turn: Turn, out: Out) -> HostQueue:
        queue = self._release.host(turn, out.host)
        queue.out -= 1
        turn.tallies[out.crawl].released -= 1
        self._release.schedule(queue, turn.now)
        return queue

    def _weigh(self, turn: Turn, outcome: m.FetchOutcome, queue: HostQueue) -> None:
        """What the answer means for the host: Retry-After and the breaker."""
        if outcome.retry_after:
            self._hold_host(turn, queue, outcome.retry_after)
        bad = outcome.failure is not None and rule_for(outcome.failure, outcome.status).host_effect != "none"
        breaker = breaker_after(queue.row.breaker, not bad, turn.now)
        if breaker != queue.row.breaker:
            self._release.keep(turn, queue, breaker=breaker)

    def _hold_host(self, turn: Turn, queue: HostQueue, seconds: float) -> None:
        until = turn.now + round(seconds * 1000)
        if until > queue.row.not_before:
            self._release.keep(turn, queue, not_before=until)

    def _parsed(self, turn: Turn, outcome: m.ParseOutcome) -> None:
        turn.tallies[outcome.crawl].activity += 1
        row = turn.url(outcome.fingerprint)
        if row is not None and row.visit == outcome.visit:
            outcomes.parsed(turn, outcome, row, self._crawls.get(row.crawl))

    def _overdue(self, turn: Turn) -> None:
        """Orders nobody answered go out again; pages nobody parsed before they expired are fetched again."""
        for key, out in self._release.released.overdue(turn.now - round(self.config.answer_timeout * 1000)):
            if out.origin:
                self._release.robots_lost(turn, out)
                continue
            queue = self._answered(turn, out)
            queue.queue(out.crawl).again.append(key)
        if turn.now - self._checked < 60_000:
            return
        self._checked = turn.now
        for entry, _ in self._store.scan(UNPARSED, limit=1000):
            since, fingerprint = split_timed_entry(entry)
            if turn.now - since < PAGE_LIFE:
                break
            row = turn.url(fingerprint)
            if row is not None and row.state is State.FETCHED:
                turn.put(fingerprint, outcomes.replace(row, state=State.WAITING, page=None))

    def _settle(self, turn: Turn) -> None:
        """An order that is out for an attempt that is over is not waited for (another answer was faster)."""
        for fingerprint, row in turn.changed.items():
            out = self._release.released.get(fingerprint)
            if out is None or (row.state is State.WAITING and (out.visit, out.attempt) == (row.visit, row.attempt)):
                continue
            self._release.released.answer(fingerprint, out.visit, out.attempt)
            self._answered(turn, out)

    def _queue(self, turn: Turn, fingerprint: bytes, row: UrlRow) -> None:
        """A row waits: its entry will be in the index once the turn is durable."""
        if row.due:
            self._release.note_due(row.due, fingerprint)
        elif fingerprint not in self._release.released:
            queue = self._release.host(turn, row.host)
            queue.queue(row.crawl).note(queue_entry(row), fingerprint)
            self._release.schedule(queue, turn.now)
