"""What one schedule is: a seed, sizes, what the web is like, and a list of faults. It can be written on one line."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

Quirk = Literal[
    "redirects", "gone", "flaky", "busy", "slow", "dead", "robots", "delays", "depth", "traps", "scope", "limit",
    "narrow",
]  # fmt: skip
"""`busy`: 429 and 503 with Retry-After; `traps`: endless spaces of URLs, bounded by depth; `narrow`: a link a page."""

Kind = Literal["kill", "pause", "rebalance", "join", "jump", "lose", "expire", "twice", "seed", "update"]
"""`join`: a worker leaves and another joins; `lose`: orders go missing; `expire`: pages do; `twice`: a message is
written twice; `update`: a new version of a crawl's definition."""

EVENTS = 40
"""About so many events are needed for a URL."""

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
    quirks = tuple(quirk for quirk in QUIRKS if rng.random() < 0.3)
    plan = Plan(seed, hosts, urls, rng.randint(1, 4), rng.choice((1, 1, 1, 2, 3)), rng.randint(1, 3), quirks)
    return replace(plan, faults=draw_faults(rng, rng.choice((0, 2, 5, 12)), range(EVENTS * urls * plan.crawls)))


def draw_large(seed: int, hosts: int = 10_000) -> Plan:
    """A schedule over many hosts."""
    rng = random.Random(f"large {seed}")
    plan = Plan(seed, hosts, hosts + hosts // 10, 4, 1, 2, ("redirects", "gone", "flaky"))
    return replace(plan, faults=draw_faults(rng, 6, range(EVENTS * hosts // 2)))


def draw_faults(rng: random.Random, number: int, events: range, kinds: tuple[Kind, ...] = KINDS) -> tuple[Fault, ...]:
    """So many faults, each before one of these events."""
    times = sorted(rng.choice(events) for _ in range(number))
    return tuple(Fault(at, rng.choice(kinds), rng.randrange(64), rng.randrange(64)) for at in times)
