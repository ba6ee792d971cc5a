"""What an outcome does to its URL's row and its host's row.

Guards make replays harmless: an outcome counts only for the row's visit, a failure also only for its attempt; success
of the current visit wins, also over an earlier failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier.candidates import brings_links_into_reach
from streams.frontier.history import history_of
from streams.frontier.rows import State, Unresolved, UrlRow
from streams.frontier.turn import Turn
from streams.history import HostHistory
from streams.messages import Candidate, Failure, FailureClass, FetchOutcome, Next, ParseOutcome
from streams.policy.keys import SAFE, canonical_by
from streams.policy.retry import decide
from streams.policy.urls import PolitenessMode, fingerprint, politeness_key

replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a visit failed: class, reason and evidence, as they go into `failures`."""

    failure: FailureClass
    reason: str
    evidence: dict[str, str | int]
    retry_after: float | None = None


def fetched(
    turn: Turn, outcome: FetchOutcome, row: UrlRow, crawl: CrawlDefinition | None, politeness: PolitenessMode
) -> None:
    """Apply the fetcher's word on the row's current visit (`deferred` changes no row)."""
    if outcome.result == "fetched" and outcome.page is not None:
        _page(turn, outcome, row)
    elif outcome.result == "unchanged":
        _unchanged(turn, outcome, row, crawl)
    elif outcome.result == "redirected":
        _redirected(turn, outcome, row, crawl, politeness)
    elif outcome.result == "excluded" and row.state is State.WAITING:
        turn.put(outcome.fingerprint, replace(row, state=State.EXCLUDED, outcome=outcome.reason, status=outcome.status,
                                              visited=turn.now, due=0))  # fmt: skip
    elif outcome.result == "failed" and row.state is State.WAITING and outcome.attempt == row.attempt:
        evidence: dict[str, str | int] = {**outcome.evidence}
        if outcome.status:
            evidence["status"] = outcome.status
        fault = Fault(outcome.failure or "protocol", outcome.reason, evidence, outcome.retry_after)
        fail(turn, outcome.fingerprint, row, fault, crawl.attempts if crawl else 1)


def _unchanged(turn: Turn, outcome: FetchOutcome, row: UrlRow, crawl: CrawlDefinition | None) -> None:
    """A 304 ends the visit, unless a shorter way was found while it was asked for: then the page's links are needed."""
    dropped = row.visit > 1 and row.state is State.WAITING and not (row.etag or row.last_modified)
    if dropped and crawl is not None and crawl.depth is not None:
        turn.put(outcome.fingerprint, _once_more(_resolved(turn, row)))
        return
    kept = replace(row, etag=outcome.etag or row.etag, last_modified=outcome.last_modified or row.last_modified)
    _finish(turn, outcome.fingerprint, kept, status=304)


def _once_more(row: UrlRow) -> UrlRow:
    """The next visit of a page whose links are needed: a 304 would not bring them."""
    return replace(row, state=State.WAITING, visit=row.visit + 1, attempt=0, due=0, page=None, outcome="", etag="",
                   last_modified="")  # fmt: skip


def parsed(turn: Turn, outcome: ParseOutcome, row: UrlRow, crawl: CrawlDefinition | None) -> None:
    """Apply the parser's word: it may arrive before the fetcher's, since the page is durable first."""
    if row.state not in (State.WAITING, State.FETCHED, State.FAILED):
        return
    if outcome.failure is not None:
        if row.open:
            page = f"{outcome.page[0]}:{outcome.page[1]}"
            # The page stays in the row: its fetch outcome may come later, and must not open the visit again. Its
            # validators do not: what nobody could parse must be fetched in full next time.
            row = replace(row, page=outcome.page, etag="", last_modified="")
            fail(turn, outcome.fingerprint, row, Fault(outcome.failure, outcome.reason, {"page": page}), 1)
        return
    if crawl is not None and brings_links_into_reach(outcome.depth, row.depth, crawl):
        turn.put(outcome.fingerprint, _once_more(_resolved(turn, row)))
        return
    _finish(turn, outcome.fingerprint, row, content=outcome.content)


def fail(turn: Turn, key: bytes, row: UrlRow, fault: Fault, attempts: int) -> None:
    """One attempt failed: wait for the next one, or end the visit. `attempts` 1: no other try."""
    status = int(fault.evidence.get("status", 0))
    plan = decide(fault.failure, status, row.attempt + 1, attempts, fault.retry_after, jitter(key, row.attempt))
    if plan.retry:
        due = turn.now + max(1, round(plan.delay * 1000))
        turn.put(key, replace(row, attempt=row.attempt + 1, due=due, outcome=fault.failure, status=status, page=None,
                              state=State.WAITING))  # fmt: skip
        step = Next(action="retry", at=due)
    else:
        last = Unresolved(row.visit, row.attempt, fault.failure)
        turn.put(key, replace(row, state=State.FAILED, outcome=fault.failure, status=status, visited=turn.now, due=0,
                              unresolved=last))  # fmt: skip
        step = Next(action="none")
    history = history_of(row.host, turn.host(row.host), turn.now)
    turn.failures.append(failure_of(row, fault, step, turn.now, history))


