"""What `fyke audit` prints about an offence."""

from __future__ import annotations

from typing import Any

import pytest

from agents.cli.audit import describe
from streams.policy.audit import Offence, Sent

FIRST = Sent("a.test", 1_700_000_000_000, 1_700_000_000_250, "f-1", "http://a.test/x", "c", 200, 2.0, 1)
LATER = Sent("a.test", 1_700_000_000_500, 1_700_000_001_250, "f-2", "http://a.test/y", "c", 0, 0.5, 1)
LINES = [
    "2023-11-14 22:13:20.000 to 22:13:20.250  200  http://a.test/x  by f-1, crawl c, delay 2 s",
    "2023-11-14 22:13:20.500 to 22:13:21.250  no answer  http://a.test/y  by f-2, crawl c, delay 0.5 s",
]


@pytest.mark.parametrize(
    ("rule", "found", "allowed", "words", "requests"),
    [
        ("gap", 0.5, 2.0, "0.5 s between two starts, 2 s is the least", LINES),
        ("parallelism", 2, 1, "2 requests at a time, 1 are allowed", LINES),
        ("hold", 0.25, 9.0, "asked 0.25 s after an answer that asked to wait 9 s", LINES),
        ("rules", 0.5, 3.0, "sent under 0.5 where crawl or robots.txt allow 3", LINES[1:]),
    ],
)
def test_an_offence_in_words(rule: Any, found: float, allowed: float, words: str, requests: list[str]) -> None:
    earlier = LATER if rule == "rules" else FIRST
    offence = Offence(rule, "a.test", earlier, LATER, found, allowed)
    assert describe(offence) == [f"a.test: {words}", *requests]
