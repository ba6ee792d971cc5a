"""What the judge asks of orders: who may send them, for which URLs, when, how many, under which rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streams import messages as m
from streams.frontier.index import queue_place
from streams.frontier.rows import HOST_KEY, State, decode_host_row
from tests.simulation.ring import oracle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streams.definitions import CrawlDefinition
    from streams.frontier.rows import HostRow
    from streams.frontier.shard import Shard
    from streams.frontier.turn import Turn
    from tests.simulation.ring.judge import Judge

ANSWER_TIMEOUT = 600.0
"""Seconds; `frontier.answer_timeout`."""
DELAY_CAP = 60.0
LEARNED = 0.75
"""What is in a host's row may be a quarter more than what was learned last."""
PASSES = 32
"""Orders that may leave before a URL that waits in front of theirs: it is among those that were read ahead."""
TURNS = 4
"""Orders of one crawl in a row while another one waits for the same host."""

Key = tuple[int, int]
"""A shard and the epoch of an owner."""
Crawls = dict[str, "CrawlDefinition"]
"""Definitions as they were when a turn was decided."""
Counts = Mapping[str, m.CrawlCounts]
"""What other shards counted then."""


class OrderBook:
    """Orders of all shards. Each is judged when its owner makes sure, for the last time, that it is the owner."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._told: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._sent: dict[Key, Sequence[m.FetchOrder]] = {}
        self._ordered: dict[Key, int] = {}  # when those were decided (ms)
        self._known: dict[Key, Crawls] = {}
        self._elsewhere: dict[Key, Counts] = {}
        self._last: dict[bytes, tuple[int, int]] = {}  # when a URL was ordered last (ms), and its owner's epoch then
        self._handled: dict[bytes, int] = {}  # the depth with which a page's links were handled last
        self._back = 0  # ms by which the broker's clock went back in all
        self._decided: dict[Key, int] = {}
        self._passed: Counter[bytes] = Counter()
        self._in_a_row: dict[str, tuple[str, int]] = {}

    def decided(self, shard: Shard, inbox: Sequence[tuple[int, m.Inbox]], elsewhere: Counts) -> None:
        """A turn was decided, by what was read by now: definitions, and what other shards count.

        Its messages say at which depth pages were parsed.
        """
        self._elsewhere[shard.config.shard, shard.epoch] = elsewhere
        self._known[shard.config.shard, shard.epoch] = dict(shard._crawls)
        self._decided[shard.config.shard, shard.epoch] = self._back
        for _, message in inbox:
            for item in message.items if isinstance(message, m.Outcomes) else ():
                if isinstance(item, m.ParseOutcome):
                    self._handled[item.fingerprint] = item.depth

    def told(self, shard: Shard, turn: Turn) -> None:
        """What a turn was told about hosts is durable."""
        told = self._told[shard.config.shard]
        back = self._back - self._decided[shard.config.shard, shard.epoch]  # since the turn was decided
        for host, row in turn._hosts.items():
            told[host] = max(told[host], row.not_before - back if row is not None else 0)

    def jump(self, ms: int) -> None:
        """Where the broker's clock goes back, times that were counted from it go with it."""
        back = max(0, -ms)
        self._back += back
        for told in self._told.values():
            for host in told:
                told[host] -= back

    def sent(self, shard: Shard, turn: Turn, *, owner: bool) -> None:
        """A shard has made sure that it is the owner, and sends a turn's orders.

        From here on nobody can hold them up: a process that is stopped now sends them when it goes on, however late.
        That is the exception of promise 3 (`a request already past its last check`); the clock of the fetcher that
        takes them holds all the same. Orders that pass no check, or that fail it, are not excused.
        """
        if not owner:
            raise self._judge.broken(
                "only owners send orders", f"shard {shard.config.shard}, {len(turn.orders)} orders"
            )
        self._sent[shard.config.shard, shard.epoch] = turn.orders
        self._ordered[shard.config.shard, shard.epoch] = turn.now
        pages = [order for order in turn.orders if order.kind == "page"]
        out = Counter(out.crawl for out in shard._release.released._out.values() if not out.origin)
        if shard._release.released.room() < 0:
            raise self._judge.broken("release cap", f"shard {shard.config.shard}: {sum(out.values())} orders out")
        crawls = self._known[shard.config.shard, shard.epoch]
        for order in pages:
            self._may_go(shard, turn, crawls, order)
            self._in_order(shard, turn, crawls, order)
        for name in {order.crawl for order in pages}:
            self._within(shard, crawls[name], pages, out[name])

    def appended(self, shard: Shard, order: m.FetchOrder) -> None:
        """An order is in the log. It passed the check; while its owner is the newest a row waits for this attempt."""
        sent = self._sent.get((order.shard, shard.epoch), ())
        if not any(order is each for each in sent):
            raise self._judge.broken("only owners send orders", f"{order.url} passed no check")
        if order.kind == "page":
            at = self._ordered[order.shard, shard.epoch]
            self._last[order.fingerprint] = (at, shard.epoch)
        if order.kind != "page" or shard.epoch != self._judge.epochs[order.shard]:
            return
        row = self._judge.urls.get(order.fingerprint)
        if row is None or row.state is not State.WAITING or (row.visit, row.attempt) != (order.visit, order.attempt):
            raise self._judge.broken("released rows wait", f"{order.url}, visit {order.visit}.{order.attempt}: {row}")

    def astray(self, key: bytes, epoch: int, now: int) -> bool:
        """Whether an order may be out that the owner does not wait for: a former one's, or one that is overdue."""
        at, ordered = self._last.get(key, (now, epoch))
        return ordered != epoch or now - at >= ANSWER_TIMEOUT * 1000

    # ---- one order

    def _may_go(self, shard: Shard, turn: Turn, crawls: Crawls, order: m.FetchOrder) -> None:
        """By what the shard has read: its crawl goes on, its host may be asked, its URL is not to be forgotten."""
        judge, crawl, early = self._judge, crawls[order.crawl], self._told[shard.config.shard][order.host] - turn.now
        if early > 0:
            raise judge.broken("host is left alone", f"an order for {order.url} {early} ms early")
        if crawl.state in ("paused", "ended"):
            raise judge.broken("paused is paused", f"an order for {order.url} of {crawl.id}, which is {crawl.state}")
        if oracle.forgotten(crawl, order.url):
            raise judge.broken("forgotten is gone", f"an order for {order.url} of {crawl.id}")
        if oracle.shut(crawl, order.url, turn.now):
            raise judge.broken("windows are obeyed", f"an order for {order.url} while its window is shut")
        if turn.now >= oracle.deadline(crawl):
            raise judge.broken("budgets hold", f"an order for {order.url} after the deadline")
        handled = self._handled.get(order.fingerprint, 0)
        if order.etag and crawl.depth is not None and order.depth < handled:
            raise judge.broken(
                "links are found again", f"{order.url}: validators at depth {order.depth}, not {handled}"
            )
        self._window(shard, order)
        self._strictest(shard, turn, crawls, order)

    def _window(self, shard: Shard, order: m.FetchOrder) -> None:
        out = sum(shard._release.queues.hosts[order.host].out.values())
        delay, parallelism = order.delay, order.parallelism
        window = parallelism + int(1.0 / delay) + 1 if delay else parallelism * 4
        if out > window:
            raise self._judge.broken("window", f"{order.host}: {out} orders out, window {window}")

    def _strictest(self, shard: Shard, turn: Turn, crawls: Crawls, order: m.FetchOrder) -> None:
        """An order names the strictest rules of all crawls that wait for its host, and what the host asks for."""
        judge, row, crawl = self._judge, self._host(shard, order.host), crawls[order.crawl]
        delay, parallelism = oracle.delay_of(crawl, order.url), float(oracle.parallelism_of(crawl, order.url))
        delay = max(delay, _asked(crawl, row))
        for name, keys in judge.waiting[order.host].items():
            other = crawls.get(name)
            urls = [judge.urls[key].url for key in keys if key not in turn.changed]
            if other is None or other is crawl or other.state not in {"open", "sealed"} or not urls:
                continue
            slow, narrow = oracle.strictest(other, urls)
            delay, parallelism = max(delay, slow, _asked(other, row)), min(parallelism, narrow)
        if order.delay < delay or order.parallelism > parallelism:
            raise judge.broken("strictest rule", f"{order.url}: {order.delay} s, {order.parallelism} at a time; "
                               f"asked for: {delay} s, {parallelism}")  # fmt: skip

    def _host(self, shard: Shard, host: str) -> HostRow | None:
        data = self._judge.rows[shard.config.shard].get(HOST_KEY + host.encode())
        return None if data is None else decode_host_row(data)

    # ---- whose turn it is

    def _in_order(self, shard: Shard, turn: Turn, crawls: Crawls, order: m.FetchOrder) -> None:
        """Nothing starves: whatever waits for a host is passed over a few times only.

        Within a crawl by what stands behind it in the queue (that tells age from priority); between crawls that have
        neither budgets nor rules by more than some orders of another one in a row.
        """
        judge, others = self._judge, False
        for name, keys in judge.waiting[order.host].items():
            other = crawls.get(name)
            if other is None or other.robots or other.limits:
                continue  # a URL may wait for robots.txt or for its window
            idle = [key for key in keys if key not in turn.changed and key not in shard._release.released]
            if name == order.crawl:
                self._pass_over(idle, queue_place(judge.urls[order.fingerprint]))
            elif idle and other.state in ("open", "sealed") and not (other.concurrency or oracle.bounded(other)):
                others = True
        last, number = self._in_a_row.get(order.host, ("", 0))
        number = number + 1 if others and last == order.crawl else 1
        self._in_a_row[order.host] = order.crawl, number
        if number > TURNS:
            raise judge.broken("nothing starves", f"{number} orders of {order.crawl} for {order.host} in a row")

    def _pass_over(self, idle: Sequence[bytes], mine: bytes) -> None:
        judge = self._judge
        for key in idle:
            if queue_place(judge.urls[key]) < mine:
                self._passed[key] += 1
                if self._passed[key] > PASSES:
                    raise judge.broken("nothing starves", f"{judge.urls[key].url} was passed over {PASSES} times")
            else:
                self._passed.pop(key, None)

    # ---- how many

    def _within(self, shard: Shard, crawl: CrawlDefinition, pages: Sequence[m.FetchOrder], out: int) -> None:
        """A page limit is exceeded at most by what other shards do that have not told yet; a quota holds in each."""
        judge = self._judge
        counts = self._elsewhere[shard.config.shard, shard.epoch].get(crawl.id, m.CrawlCounts())
        if crawl.concurrency is not None and out > crawl.concurrency:
            raise judge.broken("quotas hold", f"{crawl.id}: {out} orders out in one shard, {crawl.concurrency} in all")
        new = [order for order in pages if order.crawl == crawl.id and order.visit == 1]
        if not new or (crawl.limit, crawl.max_size, crawl.host_limit) == (None, None, None):
            return
        here = [judge.urls[key] for key in judge.pages[crawl.id] if judge.homes[key] == shard.config.shard
                and key in judge.urls and judge.urls[key].state in (State.FETCHED, State.DONE)]  # fmt: skip
        outs = Counter(each.host for each in shard._release.released._out.values()
                       if each.crawl == crawl.id and each.visit == 1 and not each.origin)  # fmt: skip
        if crawl.limit is not None and len(here) + counts.done + counts.fetched + outs.total() > crawl.limit:
            raise judge.broken(
                "budgets hold", f"{crawl.id}: {len(here)} pages here and {outs.total()} out of {crawl.limit}"
            )
        if crawl.max_size is not None and sum(row.size for row in here) + counts.size >= crawl.max_size:
            raise judge.broken("budgets hold", f"{crawl.id}: another order after {crawl.max_size} bytes")
        for host in {order.host for order in new} if crawl.host_limit is not None else ():
            had = sum(1 for row in here if row.host == host)
            if had + outs[host] > (crawl.host_limit or 0):
                raise judge.broken("budgets hold", f"{crawl.id}: {had} pages of {host}, {crawl.host_limit} allowed")


def _asked(crawl: CrawlDefinition, row: HostRow | None) -> float:
    """The delay that a host itself asks a crawl for."""
    if row is None:
        return 0.0
    said = [rules.crawl_delay for rules in row.robots.values() if rules.crawl_delay] if crawl.robots else []
    learned = LEARNED * row.delay if crawl.adaptive_delay else 0.0
    return max([learned, *(min(delay, DELAY_CAP) for delay in said)])
