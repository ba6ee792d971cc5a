"""The promises of docs/reliability.md, watched as things happen; the first that is broken ends a schedule.

The judge keeps its own books: of what was accepted, of which rows count (it folds the changelog itself), of what went
out on the wire and when. Of a shard it looks at its orders and at how much it holds, never at why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from streams import messages as m
from streams.codecs import decode_inbox
from streams.definitions import CrawlDefinition
from streams.frontier.rows import SWEEP_KEY, URL_KEY, State, UrlRow, decode_url_row
from streams.policy.urls import canonical, fingerprint
from tests.simulation.ring import oracle
from tests.simulation.ring.arrivals import Arrival, named_in
from tests.simulation.ring.engine import Engine
from tests.simulation.ring.orders import Counts, OrderBook
from tests.simulation.ring.wire import WireBook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streams.frontier.shard import Shard
    from streams.frontier.turn import Turn
    from tests.simulation.store import Disk

MOVES = {
    State.WAITING: set(State),
    State.FETCHED: {State.FETCHED, State.DONE, State.FAILED, State.WAITING},
    State.FAILED: {State.FAILED, State.FETCHED, State.DONE, State.REDIRECTED},
    State.DONE: {State.DONE},
    State.REDIRECTED: {State.REDIRECTED},
    State.EXCLUDED: {State.EXCLUDED},
}
"""Where the row of a visit may go: from waiting anywhere, back only where a page is lost, over failures by success."""

HEADS = 16 * 16  # bytes of fingerprints
PARKED = 128 + 16


class Broken(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Judge:
    """All invariants. `shards`: their number; `expire_after`: seconds from a crawl's end until its rows go."""

    def __init__(self, engine: Engine, shards: int, expire_after: float) -> None:
        self.engine = engine
        self._expire_after = expire_after * 1000
        self.orders = OrderBook(self)
        self.wire = WireBook(self)
        self.rows: list[dict[bytes, bytes]] = [{} for _ in range(shards)]
        self.urls: dict[bytes, UrlRow] = {}
        self.homes: dict[bytes, int] = {}
        """The shard of each URL that ever had a row."""
        self.hosts: dict[bytes, str] = {}
        """The politeness key of each URL that ever had a row."""
        self.open: Counter[str] = Counter()
        self.ended: dict[str, float] = {}
        self.definitions: dict[str, CrawlDefinition] = {}
        self.history: defaultdict[str, list[CrawlDefinition]] = defaultdict(list)
        """All versions of each crawl."""
        self.accepted: dict[bytes, tuple[str, str]] = {}
        self.fetches: Counter[tuple[bytes, int, int]] = Counter()
        self.allowed_again = 0
        self.jumped = False
        self.expired: dict[bytes, UrlRow] = {}
        """The last rows of URLs whose crawls ended long ago."""
        self.forgotten: list[tuple[str, str, bool]] = []
        """Crawl, URL, and whether all of its host is meant."""
        self.surprising: set[bytes] = set()
        """Forgotten URLs of which an order of a former owner may have been out: its page may come all the same."""
        self.refused: set[bytes] = set()
        """Seeds of which `failures` says that their crawl's rows have expired."""
        self.pages: defaultdict[str, set[bytes]] = defaultdict(set)
        """Pages that a crawl ever had."""
        self._bodies: set[tuple[bytes, int]] = set()  # URLs and visits that brought one, by the inbox
        self.bytes: Counter[str] = Counter()
        """Bytes of all bodies of a crawl."""
        self.latest = 0
        """The latest time at the broker that anybody saw (ms)."""
        self.waiting: defaultdict[str, defaultdict[str, dict[bytes, None]]] = defaultdict(lambda: defaultdict(dict))
        """Host → crawl → URLs that wait and are due now."""
        self.epochs = [-1] * shards
        self.sure: dict[str, dict[int, int]] = {}
        """Crawls whose end is sure, announced or not; with the positions of all shards that were looked at last."""
        self._opened: dict[bytes, int] = {}
        self._arrived: dict[bytes, Arrival] = {}
        self._seeds: dict[bytes, bool] = {}  # URLs that a seed has named; whether one came after the seal
        self._taken: dict[
            tuple[int, int], set[bytes]
        ] = {}  # by shard and epoch: named in the turn that is being written
        self._admitted: set[bytes] = set()  # what was named in a turn that is durable, while its crawl took URLs
        self._strays: set[bytes] = set()
        self._turns = 0

    def broken(self, invariant: str, detail: str) -> Broken:
        """The exception to raise."""
        return Broken(invariant, f"{detail} (event {self.engine.events}, {self.engine.time:.3f} s)")

    # ---- what is accepted, and the end

    def defined(self, definition: CrawlDefinition) -> None:
        """A definition was appended to `crawls`; of two with one version the first holds."""
        known = self.definitions.get(definition.id)
        if known is not None and definition.version <= known.version:
            return
        self.definitions[definition.id] = definition
        self.history[definition.id].append(definition)
        if known is not None:
            self._follows(known, definition)
        if definition.state != "ended" or (known is not None and known.state == "ended"):
            return
        self.ended[definition.id] = self.engine.time
        if definition.result != "cancelled":
            self._over(definition.id)

    def _follows(self, known: CrawlDefinition, new: CrawlDefinition) -> None:
        """An update is made on the version that it replaces: nobody's is lost."""
        if new.version != known.version + 1 or not set(known.scope_rules) <= set(new.scope_rules):
            raise self.broken("no update is lost", f"{new.id}: {known.version} → {new.version}")
        if known.state == "ended" and (new.state, new.result) != (known.state, known.result):
            raise self.broken("ended once", f"crawl {new.id} goes on as {new.state} {new.result}")

    def looked(self, crawl: str, positions: dict[int, int]) -> None:
        """Somebody has looked at a crawl's counters for the last time, and will announce its end.

        `positions`: of the inbox, up to which the counters of each shard go.
        """
        self.sure[crawl] = positions

    def _over(self, crawl: str) -> None:
        """An end is announced: nothing is open.

        But for this: a seal promises to take the seeds that were there before it. One that is sent later may come
        between the last look at the counters and the announcement; nobody can know of it, and it and what it leads to
        are excluded then. That is all that may be open: what a message opened that stands, in its shard's inbox, behind
        the counters that were looked at. Not what was due, nor what an earlier message opened.
        """
        for key, row in self.urls.items():
            if row.crawl == crawl and row.open and not self.came_late(key, crawl):
                raise self.broken("end is true", f"crawl {crawl} ended with {row.url} open: {place(row)}")

    def came_late(self, key: bytes, crawl: str) -> bool:
        """Whether a URL was opened behind the last look at its crawl's counters before the end, by a late seed.

        By the seed itself, or by what it led to; or by a stray page: one that a former owner had ordered, or whose
        order was overdue, of a URL that was excluded, failed or deleted while nobody waited for it any more. What was
        found on a page that had been counted is not excused, nor is a seed that came before the seal.
        """
        positions, seen = self.sure.get(crawl), set[bytes]()
        while positions is not None and key not in seen:
            seen.add(key)
            row, named = self.urls.get(key) or self.expired.get(key), self._arrived.get(key)
            if row is not None:
                late = self._opened.get(key, -1) >= positions[self.homes[key]]
                cause = row.via[-1] if row.via else row.parent
            elif named is not None:
                late, cause = named.offset >= positions[named.shard], named.cause
            else:
                return False
            if not late:
                return False
            if not cause:
                return self._seeds.get(key, False)
            if cause.endswith("/robots.txt"):
                return self._first_asked_late(crawl, cause)
            key = fingerprint(crawl, canonical(cause))
            if key in self._strays:
                return True
        return positions is not None

    def _first_asked_late(self, crawl: str, robots: str) -> bool:
        """Whether no page of an origin was had before the last look: what robots.txt names was told with the first."""
        origin, positions = robots.removesuffix("robots.txt"), self.sure[crawl]
        mine = [(key, row) for key, row in (self.expired | self.urls).items()
                if row.crawl == crawl and row.url.startswith(origin)]  # fmt: skip
        return not any(row.state in (State.FETCHED, State.DONE) and row.source == "page"
                       and self._opened[key] < positions[self.homes[key]] for key, row in mine)  # fmt: skip

    def forgets(self, crawl: str, url: str, *, host: bool) -> None:
        """Somebody was told that a URL, or its host, is forgotten from now on."""
        self.forgotten.append((crawl, url, host))

    def covered(self, crawl: str, url: str) -> bool:
        """Whether a URL is to be forgotten, by the newest definition."""
        return oracle.forgotten(self.definitions[crawl], url)

    def arrived(self, shard: int, offset: int, message: m.Inbox | bytes) -> None:
        """Something was appended to the inbox: what it names is accepted while its crawl has not ended, a seed ever."""
        if isinstance(message, m.Candidates):
            for item in message.items:
                if item.origin is not None:
                    late = item.origin.offset >= (self.definitions[item.crawl].seal or {}).get(0, 0)
                    self._seeds[item.fingerprint] = self._seeds.get(item.fingerprint, False) or late
                    self.accepted.setdefault(item.fingerprint, (item.crawl, item.url))
        message = decode_inbox(message) if isinstance(message, bytes) else message
        if isinstance(message, m.Outcomes):
            self._bodies.update((item.fingerprint, item.visit) for item in message.items if item.page is not None)
        for key, crawl, url, cause in named_in(message):
            if crawl not in self.ended:
                self.accepted.setdefault(key, (crawl, url))
            self._arrived.setdefault(key, Arrival(shard, offset, cause))

    def failed(self, failure: m.Failure) -> None:
        """`failures` tells of something; what tells of no row tells of a seed that its crawl cannot take any more."""
        crawl = self.definitions[failure.crawl]
        if not failure.visit and self.latest >= crawl.ended + self._expire_after:
            self.refused.add(fingerprint(failure.crawl, canonical(failure.url)))

    # ---- rows

    def row(self, shard: int, key: bytes, value: bytes | None) -> None:
        """A record of a changelog that counts."""
        self.latest = max(self.latest, self.engine.broker())
        if value is None:
            self.rows[shard].pop(key, None)
            if key[:1] == URL_KEY and (gone := self.urls.pop(key[1:], None)) is not None:
                self._count(key[1:], gone, -1)
                self._deleted(key[1:], gone)
            return
        self.rows[shard][key] = value
        if key[:1] != URL_KEY:
            return
        new, old = decode_url_row(value), self.urls.get(key[1:])
        if new.state in (State.EXCLUDED, State.FAILED):
            self._may_stray(shard, key[1:])
        if old is not None:
            self._move(old, new)
            self._count(key[1:], old, -1)
        self._count(key[1:], new, 1)
        self.urls[key[1:]] = new
        self.homes[key[1:]] = shard
        self.hosts[key[1:]] = new.host
        self._spent(key[1:], old, new)

    def _deleted(self, key: bytes, row: UrlRow) -> None:
        """A row goes because somebody wants it forgotten, or because its crawl ended long ago."""
        crawl = self.definitions[row.crawl]
        if crawl.state == "ended" and self.latest >= crawl.ended + self._expire_after:
            self.expired[key] = row
        elif self.covered(row.crawl, row.url):
            if row.state in (State.WAITING, State.EXCLUDED) and self._may_stray(self.homes[key], key):
                self.surprising.add(key)
        else:
            raise self.broken("nothing is lost", f"the row of {row.url} of {row.crawl} was deleted")

    def _may_stray(self, shard: int, key: bytes) -> bool:
        """Whether an order may be out for a URL, of a former owner or overdue, that nobody waits for; noted if so."""
        if not self.orders.astray(key, self.epochs[shard], self.latest):
            return False
        self._strays.add(key)
        return True

    def _spent(self, key: bytes, old: UrlRow | None, new: UrlRow) -> None:
        """Count pages and bytes; what is excluded by a budget must have used it up, as far as that is in the rows."""
        if new.state in (State.FETCHED, State.DONE) and new.status != 304:
            if new.source == "page":
                self.pages[new.crawl].add(key)
            if old is None or old.state is not State.FETCHED or old.page != new.page:
                self.bytes[new.crawl] += new.size
        elif (
            old is not None
            and old.state is State.WAITING
            and (key, old.visit) in self._bodies
            and new.visit > old.visit
        ):
            # All in one turn: a page was had, and its next visit opened, because a seed wanted that.
            self.bytes[new.crawl] += new.size
            if new.kept:
                self.pages[new.crawl].add(key)
        early = self.latest < oracle.deadline(self.definitions[new.crawl])
        if new.state is State.EXCLUDED and new.outcome == "deadline" and early:
            raise self.broken("budgets are used up", f"{new.url}: the deadline has not come")

    def _move(self, old: UrlRow, new: UrlRow) -> None:
        if new.visit == old.visit:
            fine = new.state in MOVES[old.state] and new.attempt >= old.attempt
        else:
            fine = new.visit == old.visit + 1 and new.state in {State.WAITING, State.EXCLUDED}
            self._comes_back(old, new)
        if not fine or new.url.split("/")[2] != old.url.split("/")[2]:
            raise self.broken("rows move forward", f"{old.url}: {place(old)} → {place(new)}")

    def _comes_back(self, old: UrlRow, new: UrlRow) -> None:
        """A visit follows another when it is due, or because somebody says so: never just so."""
        asked = new.origins != old.origins or new.lastmod > old.lastmod or new.seq != old.seq
        again = old.open or old.state in (State.FAILED, State.EXCLUDED)  # a late success; the crawl's bounds changed
        if not (asked or again or new.depth < old.depth) and not 0 < old.due <= self.latest:
            raise self.broken("not before it is due", f"{old.url}: visit {new.visit}, {old.due - self.latest} ms early")

    def _count(self, key: bytes, row: UrlRow, by: int) -> None:
        if row.open:
            self.open[row.crawl] += by
        if row.state is State.WAITING and not row.due:
            waiting = self.waiting[row.host][row.crawl]
            if by > 0:
                waiting[key] = None
            else:
                waiting.pop(key, None)

    def loaded(self, number: int, epoch: int, shard: Shard, disk: Disk) -> None:
        """A shard was loaded from a store: it must be what the changelog says."""
        self.epochs[number] = max(self.epochs[number], epoch)
        self.trouble()
        self._same(number, disk)

    def trouble(self) -> None:
        """Somebody died, was stopped, or lost a partition: what is open now may be fetched once more."""
        self.allowed_again += sum(self.open.values()) + 1

    def _same(self, number: int, disk: Disk) -> None:
        if disk.memory.rows != self.rows[number]:
            wrong = {key for key in disk.memory.rows.keys() | self.rows[number].keys()
                     if disk.memory.rows.get(key) != self.rows[number].get(key)}  # fmt: skip
            raise self.broken("store equals changelog", f"shard {number}: {len(wrong)} rows differ")

    # ---- a turn

    def turn(self, shard: Shard, turn: Turn, inbox: Sequence[tuple[int, m.Inbox]], elsewhere: Counts) -> None:
        """A shard has decided: how much does it hold, and what opened what is open now?"""
        self._turns += 1
        if self._turns % 64 == 0:
            self._bounded(shard)
        self.latest = max(self.latest, turn.now)
        self.orders.decided(shard, inbox, elsewhere)
        self._taken[shard.config.shard, shard.epoch] = {
            key for _, message in inbox for key, crawl, *_ in named_in(message) if shard._crawls[crawl].state != "ended"
        }
        at = inbox[0][0] if inbox else -1
        for key, row in turn.changed.items():
            old = self.urls.get(key)
            if old is None or (row.open and not old.open):
                due = old is not None and 0 < old.due <= turn.now and row.seq == old.seq
                self._opened[key] = -1 if due else at

    def _bounded(self, shard: Shard) -> None:
        """What a shard holds in memory is bounded by what waits."""
        queues = shard._release.queues
        for queue in queues.hosts.values():
            if len(queue.parked) > PARKED or any(len(pile.heads) > HEADS for pile in queue.crawls.values()):
                raise self.broken("memory", f"{queue.host}: {len(queue.parked)} parked")

    def durable(self, shard: Shard, turn: Turn) -> None:
        """A turn's writes are done: what its input asked for holds from now on."""
        self._admitted |= self._taken.pop((shard.config.shard, shard.epoch))
        self.orders.told(shard, turn)

    def jump(self, ms: int) -> None:
        """The broker's clock jumps."""
        self.jumped = True
        self.orders.jump(ms)

    def _needs_none(self, key: bytes, crawl: str, url: str) -> bool:
        """Whether an accepted URL may have no row: it is forgotten, or came too late.

        A seed never comes too late for a row, but that its crawl's rows may have expired: then `failures` names it.
        What a shard has taken while it knew of no end has one in any case.
        """
        if self.covered(crawl, url):
            return True
        if key in self._seeds:
            return key in self.refused
        late = self.definitions[crawl].result == "cancelled" or self.came_late(key, crawl)
        return late and key not in self._admitted

    # ---- when nothing moves any more

    def quiet(self, disks: dict[int, Disk], shards: dict[int, Shard]) -> None:
        """Nothing is on its way and nothing waits for a time."""
        for key, (crawl, url) in self.accepted.items():
            row = self.urls.get(key) or self.expired.get(key)
            if row is None and self._needs_none(key, crawl, url):
                continue
            if row is None or row.open:
                raise self.broken("nothing is lost", f"{url} of {crawl}: {'no row' if row is None else place(row)}")
        for number, disk in disks.items():
            self._same(number, disk)
        again = sum(number - 1 for number in self.fetches.values())
        if again > self.allowed_again:
            raise self.broken("crashes repeat little", f"{again} fetches repeated, {self.allowed_again} may be")
        if sweeps := [key for rows in self.rows for key in rows if key[:1] == SWEEP_KEY]:
            raise self.broken("forgotten is gone", f"{len(sweeps)} commands are not carried out")
        for number, shard in shards.items():
            release = shard._release
            held = (len(release.queues.hosts), len(release.released), len(release._due._early))
            if any(held):
                raise self.broken("memory", f"shard {number} keeps hosts, orders, times when all is done: {held}")


def place(row: UrlRow) -> str:
    return f"visit {row.visit}.{row.attempt} {row.state.name.lower()}"
