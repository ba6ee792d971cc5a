"""Fetch orders as the fetcher works on them, and their translation: order to request, answer to page and outcome."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from agents.deaths import Told
from agents.io.http import Request, now
from streams.errors import MessageError
from streams.messages import FetchOutcome, FetchResult, PageHeaders, WireRequest
from streams.policy import robots
from streams.policy.in_force import Terms, terms_of
from streams.policy.limits import with_own
from streams.policy.politeness import Limits
from streams.policy.retry import FIRST_PAUSE, parse_retry_after
from streams.policy.urls import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agents.clock import BrokerClock
    from agents.delivery import Slot
    from agents.holdings import Holding
    from agents.io.http import Answer, Exchange
    from streams.definitions import CrawlDefinition
    from streams.messages import FetchOrder, RequestKind
    from streams.policy.in_force import InForce
    from streams.policy.limits import Effective

REMEMBER: Final = 60.0
"""Seconds for which an outcome is given again to a repeated order."""

HEAD: Final = 1024
"""Characters of an answer's header fields that go into the evidence of a failure."""

REMEMBERED: Final = 50_000
_UNSENT: Final = frozenset({"dns", "ssrf"})
"""Failures of requests of which no packet left."""

Key = tuple[bytes, int, int, bool]
"""What makes two orders the same: fingerprint, visit, attempt, and whether it is about a robots.txt."""


def key_of(order: FetchOrder) -> Key:
    """The identity of an order."""
    return (order.fingerprint, order.visit, order.attempt, order.kind == "robots")


class Crawls(Told, Protocol):
    """What the fetcher asks of `agents.broadcast`."""

    @property
    def crawls(self) -> Mapping[str, CrawlDefinition]:
        """The definitions that were read so far."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after definitions were read."""


@dataclass(slots=True, eq=False)
class Job:
    """One order being worked on, for everyone who waits for its outcome.

    `url` and `kind`: of its next request on the wire. `address`: where it goes, if that is capped. `limits`: under
    which it starts, by its `terms`. `values`: of its rule in `definition`, the newest that was known when it was last
    looked at.
    `repeated`: its one repetition after a broken kept-alive connection is used up. `tickets`: its requests that
    have not ended, as its host's clock calls them: one, or for a moment two while an aborted one ends.
    """

    order: FetchOrder
    partition: int
    holding: Holding
    taken: float
    waiters: list[tuple[FetchOrder, Slot]]
    url: str
    kind: RequestKind
    limits: Limits = field(default_factory=Limits)
    terms: Terms | None = None
    definition: CrawlDefinition | None = None
    values: Effective | None = None
    address: str = ""
    hops: int = 0
    repeated: bool = False
    tickets: set[int] = field(default_factory=set)
    requests: list[WireRequest] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def next_terms(self) -> Terms:
        """The terms of its next request, with the share of the random delay after it, which is drawn once."""
        self.terms = terms_of(self.order, self.url, random.random())  # noqa: S311 - spreads requests, guards nothing
        return self.terms

    def obey(self, definition: CrawlDefinition | None, in_force: InForce) -> None:
        """Take over the newest rules.

        Once a request has gone out the order stays as it is: its outcome names the version under which it began.
        """
        self.limits = in_force.limits(self.terms or self.next_terms())
        if definition is None or (self.values is not None and definition is self.definition):
            return
        self.definition = definition
        self.values = in_force.rules.of(definition).for_url(self.url)
        if definition.version > self.order.rules and not self.requests:
            self.order = renewed(self.order, self.values)

    def broke(self, answer: Answer, exchange: Exchange) -> bool:
        """A kept-alive connection that the server closed just when we used it says nothing: ask once more, in turn."""
        if answer.failure != "connection" or not exchange.reused or self.repeated:
            return False
        self.kind, self.repeated = "retry", True
        return True

    def note(self, exchange: Exchange, answer: Answer | None, clock: BrokerClock, fetcher: str) -> None:
        """Add a request that went out on the wire to what the outcome reports; `answer` None: it was aborted."""
        if answer is None and not exchange.sent:
            return
        if not exchange.start or (answer is not None and answer.failure in _UNSENT):
            return
        self.requests.append(
            WireRequest(
                kind=self.kind,
                host=self.order.host,
                url=self.url,
                start=clock.ms(exchange.began),
                end=clock.ms(answer.end if answer else now()),
                status=answer.status if answer else 0,
                fetcher=fetcher,
                address=exchange.address,
                delay=self.limits.delay,
                parallelism=self.limits.parallelism,
            )
        )


class Recent:
    """The outcomes of the last minute, with the requests they report: evidence told twice is better than never."""

    def __init__(self) -> None:
        self._outcomes: dict[Key, FetchOutcome] = {}
        self._expiry: deque[tuple[float, Key]] = deque()

    def remember(self, key: Key, outcome: FetchOutcome, at: float) -> None:
        """Keep an outcome for a while."""
        self._forget(at)
        self._outcomes[key] = outcome
        self._expiry.append((at + REMEMBER, key))

    def get(self, key: Key, at: float) -> FetchOutcome | None:
        """The outcome of the same order, if it is recent."""
        self._forget(at)
        return self._outcomes.get(key)

    def _forget(self, at: float) -> None:
        while self._expiry and (self._expiry[0][0] <= at or len(self._expiry) > REMEMBERED):
            self._outcomes.pop(self._expiry.popleft()[1], None)