def failure_of(row: UrlRow, fault: Fault, step: Next, now: int, history: HostHistory | None = None) -> Failure:
    """The message for `failures`."""
    return Failure(
        url=row.url, crawl=row.crawl, visit=row.visit, attempt=row.attempt, failure=fault.failure,
        reason=fault.reason, evidence=fault.evidence, next=step, at=now, meta=row.meta, traceparent=row.traceparent,
        history=history,
    )  # fmt: skip


def jitter(key: bytes, attempt: int) -> float:
    """A number in 0..1 that differs between URLs and attempts and is the same on every replay."""
    return int.from_bytes(blake2b(key + bytes((attempt & 255,)), digest_size=4).digest(), "big") / 2**32


def _page(turn: Turn, outcome: FetchOutcome, row: UrlRow) -> None:
    """A page is durable: waiting becomes fetched; a visit that had failed is resolved."""
    facts = {"status": outcome.status, "etag": outcome.etag, "last_modified": outcome.last_modified,
             "size": outcome.size}  # fmt: skip
    if row.state is State.DONE and not row.status:  # the parser was faster
        turn.put(outcome.fingerprint, replace(row, **facts))
        return
    if row.state not in (State.WAITING, State.FAILED) or row.page == outcome.page:  # or the parser failed on it
        return
    if row.state is State.FAILED:
        row = _resolved(turn, row)
    turn.put(outcome.fingerprint, replace(row, state=State.FETCHED, page=outcome.page, visited=turn.now, due=0,
                                          outcome="", **facts))  # fmt: skip


def _finish(turn: Turn, key: bytes, row: UrlRow, *, status: int = 0, content: bytes = b"") -> None:
    if row.state not in (State.WAITING, State.FETCHED, State.FAILED):
        return
    row = _resolved(turn, row)
    turn.put(key, replace(row, state=State.DONE, visited=turn.now, due=0, outcome="", page=None,
                          status=status or row.status, content=content or row.content))  # fmt: skip


def _resolved(turn: Turn, row: UrlRow) -> UrlRow:
    """The row after a success: if its last failure is not resolved, it is now, whichever visit has succeeded."""
    last = row.unresolved
    if last is None:
        return row
    how = "a later answer of the same visit was" if last.visit == row.visit else f"visit {row.visit} was"
    fault = Fault(cast("FailureClass", last.failure), f"{how} a success", {})
    failed = replace(row, visit=last.visit, attempt=last.attempt)
    turn.failures.append(failure_of(failed, fault, Next(action="resolved"), turn.now))
    return replace(row, unresolved=None)


def _redirected(
    turn: Turn, outcome: FetchOutcome, row: UrlRow, crawl: CrawlDefinition | None, politeness: PolitenessMode
) -> None:
    """A redirect ends the visit; its target is a candidate of its own, with the way it was reached."""
    if row.state not in (State.WAITING, State.FAILED):
        return
    target = _identity(outcome.location, row, crawl)
    if fault := _redirect_fault(outcome, row, target, crawl):
        if row.open:
            fail(turn, outcome.fingerprint, row, fault, 1)
        return
    if row.state is State.FAILED:
        row = _resolved(turn, row)
    if target == outcome.fingerprint:  # another spelling of the same URL is what the site wants to be asked for
        again = replace(row, state=State.WAITING, visit=row.visit + 1, attempt=0, due=0, outcome="", status=0)
        host = politeness_key(outcome.location, politeness)  # another one, if `www.` does not count in the crawl's keys
        turn.put(outcome.fingerprint, replace(again, url=outcome.location, host=host, via=(*row.via, row.url)))
        return
    row = _resolved(turn, row)
    turn.put(outcome.fingerprint, replace(row, state=State.REDIRECTED, visited=turn.now, due=0, status=outcome.status))
    turn.candidates.append(
        Candidate(
            url=outcome.location, fingerprint=target, crawl=row.crawl, depth=row.depth, priority=row.priority,
            parent=row.parent, via=(*row.via, row.url), meta=row.meta, source=row.source,
            traceparent=row.traceparent,
        )
    )  # fmt: skip


def _identity(url: str, row: UrlRow, crawl: CrawlDefinition | None) -> bytes:
    """The fingerprint of another URL of the row's crawl."""
    return fingerprint(row.crawl, canonical_by(crawl.keys if crawl else SAFE)(url))


def _redirect_fault(outcome: FetchOutcome, row: UrlRow, target: bytes, crawl: CrawlDefinition | None) -> Fault | None:
    """Why a redirect is not followed. A way that comes back to a URL it has left is a loop; a new spelling is not."""
    evidence: dict[str, str | int] = {"location": outcome.location, "status": outcome.status}
    if target == outcome.fingerprint:
        loop = outcome.location in (row.url, *row.via)
    else:
        loop = target in {_identity(url, row, crawl) for url in row.via}
    if loop:
        return Fault("redirect_loop", "the redirect leads back to itself", evidence)
    limit = crawl.max_redirects if crawl else 0
    if len(row.via) + 1 > limit:
        return Fault("redirect_limit", f"more than {limit} redirects", evidence)
    return None
