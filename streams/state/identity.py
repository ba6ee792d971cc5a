"""What a store belongs to: a partition of one changelog, in one layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

SCHEMA = 1
"""Of a store's layout (`streams.state.store`). A newer one stops the worker; an older one is rebuilt."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store belongs to, written into it once.

    `topic_id`: of those topics that had its name, one after the other, the one; "" where brokers do not say.
    """

    cluster: str
    topic: str
    partition: int
    schema: int = SCHEMA
    topic_id: str = ""

    def recreated(self, now: Identity) -> bool:
        """Whether `now` is the same changelog by its name only: the topic was deleted and made again."""
        return self != now and replace(self, topic_id=now.topic_id) == now
