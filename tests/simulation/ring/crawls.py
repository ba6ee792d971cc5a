"""The crawls of a plan: what each asks for, by the plan's quirks."""

from __future__ import annotations

import random

from streams.definitions import CrawlDefinition, LimitRule, Recrawl, Scope
from tests.simulation.ring.plan import Plan
from tests.simulation.ring.web import Web

WINDOWS = ("22:20-22:32", "22:31-22:33", "22:30-23:10", "23:00-22:40")
"""Times begin at half past ten in the evening."""
MOMENTS = (60.0, 300.0, 1200.0)


def definition(name: str, plan: Plan, web: Web, created: int, rng: random.Random) -> CrawlDefinition:
    """A crawl. `created` in ms."""
    quirks = plan.quirks
    hosts = [origin[7:] for origin in web.origins]
    scope = Scope(mode="host", values=tuple(hosts[: len(hosts) // 2 + 1])) if "scope" in quirks else Scope()
    bounded = "traps" in quirks or ("depth" in quirks and rng.random() < 0.7)
    budgets = _budgets(plan, rng) if "budgets" in quirks else {}
    return CrawlDefinition(
        id=name, created=created, delay=rng.choice((0.0, 0.5, 3.0)) if "delays" in quirks else 0.0,
        parallelism=rng.randint(1, 3), robots=bool({"robots", "sitemaps"} & {*quirks}) and rng.random() < 0.8,
        scope=scope, depth=rng.randint(1, 6) if bounded else None,
        limit=rng.randint(1, plan.urls) if "limit" in quirks and rng.random() < 0.6 else None,
        max_size=budgets.get("max_size"), host_limit=budgets.get("host_limit"), host_size=budgets.get("host_size"),
        duration=budgets.get("duration"), concurrency=rng.randint(1, 4) if "quota" in quirks else None,
        adaptive_delay="learned" in quirks and rng.random() < 0.7,
        recrawl=_recrawl(rng) if "recrawl" in quirks and rng.random() < 0.7 else None,
        limits=rules(plan, web, rng) if {"rules", "windows"} & {*quirks} else (),
    )  # fmt: skip


def rules(plan: Plan, web: Web, rng: random.Random) -> tuple[LimitRule, ...]:
    """Some limit rules: for a host, for paths, for all that is left."""
    found: list[LimitRule] = []
    for number in range(rng.randint(1, 3)):
        host = rng.choice(web.origins)[7:] if rng.random() < 0.7 else ""
        shut = "windows" in plan.quirks and rng.random() < 0.6
        found.append(LimitRule(
            id=f"r{number}", domain=host, path=rng.choice(("", "", "/p1", "/x/")),
            delay=rng.choice((None, 0.0, 1.0, 2.5)), parallelism=rng.choice((None, 1, 2)),
            windows=(rng.choice(WINDOWS),) if shut else (),
        ))  # fmt: skip
    return tuple(found)


def _budgets(plan: Plan, rng: random.Random) -> dict[str, int]:
    """One or two budgets."""
    most = {"max_size": 2000 * plan.urls, "host_limit": plan.urls, "host_size": 2000 * plan.urls // plan.hosts}
    chosen = rng.sample((*most, "duration"), rng.randint(1, 2))
    return {name: rng.randint(1, max(1, most[name])) if name in most else rng.choice((60, 600)) for name in chosen}


def _recrawl(rng: random.Random) -> Recrawl:
    return Recrawl(interval=rng.choice(MOMENTS), adaptive=rng.random() < 0.5, shortest=30.0, longest=1800.0,
                   rounds=rng.choice((2, 2, 3)))  # fmt: skip
