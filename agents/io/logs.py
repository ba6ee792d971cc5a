"""Bounds on what libraries log: a broker that is away makes aiokafka write thousands of lines a second."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

_PREFIXES = ("aiokafka", "faust.transport", "mode.")


@dataclass(slots=True)
class _Window:
    """What happened to one kind of message since `began` (seconds, CLOCK_BOOTTIME)."""

    began: float
    passed: int = 0
    held: int = 0


class RateLimit(logging.Filter):
    """Let `burst` records of a kind through in each `period` seconds; the first of the next says how many were held.

    A kind is a logger, a level and the message before its arguments are put in: the addresses and offsets in it do
    not make it another kind.
    """

    def __init__(self, burst: int = 5, period: float = 30.0) -> None:
        super().__init__()
        self._burst = burst
        self._period = period
        self._windows: dict[tuple[str, int, str], _Window] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes (logging.Filter)."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        kind = (record.name, record.levelno, str(record.msg))
        with self._lock:
            window = self._windows.get(kind)
            held = 0
            if window is None or now - window.began >= self._period:
                held = window.held if window else 0
                window = self._windows[kind] = _Window(now)
            if window.passed >= self._burst:
                window.held += 1
                return False
            window.passed += 1
        if held:
            record.msg = f"{record.getMessage()} ({held} more like it in the time before)"
            record.args = ()
        return True


def limit_libraries(burst: int = 5, period: float = 30.0) -> RateLimit:
    """Put one `RateLimit` on the loggers of aiokafka, mode and Faust's transport, now that they are imported.

    A filter counts only on the logger that a record is written to, so it goes on each of them by name.
    """
    import aiokafka.admin  # noqa: F401, PLC0415  (its import makes the loggers)

    limit = RateLimit(burst, period)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.startswith(_PREFIXES):
            for old in [each for each in logger.filters if isinstance(each, RateLimit)]:
                logger.removeFilter(old)
            logger.addFilter(limit)
    return limit
