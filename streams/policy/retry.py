"""What follows a failure: for the URL (try again, when) and for its host (count, slow down, leave alone).

Two separate answers. `decide` is about one URL: some failures pass, others do not. `Breaker` is about a host: when it
fails again and again, its URLs are held, at no cost to their attempts, and one probe at a time asks whether it is back.

Times (`now`) are milliseconds since the epoch, delays are seconds. Randomness comes in as `jitter`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from streams.history import Phase
from streams.messages import FailureClass

HostEffect = Literal["none", "count", "slow"]
"""What a failure says about its host. `none`: nothing, the host answered or was never asked. `count`: it may be down
(feeds the breaker). `slow`: it is overloaded (feeds the breaker, and its delay should grow)."""


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What a class of failures means. `base_delay`: the longest wait, in seconds, before the second attempt."""

    retryable: bool
    base_delay: float
    host_effect: HostEffect


_FINAL: Final = FailureRule(retryable=False, base_delay=0.0, host_effect="none")
_PASSING: Final = FailureRule(retryable=True, base_delay=0.1, host_effect="count")
_OVERLOADED: Final = FailureRule(retryable=True, base_delay=1.0, host_effect="slow")
_TOO_EARLY: Final = FailureRule(retryable=True, base_delay=0.1, host_effect="none")

RULES: Final[dict[FailureClass, FailureRule]] = {
    # The host, or the way to it, was not fine; it may be, later.
    "connection": _PASSING,
    "incomplete": _PASSING,
    "dns": FailureRule(retryable=True, base_delay=1.0, host_effect="count"),
    "timeout": _OVERLOADED,
    # The answer was complete and wrong: the next one would be, too.
    "protocol": _FINAL,
    "decode": _FINAL,
    "too_large": _FINAL,
    "http_status": _FINAL,  # those of STATUS_RULES apart
    "redirect_loop": _FINAL,
    "redirect_limit": _FINAL,
    "redirect_scheme": _FINAL,
    "redirect_bad_url": _FINAL,
    "redirect_no_location": _FINAL,
    # A certificate or an address that is refused stays refused until somebody changes it.
    "tls": _FINAL,
    "ssrf": _FINAL,
    # Not about a fetch.
    "host_unreachable": _FINAL,
    "parser": _FINAL,
    "unreadable": _FINAL,
}
"""The rule for every class of failures."""

STATUS_RULES: Final[dict[int, FailureRule]] = {
    408: _OVERLOADED,  # RFC 9110 §15.5.9: it gave up waiting for us
    425: _TOO_EARLY,  # RFC 8470 §5.2
    429: _OVERLOADED,  # RFC 6585 §4
    500: _PASSING,
    502: _PASSING,
    503: _OVERLOADED,  # RFC 9110 §15.6.4: overload or maintenance
    504: _OVERLOADED,
    **dict.fromkeys(range(520, 530), _PASSING),  # a proxy in front of the site could not reach it
}
"""HTTP statuses that may pass; all others are final."""

LONGEST_BACKOFF: Final = 3600.0
"""Seconds; the cap of exponential backoff."""

LONGEST_RETRY_AFTER: Final = 24 * 3600.0
"""Seconds; a server that asks for more is asked again after this."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows for the URL, and what the failure says about the host. `delay` in seconds, 0 without a retry."""

    retry: bool
    delay: float
    host_effect: HostEffect


def rule_for(failure: FailureClass, status: int = 0) -> FailureRule:
    """The rule for a failure; for `http_status` that of its status."""
    rule = RULES[failure]
    return STATUS_RULES.get(status, rule) if failure == "http_status" else rule


def decide(
    failure: FailureClass,
    status: int,
    attempt: int,
    attempts: int,
    retry_after: float | None,
    jitter: float,
) -> Decision:
    """Whether and when to try again after the `attempt`-th attempt (the first is 1) of at most `attempts`.

    The wait is random between half of a ceiling and 99 % of it; the ceiling doubles with every attempt up to an hour:
    scattered as with full jitter, but until then each wait is longer than the one before, also in whole milliseconds.
    `jitter` is uniform in [0, 1).
    A `Retry-After` (RFC 9110 §10.2.3, in seconds) wins: never earlier, and later only if the backoff is longer.
    """
    rule = rule_for(failure, status)
    if not rule.retryable or attempt >= attempts:
        return Decision(retry=False, delay=0.0, host_effect=rule.host_effect)
    ceiling = _doubled(rule.base_delay, attempt - 1, LONGEST_BACKOFF)
    delay = max(ceiling * (0.5 + SPREAD * jitter), retry_after or 0.0)
    return Decision(retry=True, delay=delay, host_effect=rule.host_effect)


SPREAD: Final = 0.49
"""Share of a ceiling over which waits are scattered, above its half."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a failing host is waited for, in seconds; each failed probe doubles it.

    `robots`: until its robots.txt is asked for again. `hold`: until the first probe of its open breaker.
    """

    robots: float
    hold: float


NO_SUCH_NAME: Final = "name not known"
"""Evidence `dns` of a name that the name servers say does not exist; a name server that is silent says nothing."""

ABSENT: Final = Patience(robots=0.25, hold=2.0)
REFUSING: Final = Patience(robots=0.5, hold=60.0)
TROUBLED: Final = Patience(robots=2.0, hold=60.0)
HOPELESS: Final = frozenset({"tls", "ssrf"})
"""Failures of a robots.txt that another probe does not mend."""


