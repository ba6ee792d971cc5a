"""A shard of the frontier: messages and `now` in, rows, effects and orders out. No clock, sockets or Faust.

The agent calls `turn` with what arrived, then sends `candidates`, `routed` and `failures`, makes the rows durable,
sends the orders, and acknowledges, in this order. When any of that fails it throws the shard away and loads a new one:
whatever was decided on memory that never became durable is forgotten with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.frontier import outcomes
from streams.frontier.budgets import budgeted
from streams.frontier.candidates import ORDER_BITS, Admission, asked_for, refused, ruled_out
from streams.frontier.closing import excluded
from streams.frontier.commands import redrive
from streams.frontier.effects import HostEffects
from streams.frontier.explain import Explanation, Inquiry, fingerprint_of, place_of
from streams.frontier.hosts import Census
from streams.frontier.index import UNPARSED, split_timed_entry
from streams.frontier.novelty import Novelties
from streams.frontier.release import Release, ShardConfig
from streams.frontier.released import Out
from streams.frontier.rows import State, UrlRow
from streams.frontier.sweeping import Sweeper
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn
from streams.policy.forgetting import is_forgotten
from streams.policy.urls import politeness_key

Definitions = Mapping[str, CrawlDefinition]
PAGE_LIFE = 24 * 3600 * 1000
"""ms a page is kept at least; a page not parsed by then is gone and its URL is fetched again."""
CHECK_EVERY = 60_000
"""ms between two looks for such pages."""


class Shard:
    """One shard's state machine over its store. `epoch` fences its orders, see `streams.state`."""

    def __init__(self, config: ShardConfig, store: RowReader, epoch: int, crawls: Definitions) -> None:
        self.config = config
        self.epoch = epoch
        self.position = 0
        self.backlog = 0
        """The end of the inbox when this owner came. What stands before it may answer orders of the former owner:
        nothing is released before it is read, or pages that were fetched would be fetched again."""
        self.changes = 0  # turns after which `progress` may say something new
        self.tallies = Tallies.from_counters(store.counters())
        self._store = store
        self._crawls = crawls
        self._admission = Admission(config.politeness)
        self._release = Release(config, store, epoch, crawls, self.tallies)
        self._novelties = Novelties(self._release.queues)
        self._effects = HostEffects(self._release.queues, crawls)
        self._sweeper = Sweeper(store, crawls, self.tallies, config.expire_after)
        self._checked = self._now = 0
        self._hosts = 0
        self._over: frozenset[str] = frozenset()
        self._walks = 0

    def turn(self, inbox: Sequence[tuple[int, m.Inbox]], now: int, elsewhere: Mapping[str, m.CrawlCounts]) -> Turn:
        """Apply messages (with their offsets) and release what may run now (ms).

        `elsewhere`: what the other shards count for each crawl (for its budgets).
        """
        self._now = now
        turn = Turn(self._store, self.tallies, now, budgeted(self._crawls.values()))
        self._release.begin(now)
        turn.load(item.fingerprint for _, message in inbox for item in _items(message))
        for offset, message in inbox:
            self._apply(turn, offset, message)
            self.position = offset + 1
        self._unparsed(turn)
        self._settle(turn)
        self._release.overdue(turn)
        self._release.spent(turn)
        if self.position >= self.backlog:
            self._release.run(turn, elsewhere)
            self._sweeper.run(turn, self._release.released, self._release.queues.hosts)
        self._release.spent(turn)
        self._release.wait(turn)
        hosts = self._release.queues.hosts_by_crawl.total()
        over, walks = self._release.revisits.over, self._release.reopening.waiting
        moved = (hosts, over, walks) != (self._hosts, self._over, self._walks)
        if inbox or turn.changed or turn.dropped or turn.orders or moved:
            self.changes += 1
        self._hosts, self._over, self._walks = hosts, over, walks
        return turn

    def wake_at(self) -> float:
        """When the next turn is due even if nothing arrives (ms)."""
        if self.position < self.backlog:
            return float("inf")
        return min(self._release.wake_at(), self._sweeper.wake_at(self._now))

    def progress(self, now: int) -> m.Progress:
        """The shard's numbers and the input they cover; only true once the last turn is durable."""
        hosts = self._release.queues.hosts_by_crawl
        return m.Progress(
            shard=self.config.shard, epoch=self.epoch, position=self.position, at=now,
            crawls={crawl: self._counts(crawl, tally.counts(hosts[crawl])) for crawl, tally in self.tallies.items()},
        )  # fmt: skip

    def why(self, crawl_id: str, url: str, now: int) -> Explanation:
        """Why a URL (wire form) is where it is."""
        turn = Turn(self._store, self.tallies, now)
        fingerprint = fingerprint_of(url, crawl_id, self._crawls.get(crawl_id))
        row, released = turn.url(fingerprint), self._release.released
        host = row.host if row is not None else politeness_key(url, self.config.politeness)
        return Inquiry(
            url=url, crawl_id=crawl_id, row=row, host=turn.hosts([host])[0], crawl=self._crawls.get(crawl_id), now=now,
            politeness=self.config.politeness, facts=self._release.facts(fingerprint, row) if row is not None else None,
            place=place_of(self._store, row, released) if row is not None else None,
        ).answer()  # fmt: skip

    def _counts(self, crawl: str, counts: m.CrawlCounts) -> m.CrawlCounts:
        """What would come back, but will not since the crawl is over, is not told."""
        return outcomes.replace(counts, due=0) if crawl in self._over else counts

    def unanswered(self) -> int:
        """Orders that are out."""
        return len(self._release.released)

    def census(self, now: int) -> Census:
        """Numbers of hosts at `now` (ms); looks at all of them."""
        return self._release.queues.census(now)

    def _apply(self, turn: Turn, offset: int, message: m.Inbox) -> None:
        seq = offset << ORDER_BITS
        match message:
            case m.Links():
                if crawl := self._admitting(turn, message.crawl, len(message.urls)):
                    self._admission.links(turn, message, crawl, seq)
            case m.Candidates():
                for i, item in enumerate(message.items):
                    self._candidate(turn, item, seq + i)
            case m.Outcomes():
                self._outcomes(turn, message, seq)
            case m.RobotsHop():
                self._release.hop_arrived(turn, message)
            case m.Command(action="forget"):
                self._sweeper.forget(turn, message, f"{self.config.shard}:{offset}")
            case _:  # a redrive
                if self._admitting(turn, message.crawl, 1):
                    redrive(turn, message, seq)

    def _candidate(self, turn: Turn, item: m.Candidate, seq: int) -> None:
        if crawl := self._admitting(turn, item.crawl, 1):
            ordered = item.refetch and self._release.released.get(item.fingerprint) is not None
            self._admission.candidate(turn, item, crawl, seq, ordered=ordered)
        elif item.origin is None:  # a redirect target: whoever led to it has its row
            return
        elif self._keeps_rows(item.crawl, turn.now):
            self._admission.too_late(turn, item, self._crawls[item.crawl], seq)
        else:
            turn.failures.append(refused(item, item.origin, turn.now))

    def _outcomes(self, turn: Turn, message: m.Outcomes, seq: int) -> None:
        for i, outcome in enumerate(message.items):
            before = turn.url(outcome.fingerprint)
            if isinstance(outcome, m.ParseOutcome):
                self._parsed(turn, outcome)
            else:
                self._fetched(turn, outcome)
            if before is not None and before.then is not None:
                self._visit_then(turn, outcome.fingerprint, before, before.then, seq + i)

    def _visit_then(self, turn: Turn, fingerprint: bytes, before: UrlRow, seed: m.Candidate, seq: int) -> None:
        """Open the visit that a seed wanted as soon as the one is over during which it came."""
        row = turn.url(fingerprint)
        over = row is not None and (not row.open or row.visit != before.visit)
        if row is not None and over and self._admitting(turn, row.crawl, 0):
            turn.put(fingerprint, asked_for(row, seed, seq, turn.now))

    def _admitting(self, turn: Turn, crawl_id: str, items: int) -> CrawlDefinition | None:
        """The crawl, if it still takes URLs: an ended crawl stays as a tombstone that keeps late ones out."""
        crawl = self._crawls.get(crawl_id)
        if crawl is not None and crawl.state != "ended":
            return crawl
        turn.tallies[crawl_id].duplicates += items
        return None

    def _keeps_rows(self, crawl_id: str, now: int) -> bool:
        """Whether a crawl has ended and its rows have not expired yet: one that is written now expires with them."""
        crawl = self._crawls.get(crawl_id)
        return crawl is not None and crawl.ended > 0 and now < crawl.ended + self.config.expire_after * 1000

    def _fetched(self, turn: Turn, outcome: m.FetchOutcome) -> None:
        out = self._release.released.answer(outcome.fingerprint, outcome.visit, outcome.attempt)
        if outcome.kind == "robots":
            if out is not None:  # else somebody was faster
                self._robots(turn, outcome, out)
            return
        turn.tallies[outcome.crawl].activity += 1
        if out is not None:
            self._release.answered(turn, out)
        row = turn.url(outcome.fingerprint)
        if row is None or row.visit != outcome.visit:
            return
        if outcome.retry_after:
            self._effects.hold(turn, row.host, outcome.retry_after)
        if outcome.gap:
            self._release.queues.came_early(turn, row.host, outcome.gap)
        if not self._keep_forgotten(turn, outcome, row, out) and outcome.result != "deferred":
            outcomes.fetched(turn, outcome, row, self._crawls.get(row.crawl), self.config.politeness)
        now = turn.url(outcome.fingerprint)
        if now is not row:
            self._effects.weigh(turn, outcome, row.host)
        elif out is not None and row.state is State.WAITING:  # given back
            self._release.give_back(turn, row.host, row.crawl, outcome.fingerprint, revisit=row.kept)

    def _keep_forgotten(
        self, turn: Turn, outcome: m.FetchOutcome | m.ParseOutcome, row: UrlRow, out: Out | None
    ) -> bool:
        """Keep out a URL that was forgotten after a former owner had ordered it; whether it is one.

        Its row was deleted and made anew by a link that was on its way: the answer must bring back no page, no failure.
        """
        crawl = self._crawls.get(row.crawl)
        if out is not None or row.state is not State.WAITING or crawl is None or not is_forgotten(crawl, row.url):
            return False
        rule = ruled_out(row, crawl, turn.now)
        if rule:
            turn.put(outcome.fingerprint, excluded(row, rule, turn.now))
        return bool(rule)

    def _robots(self, turn: Turn, outcome: m.FetchOutcome, out: Out) -> None:
        """An answer to a robots order; one that comes from another host says nothing about ours."""
        if out.leg != "away":
            if outcome.retry_after:
                self._effects.hold(turn, out.host, outcome.retry_after)
            if outcome.gap:
                self._release.queues.came_early(turn, out.host, outcome.gap)
            if outcome.result != "deferred":
                self._effects.weigh_robots(turn, outcome, out.host, guest=out.leg == "guest")
        self._release.robots_answered(turn, outcome, out)

    def _parsed(self, turn: Turn, outcome: m.ParseOutcome) -> None:
        turn.tallies[outcome.crawl].activity += 1
        self._tell_again(turn, outcome)
        row = turn.url(outcome.fingerprint)
        if row is not None and row.visit == outcome.visit:
            if self._keep_forgotten(turn, outcome, row, self._release.released.get(outcome.fingerprint)):
                return
            crawl = self._crawls.get(row.crawl)
            outcomes.parsed(turn, outcome, row, crawl)
            if crawl is not None and (now := turn.url(outcome.fingerprint)) is not None and now is not row:
                self._novelties.parsed(turn, row, now, crawl.traps.novelty)

    def _tell_again(self, turn: Turn, outcome: m.ParseOutcome) -> None:
        """Tell sinks of a forgotten page behind a record that came late, be its URL's row there or not.

        A page is read a second time after a crash, an order that was overdue is answered twice: sinks may have been
        told of the URL before that record was written, by a parser that did not know the rule yet.
        """
        crawl = self._crawls.get(outcome.crawl)
        if crawl is not None and outcome.url and is_forgotten(crawl, outcome.url):
            partition, offset = outcome.page
            word = m.Forgotten(url=outcome.url, crawl=crawl.id, id=f"page:{partition}:{offset}", at=turn.now)
            turn.forgotten.append(word)

    def _unparsed(self, turn: Turn) -> None:
        """Pages that nobody parsed before they expired are fetched again. Looked for once a minute."""
        if 0 <= turn.now - self._checked < CHECK_EVERY:
            return
        self._checked = turn.now
        for entry, _ in self._store.scan(UNPARSED, limit=1000):
            since, fingerprint = split_timed_entry(entry)
            if turn.now - since < PAGE_LIFE:
                break
            row = turn.url(fingerprint)
            if row is not None and row.state is State.FETCHED:
                # A conditional request could be answered with 304: the page would never be parsed.
                turn.put(fingerprint, outcomes.replace(row, state=State.WAITING, page=None, etag="", last_modified=""))

    def _settle(self, turn: Turn) -> None:
        """An order that is out for an attempt that is over is not waited for (another answer was faster)."""
        released = self._release.released
        for fingerprint, row in turn.changed.items():
            out = released.get(fingerprint)
            if out is None or (row.state is State.WAITING and (out.visit, out.attempt) == (row.visit, row.attempt)):
                continue
            released.answer(fingerprint, out.visit, out.attempt)
            self._release.answered(turn, out)


def _items(message: m.Inbox) -> Sequence[m.Candidate | m.FetchOutcome | m.ParseOutcome]:
    """What names one URL each; a pack of links is read on its own."""
    return message.items if isinstance(message, m.Outcomes | m.Candidates) else ()
