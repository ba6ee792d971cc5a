"""The delay that answers teach: a host that is slow or overloaded is asked less often than the rules would allow.

The idea of AutoThrottle and of Heritrix's delay factor, bounded on both sides: never shorter than the rule's delay,
never longer than `LONGEST`. Units: seconds.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 60.0
"""The longest delay that is learned."""

FIRST: Final = 1.0
"""The least that an overloaded host is given, however short the rule's delay is."""

RELIEF: Final = 0.95
"""What a good answer leaves of a delay that is longer than it need be: some 45 of them bring it back to a tenth."""

ENOUGH: Final = 0.25
"""Share of the delay by which it must have moved before the host's row is written again."""


def after_success(delay: float, rule: float, elapsed: float) -> float:
    """The learned delay after a page that took `elapsed`; 0: the rule's is long enough.

    The aim is one request at a time: a delay as long as an answer takes. It is approached by half when the host gets
    slower, so that one slow page says little, and by a twentieth when it gets faster.
    """
    aim = min(elapsed, LONGEST)
    now = max(delay, rule)
    return _above(rule, (now + aim) / 2 if aim > now else max(aim, now * RELIEF))


def after_overload(delay: float, rule: float) -> float:
    """The learned delay after a 429, a 503 or a time-out: twice what it was."""
    return _above(rule, min(max(2 * max(delay, rule), FIRST), LONGEST))


def moved_enough(kept: float, delay: float) -> bool:
    """Whether a delay differs so much from the one that is kept in the host's row that it is worth a write."""
    return abs(delay - kept) > ENOUGH * kept if delay else kept > 0


def _above(rule: float, delay: float) -> float:
    return round(delay, 3) if delay > rule else 0.0
