"""The last word of topic `failures` on each URL."""

from __future__ import annotations

from typing import Any

import pytest

from streams.frontier.standing import LastWords, standing
from streams.messages import Failure, Forgotten, Next


def failure(url: str, action: Any = "none", visit: int = 1, **fields: Any) -> Failure:
    return Failure(**{"url": url, "crawl": "c", "visit": visit, "attempt": 0, "failure": "timeout", "reason": "",
                      "evidence": {}, "next": Next(action=action), "at": 1, **fields})  # fmt: skip


def unreadable(offset: int) -> Failure:
    return failure("", failure="unreadable", evidence={"topic": "urls", "partition": 0, "offset": offset})


def final(one: Failure) -> bool:
    return standing(one) == "final"


def urls(words: LastWords) -> list[tuple[str, int]]:
    return [(word.url, word.visit) for word in words]


@pytest.mark.parametrize(("messages", "left"), [
    ([failure("a")], [("a", 1)]),
    ([failure("a", "retry")], []),
    ([failure("a", "retry"), failure("a")], [("a", 1)]),
    ([failure("a"), failure("a", "resolved")], []),
    ([failure("a"), failure("a", "retry")], []),  # redriven
    ([failure("a"), failure("a", "retry"), failure("a", visit=2)], [("a", 2)]),
    ([failure("a"), failure("b"), failure("a", visit=2)], [("b", 1), ("a", 2)]),
    ([failure("a"), failure("a", crawl="d")], [("a", 1), ("a", 1)]),
    ([unreadable(1), unreadable(2), unreadable(1)], [("", 1), ("", 1)]),
    ([failure("a", "resolved")], []),
])  # fmt: skip
def test_the_last_word_counts(messages: list[Failure], left: list[tuple[str, int]]) -> None:
    words = LastWords(final)
    for message in messages:
        words.take(message)
    assert urls(words) == left
    assert len(words) == len(left)


def test_what_is_forgotten_is_not_listed() -> None:
    words = LastWords(final)
    for message in (failure("a"), failure("a", crawl="d"), failure("b")):
        words.take(message)
    words.forget(Forgotten(url="a", crawl="c", id="0:1", at=2))
    words.forget(Forgotten(url="x", crawl="c", id="0:1", at=2))
    assert [(word.crawl, word.url) for word in words] == [("d", "a"), ("c", "b")]


def test_with_a_bound_only_the_newest_are_kept() -> None:
    words = LastWords(final, most=2)
    for message in (failure("a"), failure("b"), failure("c"), failure("b", "resolved"), failure("d")):
        words.take(message)
    assert urls(words) == [("c", 1), ("d", 1)]
