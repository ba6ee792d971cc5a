"""What one schedule is: a seed, sizes, what the web is like, and a list of faults. It can be written on one line."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

Quirk = Literal[
    "redirects", "gone", "flaky", "busy", "slow", "dead", "robots", "delays", "depth", "traps", "scope", "limit",
    "narrow", "sitemaps", "recrawl", "rules", "windows", "learned", "budgets", "quota", "priorities", "domain",
    "expiry",
]  # fmt: skip
"""What sites are like: `busy`: 429 and 503 with Retry-After; `traps`: endless spaces of URLs, bounded by depth;
`narrow`: a link a page; `sitemaps`: robots.txt names some.

And what crawls ask for: `recrawl`; limit `rules`, with time `windows`; a delay that is `learned`; `budgets` of pages,
bytes and time, in all and for each host; a `quota` of orders out over all hosts; `priorities` of seeds; politeness by
registrable `domain`; the `expiry` of finished crawls' rows."""

Kind = Literal[
    "kill", "pause", "rebalance", "join", "jump", "lose", "expire", "twice", "seed", "update", "hold", "rules",
    "forget", "cancel",
]  # fmt: skip
"""`join`: a worker leaves and another joins; `lose`: orders go missing; `expire`: pages do; `twice`: a message is
written twice; `update`: a crawl's delay or parallelism changes; `hold`: it is paused for a while; `rules`: it gets
other limit rules; `forget`: a URL or a host is to be forgotten; `cancel`: it ends at once."""

EVENTS = 40
"""About so many events are needed for a URL."""

SHARES = (0.08, 0.15, 0.15, 0.3, 0.6)
"""Of all quirks that a plan has: most have few, so that they can be told apart; some have many."""

QUIRKS: tuple[Quirk, ...] = get_args(Quirk)
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Fault:
    """Something that happens before the `at`-th event; `who` and `much` mean what the kind makes of them."""

    at: int
    kind: Kind
    who: int
    much: int

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}:{self.who}:{self.much}"


@dataclass(frozen=True)
class Plan:
    """A schedule. Everything that is random in it follows from `seed` and the sizes."""

    seed: int
    hosts: int = 3
    urls: int = 20
    shards: int = 2
    crawls: int = 1
    workers: int = 2
    quirks: tuple[Quirk, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={getattr(self, name)}" for name in SIZES)
        return f"{sizes},quirks={'+'.join(self.quirks)},faults={'/'.join(map(str, self.faults))}"


SIZES = ("seed", "hosts", "urls", "shards", "crawls", "workers")


def parse(text: str) -> Plan:
    """The plan that was written as `text`. Raises `ValueError`."""
    fields = dict(part.split("=", 1) for part in text.split(","))
    quirks = tuple(name for name in QUIRKS if name in fields.get("quirks", "").split("+"))
    faults = tuple(_fault(part) for part in fields.get("faults", "").split("/") if part)
    return Plan(**{name: int(fields[name]) for name in SIZES}, quirks=quirks, faults=faults)


def _fault(text: str) -> Fault:
    at, kind, who, much = text.split(":")
    known: dict[str, Kind] = {name: name for name in KINDS}
    return Fault(int(at), known[kind], int(who), int(much))


def draw(seed: int) -> Plan:
    """The schedule of a seed: small, with up to a dozen faults."""
    rng = random.Random(f"plan {seed}")
    hosts = rng.randint(1, 6)
    urls = int(2 ** rng.uniform(2.0, 5.2))
    share = rng.choice(SHARES)
    quirks = tuple(quirk for quirk in QUIRKS if rng.random() < share)
    plan = Plan(seed, hosts, urls, rng.randint(1, 4), rng.choice((1, 1, 1, 2, 3)), rng.randint(1, 3), quirks)
    faults = draw_faults(rng, rng.choice((0, 2, 5, 12)), range(EVENTS * urls * plan.crawls))
    cancelled = rng.random() < 0.2  # else it would hide in most plans what becomes of the others
    return replace(plan, faults=tuple(fault for fault in faults if fault.kind != "cancel" or cancelled))


def draw_large(seed: int, hosts: int = 10_000) -> Plan:
    """A schedule over many hosts."""
    rng = random.Random(f"large {seed}")
    plan = Plan(seed, hosts, hosts + hosts // 10, 4, 1, 2, ("redirects", "gone", "flaky"))
    return replace(plan, faults=draw_faults(rng, 6, range(EVENTS * hosts // 2)))


def draw_faults(rng: random.Random, number: int, events: range, kinds: tuple[Kind, ...] = KINDS) -> tuple[Fault, ...]:
    """So many faults, each before one of these events."""
    times = sorted(rng.choice(events) for _ in range(number))
    return tuple(Fault(at, rng.choice(kinds), rng.randrange(64), rng.randrange(64)) for at in times)
