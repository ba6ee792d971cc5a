"""The two rounds that make an announced end exact."""

from __future__ import annotations

from streams.frontier.end import EndWatch, result_of, seems_over
from streams.messages import CrawlCounts, Progress


def report(
    shard: int, position: int, *, open_: int = 0, due: int = 0, activity: int = 3, epoch: int = 1, **rules: int
) -> Progress:
    counts = CrawlCounts(open=open_, due=due, activity=activity, exclusions=rules)
    return Progress(shard=shard, epoch=epoch, position=position, at=0, crawls={"c": counts})


def both(a: Progress, b: Progress) -> dict[int, Progress]:
    return {0: a, 1: b}


CLOSED = both(report(0, 10), report(1, 20))


def test_the_end_needs_two_rounds() -> None:
    watch = EndWatch("c", 2)
    answers = [watch.step(CLOSED, [10, 20]) for _ in range(4)]
    assert answers == [False, False, False, True]


def test_a_shard_that_has_not_read_to_the_end_delays_it() -> None:
    watch = EndWatch("c", 2)
    behind = both(report(0, 10), report(1, 19))
    assert not any(watch.step(behind, [10, 20]) for _ in range(10))
    assert [watch.step(CLOSED, [10, 20]) for _ in range(3)] == [False, False, True]


def test_an_open_url_delays_it() -> None:
    watch = EndWatch("c", 2)
    assert not any(watch.step(both(report(0, 10), report(1, 20, open_=1)), [10, 20]) for _ in range(10))


def test_a_url_that_comes_back_delays_it() -> None:
    """nothing-new-but-time."""
    watch = EndWatch("c", 2)
    assert not any(watch.step(both(report(0, 10), report(1, 20, due=1)), [10, 20]) for _ in range(10))
    assert not seems_over("c", both(report(0, 10), report(1, 20, due=1)), 2)


def test_activity_between_the_rounds_begins_anew() -> None:
    """A link was on its way to shard 1 while shard 0 closed its page."""
    watch = EndWatch("c", 2)
    for _ in range(2):
        watch.step(CLOSED, [10, 20])
    busy = both(report(0, 10), report(1, 21, activity=4))
    assert [watch.step(busy, [10, 21]) for _ in range(6)] == [False, False, False, False, False, True]


def test_owner_change_between_rounds() -> None:
    """A new owner whose activity counter is equal by chance: rounds must share the epoch."""
    watch = EndWatch("c", 2)
    for _ in range(2):
        watch.step(CLOSED, [10, 20])
    moved = both(report(0, 10), report(1, 20, epoch=2))
    assert not watch.step(moved, [10, 20])
    assert not watch.step(moved, [10, 20])


def test_ends_of_the_second_round_are_read_after_the_first() -> None:
    """What was appended between the rounds must be covered, too."""
    watch = EndWatch("c", 2)
    for _ in range(2):
        watch.step(CLOSED, [10, 20])
    assert not any(watch.step(CLOSED, [10, 21]) for _ in range(10))


def test_a_silent_shard_is_not_zero() -> None:
    watch = EndWatch("c", 2)
    assert not any(watch.step({0: report(0, 10)}, [10, 0]) for _ in range(10))
    assert not seems_over("c", {0: report(0, 10)}, 2)


def test_a_shard_without_rows_of_the_crawl_is_zero_once_it_reports() -> None:
    other = Progress(shard=1, epoch=1, position=20, at=0)
    watch = EndWatch("c", 2)
    assert [watch.step(both(report(0, 10), other), [10, 20]) for _ in range(4)][-1]
    assert seems_over("c", both(report(0, 10), other), 2)


def test_the_result_names_the_limit_that_kept_urls_out() -> None:
    assert result_of("c", CLOSED.values()) == "exhausted"
    assert result_of("c", [report(0, 1, limit=2)]) == "limit"
    assert result_of("c", [report(0, 1, size=2), report(1, 1, deadline=1)]) == "size"
    assert result_of("c", [report(0, 1, **{"limit:host": 1, "size:host": 2})]) == "exhausted"
    assert result_of("c", [report(0, 1, deadline=2), report(1, 1)]) == "deadline"
    assert result_of("other", [report(0, 1, limit=2)]) == "exhausted"