def renewed(order: FetchOrder, values: Effective) -> FetchOrder:
    """An order by newer rules than it was released under: as they are at the moment of connecting."""
    if order.kind == "robots":
        return msgspec.structs.replace(
            order, rules=values.version, rule=values.rule, user_agent=values.user_agent, timeout=values.timeout
        )
    return msgspec.structs.replace(
        order, rules=values.version, rule=values.rule, user_agent=values.user_agent, timeout=values.timeout,
        headers=with_own(values.headers, order.headers), max_body=values.max_body,
        accept=values.accept if order.source == "page" else (),
    )  # fmt: skip


def request_of(job: Job, max_body: int, most: int) -> Request:
    """The next request of a job. `max_body` where its crawl sets no limit, but never more than `most`."""
    order = job.order
    headers = dict(order.headers) if order.headers and job.kind != "robots" else {}
    if order.user_agent:
        headers["User-Agent"] = order.user_agent
    if order.kind == "robots":
        # One byte more than is read, so that a longer file is known to be longer.
        return Request(job.url, robots.SIZE_LIMIT + 1, headers, order.timeout)
    if order.accept and not any(name.lower() == "accept" for name in headers):
        headers["Accept"] = ", ".join(order.accept)
    if order.etag:
        headers["If-None-Match"] = order.etag
    if order.last_modified:
        headers["If-Modified-Since"] = order.last_modified
    return Request(job.url, min(order.max_body or max_body, most), headers, order.timeout, order.accept)


def retry_after(answer: Answer, at: int) -> float | None:
    """Seconds for which the host wants to be left alone: 429 and 5xx with `Retry-After`. `at` in ms."""
    if answer.status != 429 and not 500 <= answer.status < 600:
        return None
    value = answer.fields.get("Retry-After", "")
    return parse_retry_after(value, at) if value else None


def pause(answer: Answer, at: int) -> float:
    """Seconds for which to leave the host alone now: as long as it wants, or a moment if it is overloaded."""
    asked = retry_after(answer, at)
    if asked is not None:
        return asked
    return FIRST_PAUSE if answer.status in (429, 503) else 0.0


def evidence_of(job: Job, answer: Answer) -> dict[str, str]:
    """What shows a failure: what was asked where, how long it took (seconds), and how the head of the answer began."""
    found = {**answer.evidence, "elapsed": f"{answer.end - answer.start:.3f}"}
    if job.url != job.order.url:
        found["url"] = job.url
    if answer.address:
        found["address"] = answer.address
    if answer.first_byte:
        found["first_byte"] = f"{answer.first_byte - answer.start:.3f}"
    if answer.raw_headers:
        found["head"] = "\n".join(f"{name}: {value}" for name, value in answer.headers)[:HEAD]
    return found


def check_order(order: FetchOrder, shards: int) -> None:
    """A foreign order whose request or outcome could go nowhere: `MessageError`."""
    if not 0 <= order.shard < shards:
        raise MessageError(f"there is no shard {order.shard}")
    if parse(order.url) != order.url:
        raise MessageError(f"not a URL as it goes on the wire: {order.url[:200]}")


def page_of(order: FetchOrder, answer: Answer, clock: BrokerClock) -> PageHeaders:
    """The facts about a page."""
    return PageHeaders(
        crawl=order.crawl,
        url=order.url,
        fingerprint=order.fingerprint,
        visit=order.visit,
        attempt=order.attempt,
        shard=order.shard,
        status=answer.status,
        headers=answer.headers,
        start=clock.ms(answer.start),
        first_byte=clock.ms(answer.first_byte),
        end=clock.ms(answer.end),
        address=answer.address,
        robots=order.robots,
        rules=order.rules,
        truncated=answer.truncated,
        depth=order.depth,
        priority=order.priority,
        parent=order.parent,
        source=order.source,
        meta=order.meta,
        traceparent=order.traceparent,
    )


def outcome_of(job: Job, result: FetchResult, **facts: Any) -> FetchOutcome:
    """The outcome of a job for the order it was taken for."""
    order = job.order
    return FetchOutcome(
        kind=order.kind,
        crawl=order.crawl,
        fingerprint=order.fingerprint,
        url=order.url,
        visit=order.visit,
        attempt=order.attempt,
        epoch=order.epoch,
        result=result,
        rules=order.rules,
        robots=order.robots,
        requests=tuple(job.requests),
        traceparent=order.traceparent,
        **facts,
    )


def for_order(outcome: FetchOutcome, order: FetchOrder) -> FetchOutcome:
    """The same outcome for a repeated order, which may be of a later epoch."""
    if outcome.epoch == order.epoch and outcome.traceparent == order.traceparent:
        return outcome
    return msgspec.structs.replace(outcome, epoch=order.epoch, traceparent=order.traceparent)


def validators(answer: Answer) -> dict[str, str]:
    """ETag and Last-Modified, to be sent back byte for byte (RFC 9110 §13.1): only where they are ASCII."""
    found = {"etag": answer.fields.get("ETag", ""), "last_modified": answer.fields.get("Last-Modified", "")}
    return {
        name: value for name, value in found.items() if value.isascii() and value.isprintable() and len(value) < 1024
    }
