"""What must have come of a schedule when nothing moves any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from streams.frontier.budgets import HOST_BYTES, HOST_PAGES
from streams.frontier.rows import State, UrlRow
from streams.topics import INBOX, RECORDS
from tests.simulation.ring import oracle
from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.parser import DELETED

if TYPE_CHECKING:
    from streams.definitions import CrawlDefinition
    from tests.simulation.ring.ring import Ring

BUDGETS = frozenset({"limit", "size", "deadline", HOST_PAGES, HOST_BYTES})


def check(ring: Ring) -> None:
    """Raises `Broken`."""
    judge = ring.judge
    shards = {n: s for worker in ring.engine.workers if isinstance(worker, FrontierWorker)
              for n, s in worker.shards.items()}  # fmt: skip
    owners = {n: ring.groups[0].assignment[INBOX.name, n].name for n in range(ring.plan.shards)}
    judge.quiet({n: ring.disk(name, n) for n, name in owners.items()}, shards)
    if missing := judge.definitions.keys() - judge.ended.keys():
        raise judge.broken("it ends", f"nobody announced the end of {sorted(missing)}")
    rows = judge.expired | judge.urls
    for crawl in judge.definitions.values():
        mine = {row.url: (key, row) for key, row in rows.items() if row.crawl == crawl.id}
        _as_walked(ring, crawl, mine)
        _by_budget(ring, crawl, mine)
        _visited(ring, crawl, mine)
    _forgotten(ring)
    _expired(ring)
    _written_once(ring)


Rows = dict[str, tuple[bytes, UrlRow]]
"""A crawl's rows with their keys, by URL."""


def _as_walked(ring: Ring, crawl: CrawlDefinition, rows: Rows) -> None:
    """The rows are those that a walk of the sites finds, each in a state that it may end in.

    What was reached before something was forgotten may have been reached through that: it may be there.
    """
    seeds, late = ring.seeds[crawl.id], ring.late[crawl.id]
    must = ring.web.reach(crawl, seeds, crawl.robots)
    may = ring.web.reach(replace(crawl, scope_rules=()), [*seeds, *late], crawl.robots)
    if strange := rows.keys() - may.keys():
        raise ring.judge.broken("nothing is invented", f"{sorted(strange)[:3]} of {crawl.id}")
    forgotten = {url for url in may if oracle.forgotten(crawl, url)}
    for url in rows.keys() & forgotten:
        if rows[url][1].state is not State.EXCLUDED and rows[url][0] not in ring.judge.expired:
            raise ring.judge.broken("forgotten is gone", f"{url} of {crawl.id} is {rows[url][1].state.name.lower()}")
    if oracle.bounded(crawl):
        return
    if lost := must.keys() - rows.keys() - forgotten:
        raise ring.judge.broken("nothing is lost", f"{crawl.id} never met {sorted(lost)[:3]}")
    for url in rows.keys() - forgotten:
        key, row = rows[url]
        state = row.state.name.lower()
        behind = url not in must or row.visit > 1  # what seeds before the seal lead to had its end in time
        shut_out = behind and row.outcome == "ended" and ring.judge.came_late(key, crawl.id)
        if state not in may[url] and not shut_out:
            raise ring.judge.broken(
                "the right end", f"{url} of {crawl.id} is {state} ({row.outcome}), not {set(may[url])}"
            )


def _by_budget(ring: Ring, crawl: CrawlDefinition, rows: Rows) -> None:
    """What a budget kept out was kept out when that budget was used up, not before."""
    judge = ring.judge
    pages, size = judge.pages[crawl.id], judge.bytes[crawl.id]
    kept_out = {(row.outcome, row.host) for _, row in rows.values() if row.state is State.EXCLUDED}
    for rule, host in kept_out:
        if rule == "limit" and len(pages) < (crawl.limit or 0):
            raise judge.broken("budgets are used up", f"{crawl.id}: {len(pages)} pages of {crawl.limit}")
        if rule == "size" and size < (crawl.max_size or 0):
            raise judge.broken("budgets are used up", f"{crawl.id}: {size} bytes of {crawl.max_size}")
        if rule == HOST_PAGES and sum(judge.hosts[key] == host for key in pages) < (crawl.host_limit or 0):
            raise judge.broken("budgets are used up", f"{crawl.id}: pages of {host}, {crawl.host_limit} allowed")


def _visited(ring: Ring, crawl: CrawlDefinition, rows: Rows) -> None:
    """A crawl that ended because nothing was left has visited each of its URLs as often as it should."""
    if crawl.recrawl is None or crawl.recrawl.rounds is None or oracle.bounded(crawl):
        return
    for key, row in rows.values():
        kept_out = row.state is State.EXCLUDED and row.outcome != "robots"
        if not kept_out and row.visit < crawl.recrawl.rounds and not ring.judge.came_late(key, crawl.id):
            raise ring.judge.broken("visited again", f"{row.url} of {crawl.id} has had {row.visit} visits")


def _forgotten(ring: Ring) -> None:
    """Of what was forgotten no record is left behind the word that it is to be deleted.

    But for URLs that a former owner had ordered: their pages come as a surprise. Sinks are told then, too, behind the
    page; a parser that stood still meanwhile, and has not read the rule, may write the record after that.
    """
    judge, last = ring.judge, dict[bytes, int]()
    for _, (key, visit) in ring.broker.read(RECORDS.name, 0, 0, 1_000_000):
        last[key] = visit
    for crawl, url, host in judge.forgotten:
        for key, (name, known) in judge.accepted.items():
            covered = known.split("/")[2] == url.split("/")[2] if host else known == url
            if key in judge.expired or key in judge.surprising:
                continue
            if name == crawl and covered and last.get(key, DELETED) != DELETED:
                raise judge.broken("forgotten is gone", f"the record of {known} of {crawl} was not deleted")


def _expired(ring: Ring) -> None:
    """Of a crawl that ended long ago no row is left."""
    now = ring.engine.broker()
    old = {crawl.id for crawl in ring.judge.definitions.values() if now > crawl.ended + ring.expire_after * 1000}
    if ring.expires and (left := [row for row in ring.judge.urls.values() if row.crawl in old]):
        raise ring.judge.broken("rows expire", f"{left[0].url} of {left[0].crawl} is still there")


def _written_once(ring: Ring) -> None:
    lines = ring.folder.lines
    if len(set(lines)) != len(lines):
        raise ring.judge.broken("written once", f"{len(lines) - len(set(lines))} lines too many")
    rows = ring.judge.expired | ring.judge.urls
    done = {
        (key, row.visit) for key, row in rows.items()
        if row.state is State.DONE and row.status != 304 and row.source == "page"
    }  # fmt: skip
    if lost := done - set(lines):
        raise ring.judge.broken("nothing is lost", f"{len(lost)} records are missing")
