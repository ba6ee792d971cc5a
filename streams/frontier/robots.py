"""robots.txt seen from the frontier: when an origin's file must be fetched, and what its URLs do meanwhile.

RFC 9309 §2.3.1: rules live 24 h; an unavailable file (4xx) allows all; an unreachable one (5xx, network) disallows all.
URLs of an unreachable origin are held and use no attempts, but not for ever: when the hold budget of
`streams.policy.retry` is spent, they end as `host_unreachable`; at once and with the class of the failure where
another probe would not help (`tls`, `ssrf`). Rules once known stay in force while a refresh fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from streams.frontier.outcomes import Fault
from streams.frontier.rows import HostRow, Probe
from streams.messages import FailureClass, FetchOutcome, RobotsRules
from streams.policy.retry import HOLD_BUDGET, HOPELESS, PROBE_BUDGET, patience
from streams.policy.robots import Matcher, read, unreachable
from streams.policy.urls import PolitenessMode, politeness_key
from streams.policy.urls import origin as origin_of

DEAD_FOR = 3600 * 1000
HOPS = 5
DELAY_CAP = 60.0
"""Most seconds a Crawl-delay may ask for; beyond it a crawl of the host would not end."""
CACHED = 4096
ORIGINS: dict[PolitenessMode, int] = {"host": 16, "domain": 128}
"""Origins of one politeness key whose rules are kept: schemes and ports of a host, or all hosts of a domain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with one URL now. Exactly one of the first three is set, or `allowed` decides."""

    order: str = ""  # fetch robots.txt of this origin first
    hold_until: int = 0  # ms
    unreachable: Fault | None = None
    allowed: bool = False
    version: str = ""


class RobotsGate:
    """Asks the rules stored in host rows; keeps compiled matchers."""

    def __init__(self, politeness: PolitenessMode) -> None:
        self._politeness = politeness
        self._matchers: dict[tuple[str, str], Matcher] = {}

    def ask(self, row: HostRow, url: str, now: int) -> Verdict:
        """Whether a URL may be fetched now (ms)."""
        origin = origin_of(url)
        rules = row.robots.get(origin)
        probe = row.probes.get(origin)
        if rules is None or now >= rules.expires:
            return Verdict(order=origin)
        if rules.access == "disallow_all":
            if probe is not None and _given_up(probe, now):
                return Verdict(unreachable=_fault(probe, origin))
            return Verdict(hold_until=rules.expires)
        return Verdict(allowed=self._matcher(rules).allowed(url), version=rules.version)

    def crawl_delay(self, row: HostRow) -> float:
        """The longest Crawl-delay of the host's origins (seconds), capped."""
        delays = [rules.crawl_delay for rules in row.robots.values() if rules.crawl_delay]
        return min(max(delays, default=0.0), DELAY_CAP)

    def probe(self, row: HostRow, origin: str) -> int:
        """Failed probes so far: tells one robots order from the next."""
        probe = row.probes.get(origin)
        return probe.count if probe else 0

    def host_of(self, url: str) -> str:
        """Politeness key of a URL."""
        return politeness_key(url, self._politeness)

    def answered(self, row: HostRow, outcome: FetchOutcome, origin: str, now: int) -> dict[str, Any]:
        """The changes of the host row after an answer."""
        rules = self._rules(outcome, origin, now)
        probes = dict(row.probes)
        if rules.access == "disallow_all":
            probe = _failed_again(probes.get(origin), outcome, now)
            probes[origin] = probe
            first = patience(outcome.failure, outcome.evidence).robots
            wait = DEAD_FOR if _given_up(probe, now) else round(first * 1000) << (probe.count - 1)
            known = row.robots.get(origin)
            if known is not None and known.access != "disallow_all":
                rules = known  # stale while error
            rules = msgspec.structs.replace(rules, expires=now + max(wait, round((outcome.retry_after or 0.0) * 1000)))
        else:
            probes.pop(origin, None)
        robots = {name: kept for name, kept in row.robots.items() if name != origin}
        while len(robots) >= ORIGINS[self._politeness]:
            # Of those that answer first: the others would begin their budget of probes anew.
            robots.pop(min(robots, key=lambda name: (name in probes, robots[name].expires)))
        robots[origin] = rules
        return {"robots": robots, "probes": {name: probe for name, probe in probes.items() if name in robots}}

    def _rules(self, outcome: FetchOutcome, origin: str, now: int) -> RobotsRules:
        if outcome.robots_rules is not None:
            return msgspec.structs.replace(outcome.robots_rules, origin=origin)
        if outcome.result == "redirected":
            return read(origin, outcome.status, b"", now)  # RFC 9309 §2.3.1.2: more than five redirects
        return unreachable(origin, now)

    def _matcher(self, rules: RobotsRules) -> Matcher:
        key = (rules.origin, rules.version)
        matcher = self._matchers.get(key)
        if matcher is None:
            if len(self._matchers) >= CACHED:
                self._matchers.pop(next(iter(self._matchers)))
            matcher = self._matchers[key] = Matcher(rules)
        return matcher


def _given_up(probe: Probe, now: int) -> bool:
    spent = probe.count >= PROBE_BUDGET or now - probe.since >= HOLD_BUDGET * 1000
    return spent or probe.failure in HOPELESS


def _fault(probe: Probe, origin: str) -> Fault:
    """Why the URLs of an origin end: what keeps failing, or that nobody is there."""
    failure = cast("FailureClass", probe.failure if probe.failure in HOPELESS else "host_unreachable")
    evidence: dict[str, str | int] = {
        "robots": origin + "/robots.txt", "class": probe.failure, "probes": probe.count, "since": probe.since
    }  # fmt: skip
    return Fault(failure, probe.reason, evidence)


def _failed_again(probe: Probe | None, outcome: FetchOutcome, now: int) -> Probe:
    failure = outcome.failure or "http_status"
    reason = outcome.reason or f"robots.txt answered {outcome.status}"
    if probe is None:
        return Probe(1, now, failure, reason)
    return Probe(min(probe.count + 1, PROBE_BUDGET), probe.since, failure, reason)
