"""Hosts that are not there: no such name, a port that refuses, packets that vanish, a robots.txt that fails.

No setting shortens what a host is waited for; what ends such a host is its robots.txt, of which eight probes fail
(`streams.policy.retry.patience`): after half a minute to four minutes, and the time that the probes take.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from streams import messages
from streams.codecs import decode
from streams.definitions import CrawlDefinition
from tests.faults import facts
from tests.faults.bench import Bench
from tests.faults.fleet import host_names
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import READ, Service, seal

HOSTS: Final = 10
"""Of each kind."""

PATIENT: Final = 254.0 + 8 * 20.0
"""Seconds that a host of the most patient kind is waited for: eight probes, each up to the time to the first byte."""

QUICK: Final = ("no such name", "refusing")
KINDS: Final = (*QUICK, "black-holed", "robots 503")
CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "no such name": frozenset({"dns", "host_unreachable"}),
    "refusing": frozenset({"connection", "host_unreachable"}),
    "black-holed": frozenset({"timeout", "host_unreachable"}),
    "robots 503": frozenset({"http_status", "host_unreachable"}),
}
"""What a URL of such a host may fail as."""


def dead_hosts(bench: Bench, dose: Dose) -> Verdict:
    """`size` URLs on hosts of each of the first `times` kinds; the crawl must end by itself."""
    kinds = KINDS[: dose.times]
    hosts = {kind: [name.replace(".test", ".invalid") for name in _names(kind)] for kind in kinds}
    seeds = [f"http://{name}/{n}.html" for kind in kinds for name in hosts[kind] for n in range(dose.size // HOSTS)]
    with ExitStack() as stack:
        ports = {
            "refusing": _refused(), "black-holed": stack.enter_context(_black_hole()),
            "robots 503": stack.enter_context(_unwell()),
        }  # fmt: skip
        routes = tuple(f"{name}:80:127.0.0.1:{port}" for kind, port in ports.items() for name in hosts.get(kind, ()))
        service = stack.enter_context(bench.own_service({"fetch.connect_to": routes}))
        took, found = crawl(service, bench.line, seeds)
    return judge(kinds, hosts, seeds, took, found)


def crawl(service: Service, name: str, seeds: list[str]) -> tuple[float, dict[str, list[messages.Failure]]]:
    """Crawl the seeds to the end: seconds, and the final failures of each URL."""
    starts = asyncio.run(facts.ends(service.bootstrap, [service.prefix + topic for topic in READ]))
    made = CrawlDefinition(id=name, created=time.time_ns() // 1_000_000, delay=0.0, parallelism=4)
    began = time.monotonic()
    asyncio.run(seal(service, made, seeds))

    def ended() -> bool:
        known, topic = facts.Facts(), service.prefix + "crawls"
        facts.take_ends(known, name, asyncio.run(facts.read(service.bootstrap, topic, starts[topic])))
        return bool(known.ends)

    service.workers.until(ended, "the crawl ends", 2 * PATIENT + 600)
    took = time.monotonic() - began
    topic = service.prefix + "failures"
    found: dict[str, list[messages.Failure]] = defaultdict(list)
    for record in asyncio.run(facts.read(service.bootstrap, topic, starts[topic])):
        failure = decode(messages.Failure, record.value)
        if failure.next.action == "none":
            found[failure.url].append(failure)
    return took, found


def judge(
    kinds: tuple[str, ...], hosts: Mapping[str, list[str]], seeds: list[str], took: float,
    found: Mapping[str, list[messages.Failure]],
) -> Verdict:  # fmt: skip
    """Each URL once, with a class that fits its host."""
    verdict = Verdict(figures={"URLs": len(seeds), "seconds until the end": round(took)})
    kind_of = {name: kind for kind in kinds for name in hosts[kind]}
    classes: dict[str, Counter[str]] = defaultdict(Counter)
    for url in seeds:
        kind, failures = kind_of[url.split("/")[2]], found.get(url, [])
        verdict.require(len(failures) == 1, f"{url}: {len(failures)} final failures")
        for failure in failures:
            classes[kind][failure.failure] += 1
            verdict.require(failure.failure in CLASSES[kind], f"{url} ({kind}) failed as {failure.failure}")
    for kind, counts in classes.items():
        verdict.figures[kind] = ", ".join(f"{number} {failure}" for failure, number in counts.most_common())
    verdict.require(set(found) <= set(seeds), "failures of URLs that nobody asked for")
    return verdict


def _names(kind: str) -> tuple[str, ...]:
    return host_names(HOSTS, domain=f"{kind.replace(' ', '-')}.test")


def _refused() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def _black_hole() -> Iterator[int]:
    """A port where nobody takes what arrives: when its queue is full the kernel drops what wants to connect."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server.getsockname()[1]


class _Unwell(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def _unwell() -> Iterator[int]:
    """A server that answers 503 to everything; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unwell) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


LINES = (
    Line(
        "dead-hosts", "dead hosts", "the crawl ends; each URL once, with its class; time stated",
        dead_hosts,
        Dose("1,000 URLs each on hosts without a name, refusing, black-holed, with a robots.txt of 503", 4, size=1000),
        Dose("100 URLs each on hosts without a name and refusing", times=2, size=100),
    ),
)  # fmt: skip
