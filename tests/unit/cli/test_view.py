from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from agents.cli.view import PlainView, Rates, Snapshot, clock, panel, status_line, summary
from streams.messages import CrawlCounts

COUNTS = CrawlCounts(
    open=50, activity=9, released=8, fetched=2, done=98, failed=3, excluded=4, redirected=1, hosts=2,
    failures={"timeout": 1, "http_status": 2}, exclusions={"robots": 4},
)  # fmt: skip


def test_rates_are_of_the_last_seconds_and_the_end_is_guessed_only_from_a_trend():
    rates = Rates()
    for second in range(30):
        rates.add(Snapshot("a", "crawling", float(second), CrawlCounts(done=10 * second, open=400 - 5 * second)))
    last = Snapshot("a", "crawling", 29.0, CrawlCounts(done=290, open=255))
    assert rates.pages == pytest.approx(10)
    assert rates.left(last) == pytest.approx(51)
    growing = Rates()
    for second in range(3):
        growing.add(Snapshot("a", "crawling", float(second), CrawlCounts(done=second, open=10 * second)))
    assert growing.left(last) is None
    limited = Snapshot("a", "crawling", 29.0, CrawlCounts(done=290, open=255), limit=390)
    assert rates.left(limited) == pytest.approx(10)


def test_waiting_is_what_no_fetcher_was_asked_for():
    assert Snapshot("a", "crawling", 1.0, COUNTS).waiting == 40


def test_the_panel_shows_all_numbers():
    console = Console(file=io.StringIO(), width=80)
    console.print(panel(Snapshot("docs", "crawling", 12.0, COUNTS), Rates()))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    for part in ("docs", "crawling", "12.0 s", "100", "40", "http_status 2, timeout 1"):
        assert part in text


def test_plain_lines_come_now_and_then_and_only_if_something_changed():
    console = Console(file=io.StringIO(), width=200)
    view = PlainView(console)
    for tenth in range(200):
        view.show(Snapshot("a", "crawling", tenth / 10, COUNTS))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # a StringIO
    assert len(lines) == 1
    assert "100 pages" in lines[0]
    assert "2 hosts with work" in status_line(Snapshot("a", "crawling", 1.0, COUNTS), Rates())


def test_the_summary_says_how_it_ended_what_failed_and_where_the_files_are():
    text = summary(
        Snapshot("docs", "exporting", 10.0, COUNTS),
        "exhausted",
        Path("fyke-out/docs"),
        {"records.jsonl": 97},
        restarts=1,
    )
    assert text.splitlines() == [
        "Crawl docs: everything in reach was fetched",
        "  pages      98 in 10.0 s (9.8/s)",
        "  failed     3 (http_status 2, timeout 1)",
        "  excluded   4 (robots 4)",
        "  redirected 1",
        "  restarts   1 of worker processes",
        "  records    fyke-out/docs/records.jsonl (97)",
    ]


def test_sitemaps_and_what_comes_back_are_told_where_there_are_any():
    snapshot = Snapshot("docs", "crawling", 10.0, CrawlCounts(done=1, sitemaps=2, due=1200))
    assert "1,200 to be visited again" in status_line(snapshot, Rates())
    assert "  sitemaps   2 read" in summary(snapshot, "exhausted", Path("o"), {}).splitlines()
    assert "visited again" not in status_line(Snapshot("a", "crawling", 1.0, COUNTS), Rates())


def test_the_summary_of_a_crawl_that_went_on_counts_this_runs_pages_for_the_rate():
    text = summary(Snapshot("docs", "exporting", 10.0, COUNTS), "exhausted", Path("o"), {}, before=48)
    assert "98, 50 of them in 10.0 s (5.0/s)" in text


@pytest.mark.parametrize(("seconds", "text"), [(4.24, "4.2 s"), (187, "3:07"), (3723, "1:02:03")])
def test_durations_are_readable(seconds, text):
    assert clock(seconds) == text
