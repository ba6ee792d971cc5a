"""The history of a host: noted in its row when a failure changes the row anyway, told with each failure of its URLs."""

from __future__ import annotations

from streams.frontier.rows import HostRow
from streams.history import REMEMBERED, HostHistory, PastFailure
from streams.messages import FetchOutcome
from streams.policy.retry import counted, phase


def noted(row: HostRow, outcome: FetchOutcome, now: int) -> tuple[PastFailure, ...]:
    """The host's newest failures, with this one."""
    return (*row.recent, PastFailure(now, str(outcome.failure), outcome.status))[-REMEMBERED:]


def history_of(host: str, row: HostRow, now: int) -> HostHistory:
    """What is known of a host at `now` (ms)."""
    breaker, until = row.breaker, max(row.breaker.until, row.not_before)
    return HostHistory(
        host=host, breaker=phase(breaker, now), failures=len(counted(breaker, now)), probes=breaker.probes,
        since=breaker.since, until=until if until > now else 0, recent=row.recent,
    )  # fmt: skip
