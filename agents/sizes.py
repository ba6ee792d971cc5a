"""What the frontier's stores take, as metrics: asked when somebody looks, once for all gauges of a scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.metrics import FrontierMetrics
    from streams.state.store import Sizes

FRESH = 1.0
"""Seconds for which what was found is shown again: each look goes through the folders of all stores."""


class StoreMeter:
    """Sets the gauges of the stores that are open here; `look` asks them."""

    def __init__(self, metrics: FrontierMetrics, look: Callable[[], Sequence[Sizes]]) -> None:
        self._look = look
        self._found: Sequence[Sizes] = ()
        self._at = float("-inf")
        metrics.store_bytes.set_function(lambda: self._sum("disk"))
        metrics.store_rows.set_function(lambda: self._sum("rows"))
        metrics.store_behind.set_function(lambda: self._sum("behind"))
        for part in ("memtables", "tables"):
            metrics.store_memory.labels(part).set_function(partial(self._sum, part))
        # All stores share one cache, and each of them tells what is in it.
        metrics.store_memory.labels("cache").set_function(lambda: max((s.cache for s in self._sizes()), default=0))

    def _sum(self, what: str) -> int:
        return sum(getattr(sizes, what) for sizes in self._sizes())

    def _sizes(self) -> Sequence[Sizes]:
        now = time.monotonic()
        if now - self._at > FRESH:
            self._found, self._at = self._look(), now
        return self._found