def patience(failure: FailureClass | None, evidence: Mapping[str, str]) -> Patience:
    """How patient to be after a failure: little where nobody is there, more where somebody may be coming back.

    Eight failed probes of a robots.txt are over after 32 s for a name that does not exist, 64 s for a connection that
    is refused or breaks, 254 s for all else, and the time that the probes themselves take. Eight failed probes of an
    open breaker are over after 510 s for a name that does not exist and 3 h for all else.
    """
    if failure == "dns" and evidence.get("dns") == NO_SUCH_NAME:
        return ABSENT
    return REFUSING if failure == "connection" else TROUBLED


def _doubled(seconds: float, times: int, longest: float) -> float:
    return min(seconds * 2.0 ** min(times, 64), longest)  # 2.0 ** 1024 would overflow


# --- Retry-After

_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES: Final = tuple(
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",  # IMF-fixdate
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",  # RFC 850
        rf"[a-z]{{3}} {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",  # asctime
    )
)


def parse_retry_after(value: str, now: int) -> float | None:
    """Seconds from `now` that a `Retry-After` field asks for, at most 24 hours; None if it asks for nothing usable.

    Seconds, or a date in one of the three forms of RFC 9110 §5.6.7. A fraction of a second is understood although the
    grammar has none. Unusable: negative or zero, a date that is past or does not exist, anything else.
    """
    text = value.strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else _until(text, now)
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else None


def _until(text: str, now: int) -> float:
    """Seconds from `now` to an HTTP date; 0 if the text is none."""
    found = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if found is None:
        return 0.0
    parts = found.groupdict()
    year, month = int(parts["year"]), _MONTHS.index(parts["month"].lower()) + 1
    if len(parts["year"]) == 2:
        year = _full_year(year, now)
    second = min(int(parts["second"]), 59)  # 60 is a leap second
    try:
        date = datetime(year, month, int(parts["day"]), int(parts["hour"]), int(parts["minute"]), second, tzinfo=UTC)
    except ValueError:
        return 0.0
    return date.timestamp() - now / 1000


def _full_year(year: int, now: int) -> int:
    """A year of two digits: the most recent that is not more than 50 years ahead (RFC 9110 §5.6.7)."""
    this_year = datetime.fromtimestamp(now / 1000, UTC).year
    full = this_year - this_year % 100 + year
    return full - 100 if full > this_year + 50 else full


# --- the breaker of a host

FAILURES_TO_OPEN: Final = 5
WINDOW: Final = 10.0
"""Seconds within which so many failures, with no success between, open the breaker."""

FIRST_HOLD: Final = 60.0
LONGEST_HOLD: Final = 3600.0
"""Seconds until the first probe, doubled by every failed one up to the second."""

FIRST_PAUSE: Final = 1.0
"""Seconds for which a host is left alone after a 429, 503 or time-out without a usable `Retry-After`."""

PROBE_BUDGET: Final = 8
HOLD_BUDGET: Final = 6 * 3600.0
"""A host that failed so many probes, or was held for so many seconds, is unreachable."""


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of a host's failures; a fresh one is closed. Persisted in the host's row."""

    failures: tuple[int, ...] = ()  # when, within the window and since the last success; only while closed
    since: int = 0  # when it opened; 0: it is closed
    until: int = 0  # no request before
    probes: int = 0  # failed since it opened


CLOSED: Final = Breaker()


def phase(breaker: Breaker, now: int) -> Phase:
    """Whether the host may be asked: freely, not at all, or by one probe."""
    if not breaker.since:
        return "closed"
    return "open" if now < breaker.until else "half_open"


def counted(breaker: Breaker, now: int) -> tuple[int, ...]:
    """When the failures were that count against a closed breaker now."""
    return tuple(at for at in breaker.failures if at > now - _ms(WINDOW))


def breaker_after(breaker: Breaker, ok: bool, now: int, hold: float = FIRST_HOLD) -> Breaker:
    """The breaker after one request to the host. `ok`: its failure, if any, has the host effect `none`.

    Any success closes it. Five failures within 10 s with no success between open it for `hold` seconds; then one probe
    decides: closed again, or open for twice as long, up to an hour. A failure that arrives while it is open comes from
    a request that was under way when it opened, and changes nothing.
    """
    if ok:
        return CLOSED
    if not breaker.since:
        recent = (*counted(breaker, now), now)
        if len(recent) < FAILURES_TO_OPEN:
            return Breaker(failures=recent)
        return Breaker(since=now, until=now + _ms(hold))
    if now < breaker.until:
        return breaker
    probes = breaker.probes + 1
    return msgspec.structs.replace(breaker, probes=probes, until=now + _ms(_doubled(hold, probes, LONGEST_HOLD)))


def pause_after(breaker: Breaker) -> float:
    """Seconds for which to leave a host alone that is overloaded and does not say for how long.

    A second, doubled by each failure since the last success (within the breaker's window), until the breaker opens.
    """
    return 0.0 if breaker.since else _doubled(FIRST_PAUSE, len(breaker.failures) - 1, LONGEST_BACKOFF)


def set_back(breaker: Breaker, by: int) -> Breaker:
    """The same breaker after the clock was set back by so many ms."""
    if not breaker.since:
        return breaker if not breaker.failures else Breaker(failures=tuple(at - by for at in breaker.failures))
    return msgspec.structs.replace(breaker, since=max(1, breaker.since - by), until=breaker.until - by)


def given_up(breaker: Breaker, now: int) -> bool:
    """Whether the hold budget is spent: the host's waiting URLs end as `host_unreachable`."""
    if not breaker.since:
        return False
    return breaker.probes >= PROBE_BUDGET or now - breaker.since >= _ms(HOLD_BUDGET)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
