from __future__ import annotations

import logging

import pytest

from agents.io.logs import RateLimit, limit_libraries


def _record(message: str, *args: object, name: str = "aiokafka.conn") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, message, args, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.clock_gettime", lambda _: now[0])
    return now


def test_a_storm_passes_its_burst_and_then_its_count(clock: list[float]) -> None:
    limit = RateLimit(burst=3, period=10.0)
    assert [limit.filter(_record("to %s", n)) for n in range(1000)].count(True) == 3
    clock[0] += 10.0
    record = _record("to %s", "there")
    assert limit.filter(record)
    assert record.getMessage() == "to there (997 more like it in the time before)"
    following = _record("to %s", "here")
    assert limit.filter(following)
    assert following.getMessage() == "to here"


def test_other_kinds_are_not_held(clock: list[float]) -> None:
    limit = RateLimit(burst=1, period=10.0)
    assert limit.filter(_record("one"))
    assert limit.filter(_record("two"))
    assert limit.filter(_record("one", name="aiokafka.client"))
    assert not limit.filter(_record("one"))


def test_it_stands_before_the_libraries_own_loggers(caplog: pytest.LogCaptureFixture) -> None:
    limit_libraries(burst=2, period=60.0)
    limit = limit_libraries(burst=2, period=60.0)
    logger = logging.getLogger("aiokafka.cluster")
    try:
        assert logger.filters.count(limit) == 1
        assert len(logger.filters) == 1
        with caplog.at_level(logging.ERROR, logger="aiokafka.cluster"):
            for number in range(50):
                logger.error("Topic %s not found in cluster metadata", number)
        assert len(caplog.records) == 2
    finally:
        for each in list(logging.root.manager.loggerDict.values()):
            if isinstance(each, logging.Logger):
                each.removeFilter(limit)
