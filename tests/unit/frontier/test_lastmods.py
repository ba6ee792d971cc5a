"""What sitemaps say about when pages were changed."""

from __future__ import annotations

import msgspec
import pytest

from streams import messages as m
from streams.definitions import Recrawl
from tests.unit.frontier.rig import HOUR, START, Rig, answer, done, given, key, links, parsed, rules, seed, seeds
from tests.unit.frontier.test_revisits import DAY, MINUTE, URL, first_visit, next_visit, rig_with


def dated(*pairs: tuple[str, int]) -> m.Links:
    pack = links(*(url for url, _ in pairs), parent="http://h.example/map.xml")
    return msgspec.structs.replace(pack, lastmods=[lastmod for _, lastmod in pairs])


def test_a_page_that_was_changed_is_due_at_once() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.now += 2 * HOUR
    (order,) = given(rig, dated((URL, START + HOUR)))
    assert (order.visit, rig.row(URL).lastmod) == (2, START + HOUR)
    given(rig, answer(order, "unchanged"))
    assert given(rig, dated((URL, START + HOUR))) == [], "the same again is no news"
    assert rig.row(URL).due == START + 2 * HOUR + DAY


def test_but_not_within_the_shortest_interval() -> None:
    rig = rig_with(Recrawl(interval=24 * 3600.0, shortest=7200.0))
    first_visit(rig)
    rig.now += HOUR
    assert given(rig, dated((URL, START + MINUTE))) == []
    assert rig.row(URL).due == START + 2 * HOUR
    assert next_visit(rig, HOUR).visit == 2


@pytest.mark.parametrize("row", ["open", "ended", "excluded", "rounds", "old"])
def test_what_a_sitemap_says_is_kept_where_nothing_follows(row: str) -> None:
    rig = rig_with(
        Recrawl(interval=24 * 3600.0, shortest=0.0, rounds=1 if row == "rounds" else 9), robots=row == "excluded"
    )
    (order,) = given(rig, seeds(URL))
    if row == "excluded":
        given(rig, rules(order, (False, "/")))
    elif row != "open":
        given(rig, answer(order), parsed(order))
    rig.now += 5 * MINUTE
    if row == "ended":
        rig.change(state="ended")
    lastmod = START - DAY if row == "old" else START + MINUTE
    assert given(rig, dated((URL, lastmod))) == []
    assert rig.row(URL).visit == 1
    assert rig.row(URL).lastmod == (0 if row == "ended" else lastmod)


def test_a_new_url_remembers_its_date() -> None:
    rig = rig_with()
    given(rig, dated(("http://h.example/new", 7), ("http://h.example/undated", 0)))
    assert (rig.row("http://h.example/new").lastmod, rig.row("http://h.example/undated").lastmod) == (7, 0)


def test_a_day_that_moves_on_is_news_even_if_it_began_before_the_visit() -> None:
    rig = rig_with(Recrawl(interval=99 * 3600.0, shortest=60.0))
    given(rig, dated((URL, START - 2 * DAY)))
    out = m.FetchOutcome(crawl="c", fingerprint=key(URL), url=URL, visit=1, attempt=0, result="fetched", status=200,
                         page=(0, 7))  # fmt: skip
    done_ = m.ParseOutcome(crawl="c", fingerprint=key(URL), visit=1, depth=1, page=(0, 7))
    given(rig, m.Outcomes(items=(out, done_)))
    rig.now += HOUR
    assert [order.visit for order in given(rig, dated((URL, START - DAY)))] == [2]


def test_a_sitemap_of_an_index_that_was_changed_is_due() -> None:
    rig = rig_with()
    (order,) = given(rig, seeds(seed(URL, source="sitemap", lastmod=START - HOUR)))
    given(rig, answer(order), parsed(order))
    rig.now += 2 * HOUR
    (again,) = given(rig, seeds(seed(URL, source="sitemap", lastmod=START + HOUR)))
    assert (again.visit, again.source) == (2, "sitemap")
    assert given(rig, seeds(seed(URL, source="sitemap", lastmod=START + HOUR))) == []


def test_without_a_recrawl_dates_say_nothing() -> None:
    rig = Rig()
    done(rig, *given(rig, seeds(URL)))
    rig.now += HOUR
    assert given(rig, dated((URL, rig.now)), seeds(seed(URL, lastmod=rig.now))) == []
    assert rig.row(URL).lastmod == 0
