"""The last word of topic `failures` on each URL: what is final, what is tried again, what was resolved. Pure.

Messages of one URL stand in one partition, so in their order. An earlier word is of no interest once there is a later
one; so memory holds one message for each URL, or with a bound only those of the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from streams.messages import Failure, Forgotten

Standing = Literal["final", "retry", "resolved"]

Key = tuple[str, ...]


def standing(failure: Failure) -> Standing:
    """How a failure stands by what it says happens next."""
    return "final" if failure.next.action == "none" else failure.next.action


class LastWords:
    """Takes the messages of one partition in order. `wanted`: which last words are kept; `most`: of the newest so many.

    What is not wanted any more is dropped at once, so that resolved failures cost nothing.
    """

    def __init__(self, wanted: Callable[[Failure], bool], most: int | None = None) -> None:
        self._wanted = wanted
        self._most = most
        self._words: dict[Key, Failure] = {}

    def __iter__(self) -> Iterator[Failure]:
        """The last words, oldest first."""
        return iter(self._words.values())

    def __len__(self) -> int:
        return len(self._words)

    def take(self, failure: Failure) -> None:
        """The next message."""
        key = _key(failure)
        self._words.pop(key, None)
        if self._wanted(failure):
            self._words[key] = failure
            if self._most is not None and len(self._words) > self._most:
                del self._words[next(iter(self._words))]

    def forget(self, word: Forgotten) -> None:
        """A URL was forgotten."""
        self._words.pop((word.crawl, word.url), None)


def _key(failure: Failure) -> Key:
    """The URL; of a message that could not be read, its place."""
    if failure.failure != "unreadable":
        return failure.crawl, failure.url
    return tuple(str(failure.evidence.get(name)) for name in ("topic", "partition", "offset", "index"))
