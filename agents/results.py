"""What the fetcher makes of an answer: a page in `pages`, robots rules, and the outcome that names them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agents.jobs import Job, evidence_of, outcome_of, page_of, retry_after, validators
from agents.meter import Meter
from streams.codecs import encode_page_headers
from streams.errors import MessageError
from streams.policy import robots, urls
from streams.policy.answers import FETCHED, Verdict, judge
from streams.topics import PAGES, page_partition

if TYPE_CHECKING:
    from agents.clock import BrokerClock
    from agents.delivery import Delivery
    from agents.io.http import Answer
    from streams.messages import FetchOutcome, PageHeaders
    from streams.policy.urls import PolitenessMode

ROBOTS_HOPS: Final = 5
"""Redirects of a robots.txt that are followed (RFC 9309 §2.3.1.2)."""

_ROOM: Final = 1024  # bytes a cut page leaves free for what Kafka adds to a record


class Results:
    """Concludes jobs. `owned` is awaited before a page is sent: nothing is sent between two generations."""

    def __init__(
        self, delivery: Delivery, meter: Meter, clock: BrokerClock, mode: PolitenessMode, owned: asyncio.Event
    ) -> None:
        self._delivery = delivery
        self._meter = meter
        self._clock = clock
        self._mode = mode
        self._owned = owned
        self._partitions = delivery.partitions(PAGES)

    async def conclude(self, job: Job, answer: Answer) -> FetchOutcome | None:
        """The outcome of a job, its page delivered; None: the job goes on with another request."""
        self._meter.answered(job, answer)
        outcome = self._robots(job, answer) if job.order.kind == "robots" else await self._page(job, answer)
        if outcome is not None:
            self._meter.concluded(outcome)
        return outcome

    def deferred(self, job: Job, reason: str, seconds: float | None) -> FetchOutcome:
        """The outcome of a job that is given back; `seconds`: how long its host is to be left alone.

        What the host's delay asks for goes by a name of its own: rules may make it shorter, `retry_after` never.
        """
        self._meter.deferred(reason)
        if reason == "delay":
            return outcome_of(job, "deferred", reason=reason, gap=seconds or 0.0)
        return outcome_of(job, "deferred", reason=reason, retry_after=seconds)

    # ---- pages

    async def _page(self, job: Job, answer: Answer) -> FetchOutcome:
        order = job.order
        verdict = self._verdict(job, answer)
        if verdict.result == "fetched":
            try:
                place = await self._publish(job, answer)
            except MessageError as error:
                return self._outcome(job, answer, Verdict("failed", "too_large", error.reason))
            return outcome_of(
                job,
                "fetched",
                status=answer.status,
                page=place,
                size=len(answer.body),
                elapsed=answer.end - answer.start,
                **validators(answer),
            )
        if verdict.result == "excluded":
            return outcome_of(job, "excluded", status=answer.status, reason=verdict.reason,
                              evidence={"content_type": answer.refused},
                              elapsed=answer.end - answer.start)  # fmt: skip
        if verdict.result == "unchanged":
            newer = {name: value for name, value in validators(answer).items() if value}
            kept = {"etag": order.etag, "last_modified": order.last_modified, **newer}
            return outcome_of(job, "unchanged", status=304, elapsed=answer.end - answer.start, **kept)
        return self._outcome(job, answer, verdict)

    def _verdict(self, job: Job, answer: Answer) -> Verdict:
        if answer.failure is not None:
            return Verdict("failed", answer.failure, answer.reason)
        if answer.refused:
            return Verdict("excluded", reason=f"accept:{job.order.rule}")
        if 200 <= answer.status < 300:
            return FETCHED
        conditional = bool(job.order.etag or job.order.last_modified)
        return judge(job.url, answer.status, answer.values(b"location"), conditional=conditional)

    def _outcome(self, job: Job, answer: Answer, verdict: Verdict) -> FetchOutcome:
        """A failure or a redirect."""
        return outcome_of(
            job,
            verdict.result,
            status=answer.status,
            failure=verdict.failure,
            reason=verdict.reason,
            evidence=evidence_of(job, answer) if verdict.result == "failed" else {},
            location=verdict.location,
            retry_after=retry_after(answer, self._clock.ms(answer.end)),
            elapsed=answer.end - answer.start,
        )

    async def _publish(self, job: Job, answer: Answer) -> tuple[int, int]:
        """Send the page and wait until it is durable: its place. Raises `MessageError` if its facts are too large."""
        await self._owned.wait()
        order = job.order
        key = order.url.encode()
        page = page_of(order, answer, self._clock)
        headers = encode_page_headers(page)
        partition = page_partition(order.url, self._partitions)
        try:
            sent = await self._delivery.send(PAGES, answer.body, key=key, partition=partition, headers=headers)
        except MessageError:
            body, headers = self._cut(key, answer, page)
            sent = await self._delivery.send(PAGES, body, key=key, partition=partition, headers=headers)
        metadata = await sent
        return (partition, int(metadata.offset))

    def _cut(self, key: bytes, answer: Answer, page: PageHeaders) -> tuple[bytes, list[tuple[str, bytes]]]:
        """A page as large as the topic takes, marked as truncated."""
        headers = encode_page_headers(msgspec.structs.replace(page, truncated=page.truncated or "length"))
        taken = sum(len(name) + len(value) + 10 for name, value in headers) + len(key) + _ROOM
        return answer.body[: max(0, self._delivery.largest(PAGES) - taken)], headers

    # ---- robots.txt

    def _robots(self, job: Job, answer: Answer) -> FetchOutcome | None:
        """Rules, a hop within the host, or a redirect to another host, which becomes an order on that host."""
        order = job.order
        origin = order.parent or urls.origin(order.url)
        at = self._clock.ms(answer.end)
        seconds = retry_after(answer, at)
        facts: dict[str, Any] = {"status": answer.status, "retry_after": seconds, "elapsed": answer.end - answer.start}
        if answer.failure is not None:
            rules = robots.unreachable(origin, at, seconds)
            return outcome_of(job, "failed", failure=answer.failure, reason=answer.reason, robots_rules=rules,
                              evidence=evidence_of(job, answer), **facts)  # fmt: skip
        verdict = judge(job.url, answer.status, answer.values(b"location"), conditional=False)
        if verdict.result == "redirected" and job.hops < ROBOTS_HOPS:
            if urls.politeness_key(verdict.location, self._mode) != order.host:
                return outcome_of(job, "redirected", location=verdict.location, **facts)
            job.url, job.kind, job.hops = verdict.location, "redirect", job.hops + 1
            return None
        complete = answer.truncated is None
        rules = robots.read(origin, answer.status, answer.body, at, complete=complete, retry_after=seconds,
                            max_age=robots.max_age_of(answer.values(b"cache-control")))  # fmt: skip
        if rules.access == "disallow_all":
            return outcome_of(job, "failed", failure="http_status", reason=verdict.reason, robots_rules=rules,
                              evidence=evidence_of(job, answer), **facts)  # fmt: skip
        return outcome_of(job, "fetched", robots_rules=rules, **facts)
