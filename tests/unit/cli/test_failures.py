"""Which failures are asked for, and how they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from agents.cli.failures import Asked, _newest, _print, _slim
from streams.history import HostHistory
from streams.messages import Failure, Next

EVIDENCE: dict[str, str | int] = {"topic": "urls", "partition": 0, "offset": 7}


def failure(action: Any = "none", **fields: Any) -> Failure:
    return Failure(**{"url": "http://h.example/a", "crawl": "c", "visit": 1, "attempt": 4, "failure": "timeout",
                      "reason": "no [bold]answer", "evidence": {"status": 5}, "meta": {"a": 1}, "at": 1_000,
                      "history": HostHistory(host="h.example", breaker="closed"),
                      "next": Next(action=action, at=2_000), **fields})  # fmt: skip


UNREADABLE = failure(url="", failure="unreadable", evidence=EVIDENCE)


def asked(**fields: Any) -> Asked:
    return Asked(**{"crawl": "", "host": "", "failure": "", "final": False, "resolved": False, **fields})


@pytest.mark.parametrize(("question", "wanted"), [
    (asked(), ["final", "retry", "unreadable"]),
    (asked(final=True), ["final", "unreadable"]),
    (asked(resolved=True), ["final", "retry", "resolved", "unreadable"]),
    (asked(crawl="d"), []),
    (asked(host="h.example"), ["final", "retry"]),
    (asked(host="example"), []),
    (asked(failure="timeout", final=True), ["final"]),
    (asked(failure="dns"), []),
])  # fmt: skip
def test_which_are_wanted(question: Asked, wanted: list[str]) -> None:
    known = {"final": failure(), "retry": failure("retry"), "resolved": failure("resolved"), "unreadable": UNREADABLE}
    assert [name for name, one in known.items() if question.wants(one)] == wanted


def test_the_newest_come_first_over_all_partitions() -> None:
    parts = [[failure(at=1), failure(at=5)], [failure(at=3)]]
    assert [one.at for one in _newest(parts, 2)] == [5, 3]
    assert [one.at for one in _newest(parts, None)] == [5, 3, 1]


def test_a_redrive_keeps_little_of_a_failure() -> None:
    slim = _slim(failure())
    assert (slim.reason, slim.evidence, slim.meta, slim.history) == ("", {}, None, None)
    assert slim.url == "http://h.example/a"
    assert _slim(UNREADABLE) is UNREADABLE


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    _print([failure(), failure("retry"), failure("resolved"), UNREADABLE])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[4] for row in rows] == ["final", "retry", "resolved", "final"]
    assert "retry 00:00:02" in rows[1]
    assert "no [bold]answer" in rows[0]
    assert "urls-0@7" in rows[3]
    _print([])
    assert "no failures" in capsys.readouterr().err
