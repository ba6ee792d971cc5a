"""What the judge sees of the wire: by when requests reach each host, under which rules, from whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.definitions import CrawlDefinition
from streams.policy.politeness import Limits
from tests.simulation.ring import oracle
from tests.simulation.ring.engine import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.ring.fetcher import FetcherWorker, Job
    from tests.simulation.ring.judge import Judge

Known = dict[str, CrawlDefinition]
"""The definitions that a fetcher has read."""
SLACK = 1e-6


@dataclass(slots=True)
class Request:
    """One request as the site sees it. Times in seconds. `began`: how many had begun to connect when it did."""

    worker: FetcherWorker
    job: Job
    began: int
    known: Known
    delay: float
    parallelism: int
    ends: float


@dataclass(slots=True)
class Host:
    """What the wire to a host carries: since when, and until when it must be left alone."""

    last: float = -FOREVER
    request: Request | None = None
    hold: float = -FOREVER
    asked: float = -FOREVER
    holder: object = None


class WireBook:
    """All hosts: the gap between requests, how many run beside each other, and who was asked to wait."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.hosts: defaultdict[str, Host] = defaultdict(Host)
        self.running: defaultdict[str, dict[int, Request]] = defaultdict(dict)
        self._where: dict[int, str] = {}
        self._requests = 0
        self._begun = 0

    def begins(self, worker: FetcherWorker, job: Job) -> None:
        """A fetcher starts to connect: by the newest rules that it has read, of all crawls that wait for the host."""
        order, limits = job.order, job.limits
        self._begun += 1
        job.known, job.number = dict(worker.crawls), self._begun
        self._may_begin(job, job.known.get(order.crawl))
        least = _least(job.known, job)
        if (
            order.basis is not None
            and job.terms is not None
            and _versions(job.known, job) == (job.terms.rules, *order.basis.others.values())
        ):
            least = Limits(max(least.delay, order.delay), min(least.parallelism, order.parallelism))
        if limits.delay < least.delay or limits.parallelism > least.parallelism:
            raise self._judge.broken("newest rule", f"{job.url} under {limits}, not {least}")

    def _may_begin(self, job: Job, definition: CrawlDefinition | None) -> None:
        if definition is None:
            return
        if definition.state in ("paused", "ended"):
            raise self._judge.broken("paused is paused", f"{job.url} of {definition.id}, which is {definition.state}")
        if oracle.shut(definition, job.url, self._judge.engine.broker()):
            raise self._judge.broken("windows are obeyed", f"{job.url} is asked for while its window is shut")

    def arrives(self, worker: FetcherWorker, job: Job, at: float, ends: float) -> int:
        """A request reaches its site at `at`; the answer is over at `ends`."""
        order = job.order
        host, running = self.hosts[order.host], self.running[order.host]
        request = Request(worker, job, job.number, job.known, job.limits.delay, job.limits.parallelism, ends)
        former = host.request if host.request is not None and host.request.job.holding is job.holding else None
        gap = self._gap(request, former)
        if gap and at - host.last < gap - SLACK:
            raise self._judge.broken("gap", f"{job.url}: {at - host.last:.3f} s after the last one instead of {gap}")
        beside = [r for r in running.values() if not r.worker.frozen and r.worker.silent is None and r.ends > at]
        most = self._most([request, *(r for r in beside if r.job.holding is job.holding)])
        if len(beside) >= most:
            raise self._judge.broken("parallelism", f"{job.url}: {len(beside) + 1} at a time instead of {most}")
        if job.began < host.hold - SLACK and job.began > host.asked and host.holder is job.holding:
            raise self._judge.broken("host is left alone", f"{job.url}: {host.hold - at:.3f} s early")
        host.last, host.request = max(host.last, at), request
        if order.kind == "page":
            self._judge.fetches[order.fingerprint, order.visit, order.attempt] += 1
        self._requests += 1
        running[self._requests] = request
        self._where[self._requests] = order.host
        return self._requests

    def _gap(self, request: Request, former: Request | None) -> float:
        """Seconds that a request must keep from the one that arrived before it."""
        if former is None:
            return request.delay
        known = _last_begun([request, former]).known
        return max(self._kinder(known, each).delay for each in (request, former))

    def _most(self, beside: list[Request]) -> int:
        """How many may run beside each other."""
        known = _last_begun(beside).known
        return min(self._kinder(known, each).parallelism for each in beside)

    def _kinder(self, known: Known, request: Request) -> Limits:
        """What a request asks of one that begins later, by whoever has read `known` then.

        The rules under which it began, or kinder ones that were in force at any moment since: rules that are read
        hold for requests that run, so somebody may begin beside one; and a gap that has passed by the rules of one
        moment does not begin anew when stricter ones are read. Whoever begins last obeys the newest rules as they are.
        """
        names, basis = _names(request.job), request.job.order.basis
        if all(known.get(name) == request.known.get(name) for name in names):
            return Limits(request.delay, request.parallelism)
        delays, most = [0.0], list[int]()
        for name in names:
            since, until = (each[name].version if name in each else 0 for each in (request.known, known))
            read = [crawl for crawl in self._judge.history[name] if since <= crawl.version <= until]
            found = [oracle.on_host(crawl, request.job.order.host) if name != names[0]
                     else oracle.of_url(crawl, request.job.url) for crawl in read]  # fmt: skip
            delays.append(min((delay for delay, _ in found), default=0.0))
            most.append(max((number for _, number in found), default=request.parallelism))
        if basis is not None:
            crawls = [crawl for name in names if (crawl := request.known.get(name)) is not None]
            delays.append(basis.crawl_delay if any(crawl.robots for crawl in crawls) else 0.0)
            delays.append(basis.learned if any(crawl.adaptive_delay for crawl in crawls) else 0.0)
        return Limits(min(request.delay, max(delays)), max(request.parallelism, min(most)))

    def left(self, request: int) -> None:
        """A request is over, for its fetcher."""
        if request:
            del self.running[self._where.pop(request)][request]

    def asked_to_wait(self, job: Job, until: float) -> None:
        """A host asks to be left alone; whoever heard it must do so."""
        host = self.hosts[job.order.host]
        if until > host.hold:
            host.hold, host.asked, host.holder = until, self._judge.engine.time, job.holding


def _last_begun(requests: Iterable[Request]) -> Request:
    """The one that began to connect last: its fetcher looked at the others then."""
    return max(requests, key=lambda request: request.began)


def _names(job: Job) -> tuple[str, ...]:
    """The crawls that an order's limits come from: its own, and those with URLs on its host."""
    basis = job.order.basis
    return (job.order.crawl, *(basis.others if basis is not None else ()))


def _crawls(known: Known, job: Job) -> list[CrawlDefinition | None]:
    """What a fetcher has read of the crawls that an order's limits come from."""
    return [known.get(name) for name in _names(job)]


def _versions(known: Known, job: Job) -> tuple[int, ...]:
    return tuple(crawl.version if crawl is not None else 0 for crawl in _crawls(known, job))


def _least(known: Known, job: Job) -> Limits:
    """What the definitions that a fetcher has read ask for at the least, and the site's robots.txt."""
    own, *others = _crawls(known, job)
    found = [oracle.on_host(crawl, job.order.host) for crawl in others if crawl is not None]
    if own is not None:
        found.append(oracle.of_url(own, job.url))
    robots = any(crawl.robots for crawl in (own, *others) if crawl is not None)
    asked = job.order.basis.crawl_delay if job.order.basis is not None and robots else 0.0
    return Limits(max([asked, *(delay for delay, _ in found)]), min((most for _, most in found), default=1))
