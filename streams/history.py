"""What was known of a host when one of its URLs failed: the part of a failure's context that is not its own answer."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["closed", "open", "half_open"]
"""Whether a host may be asked: freely, not at all, or by one probe."""

REMEMBERED = 8
"""Failures of a host that are remembered: so many failed probes end the waiting for it."""


class PastFailure(msgspec.Struct, array_like=True, frozen=True):
    """A failure that said something about its host. `at` in ms; `status` 0: no answer."""

    at: int
    failure: str
    status: int = 0


class HostHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host as it was known before a failure. Times in ms."""

    host: str  # politeness key
    breaker: Phase
    failures: int = 0  # within the breaker's window and since the last success; only while it is closed
    probes: int = 0  # failed since it opened
    since: int = 0  # when it opened; 0: it is closed
    until: int = 0  # nobody asks it before: its hold, or what it asked for; 0: that has passed
    recent: tuple[PastFailure, ...] = ()  # the newest REMEMBERED, oldest first; success does not clear them
