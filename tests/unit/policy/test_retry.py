from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.messages import FailureClass
from streams.policy import retry
from streams.policy.retry import CLOSED, Breaker, Decision, breaker_after

NOW = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT
JITTER = st.integers(0, 2**32 - 1).map(lambda number: number / 2**32)
FINAL = {
    "protocol", "decode", "too_large", "http_status", "redirect_loop", "redirect_limit", "redirect_scheme",
    "redirect_bad_url", "redirect_no_location", "tls", "ssrf", "host_unreachable", "parser", "unreadable",
}  # fmt: skip


def at(seconds: float) -> int:
    return NOW + round(seconds * 1000)


def test_every_failure_class_has_a_rule() -> None:
    assert set(retry.RULES) == set(get_args(FailureClass))


def test_which_classes_are_tried_again() -> None:
    assert {failure for failure in get_args(FailureClass) if not retry.rule_for(failure).retryable} == FINAL


def test_which_statuses_are_tried_again() -> None:
    passing = {408, 425, 429, 500, 502, 503, 504, *range(520, 530)}
    assert {status for status in range(600) if retry.rule_for("http_status", status).retryable} == passing


@pytest.mark.parametrize(
    ("failure", "status", "effect"),
    [
        ("connection", 0, "count"), ("dns", 0, "count"), ("incomplete", 200, "count"), ("timeout", 0, "slow"),
        ("http_status", 404, "none"), ("http_status", 425, "none"), ("http_status", 500, "count"),
        ("http_status", 521, "count"), ("http_status", 429, "slow"), ("http_status", 503, "slow"),
        ("tls", 0, "none"), ("protocol", 0, "none"), ("ssrf", 0, "none"),
    ],
)  # fmt: skip
def test_what_a_failure_says_about_its_host(failure: FailureClass, status: int, effect: str) -> None:
    assert retry.rule_for(failure, status).host_effect == effect
    assert retry.decide(failure, status, 9, 5, None, 0.5).host_effect == effect


def test_the_status_matters_to_no_other_class() -> None:
    assert retry.rule_for("too_large", 503) == retry.RULES["too_large"]


@pytest.mark.parametrize(("attempt", "lowest", "highest"), [(1, 0.05, 0.099), (2, 0.1, 0.198), (4, 0.4, 0.792)])
def test_the_wait_doubles(attempt: int, lowest: float, highest: float) -> None:
    decision = retry.decide("connection", 0, attempt, 5, None, 0.0)
    assert decision.retry
    assert decision.delay == pytest.approx(lowest)
    assert retry.decide("connection", 0, attempt, 5, None, 1.0).delay == pytest.approx(highest)


def test_the_last_attempt_is_the_last() -> None:
    assert retry.decide("connection", 0, 5, 5, None, 0.5) == Decision(False, 0.0, "count")
    assert retry.decide("connection", 0, 4, 5, None, 0.5).retry


def test_a_final_failure_is_not_tried_again_whatever_the_server_says() -> None:
    assert retry.decide("http_status", 404, 1, 5, 10.0, 0.5) == Decision(False, 0.0, "none")


@pytest.mark.parametrize("attempt", [40, 5000])
def test_the_wait_is_capped_at_an_hour(attempt: int) -> None:
    assert retry.decide("connection", 0, attempt, 9999, None, 1.0).delay == pytest.approx(0.99 * 3600.0)


def test_retry_after_wins_unless_the_backoff_is_longer() -> None:
    assert retry.decide("http_status", 429, 1, 5, 3.0, 0.5).delay == 3.0
    assert retry.decide("http_status", 429, 1, 5, 7200.0, 0.5).delay == 7200.0
    assert retry.decide("http_status", 429, 4, 5, 1.0, 0.5).delay == pytest.approx(5.96)


@given(JITTER, JITTER, st.integers(1, 11))
def test_each_wait_is_longer_than_the_one_before(first: float, second: float, attempt: int) -> None:
    shorter = retry.decide("http_status", 429, attempt, 20, None, first).delay
    longer = retry.decide("http_status", 429, attempt + 1, 20, None, second).delay
    assert shorter < longer


@pytest.mark.parametrize("failure", ["connection", "dns", "timeout"])
@pytest.mark.parametrize("attempt", range(1, 12))
def test_each_wait_is_longer_in_whole_milliseconds_too(failure: FailureClass, attempt: int) -> None:
    longest = retry.decide(failure, 0, attempt, 20, None, 1.0).delay
    assert round(1000 * longest) < round(1000 * retry.decide(failure, 0, attempt + 1, 20, None, 0.0).delay)


@pytest.mark.parametrize(
    ("failure", "evidence", "expected"),
    [
        ("dns", {"dns": retry.NO_SUCH_NAME}, retry.ABSENT),
        ("dns", {"dns": "no answer"}, retry.TROUBLED),  # of our name server
        ("dns", {}, retry.TROUBLED),
        ("connection", {}, retry.REFUSING),
        ("timeout", {}, retry.TROUBLED),
        ("http_status", {"dns": retry.NO_SUCH_NAME}, retry.TROUBLED),
        (None, {}, retry.TROUBLED),
    ],
)
def test_how_long_a_failing_host_is_waited_for(failure, evidence, expected) -> None:
    assert retry.patience(failure, evidence) == expected
    assert retry.ABSENT.robots < retry.REFUSING.robots < retry.TROUBLED.robots


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0), (" 120 ", 120.0), ("1.5", 1.5), ("0", None), ("-5", None), ("+5", None), ("", None), ("soon", None),
        ("1e3", None), ("3, 4", None), ("٣", None), ("31536000", 86400.0), ("9" * 400, 86400.0),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0), ("tue, 14 nov 2023 22:13:30 gmt", 10.0),
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10.0), ("Tue Nov 14 22:13:30 2023", 10.0),
        ("Fri Dec  1 22:13:20 2023", 86400.0), ("Tue, 14 Nov 2023 22:13:60 GMT", 39.0),
        ("Mon, 01 Jan 1990 00:00:00 GMT", None), ("Wed, 31 Feb 2027 00:00:00 GMT", None),
        ("Tue, 14 Nov 2023 22:13:30 CET", None), ("Tue, 14 Nov 2023 22:13:30", None),
        ("Tue Nov 14 25:13:30 2023", None),
        ("Tuesday, 14-Nov-74 22:13:30 GMT", None), ("Tuesday, 14-Nov-73 22:13:30 GMT", 86400.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry.parse_retry_after(value, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_a_year_of_two_digits_may_be_in_the_next_century() -> None:
    now = round(datetime(2099, 12, 31, 23, 59, 50, tzinfo=UTC).timestamp() * 1000)
    assert retry.parse_retry_after("Friday, 01-Jan-00 00:00:00 GMT", now) is None  # 2000, which is past
    assert retry.parse_retry_after("Thursday, 31-Dec-99 23:59:59 GMT", now) == pytest.approx(9.0)


@given(st.text(), st.integers(0, 4_000_000_000_000))
def test_retry_after_takes_anything(value: str, now: int) -> None:
    seconds = retry.parse_retry_after(value, now)
    assert seconds is None or 0 < seconds <= 86400


@given(st.datetimes(datetime(2001, 1, 1), datetime(2068, 1, 1)), st.integers(1, 86400))  # noqa: DTZ001 - UTC is added
def test_the_three_forms_of_a_date_agree(start: datetime, ahead: int) -> None:
    now = round(start.replace(microsecond=0, tzinfo=UTC).timestamp() * 1000)
    date = datetime.fromtimestamp(now / 1000 + ahead, UTC)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"):
        assert retry.parse_retry_after(date.strftime(form), now) == pytest.approx(ahead)


def failed(*seconds: float, breaker: Breaker = CLOSED) -> Breaker:
    for second in seconds:
        breaker = breaker_after(breaker, ok=False, now=at(second))
    return breaker


def test_five_failures_in_ten_seconds_open_the_breaker() -> None:
    assert retry.phase(failed(0, 1, 2, 3), at(3)) == "closed"
    opened = failed(0, 1, 2, 3, 9.9)
    assert opened == Breaker(since=at(9.9), until=at(69.9))
    assert [retry.phase(opened, at(s)) for s in (9.9, 69.8, 69.9)] == ["open", "open", "half_open"]


def test_failures_further_apart_do_not() -> None:
    assert failed(0, 3, 6, 9, 12).failures == (at(3), at(6), at(9), at(12))


def test_a_success_between_makes_the_count_begin_again() -> None:
    breaker = breaker_after(failed(0, 1, 2, 3), ok=True, now=at(4))
    assert breaker == CLOSED
    assert retry.phase(failed(5, 6, 7, 8, breaker=breaker), at(8)) == "closed"


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    opened = failed(0, 0, 0, 0, 0)
    assert failed(1, 59, breaker=opened) == opened


def test_one_probe_decides() -> None:
    opened = failed(0, 0, 0, 0, 0)
    assert [retry.phase(opened, at(s)) for s in (0, 59.999, 60)] == ["open", "open", "half_open"]
    assert breaker_after(opened, ok=True, now=at(61)) == CLOSED
    again = failed(61, breaker=opened)
    assert again == Breaker(since=at(0), until=at(61 + 120), probes=1)


def test_holds_double_up_to_an_hour() -> None:
    breaker, now, holds = failed(0, 0, 0, 0, 0), at(0), []
    for _ in range(1200):
        holds.append((breaker.until - now) / 1000)
        now = breaker.until
        breaker = breaker_after(breaker, ok=False, now=now)
    assert holds[:8] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert set(holds[8:]) == {3600}


def test_a_host_that_is_not_there_is_probed_sooner() -> None:
    breaker = CLOSED
    for _ in range(5):
        breaker = breaker_after(breaker, ok=False, now=NOW, hold=2.0)
    assert breaker.until == at(2)
    breaker = breaker_after(breaker, ok=False, now=at(2), hold=2.0)
    assert breaker.until == at(2 + 4)
    breaker = breaker_after(breaker, ok=False, now=at(6), hold=60.0)  # now it is there, and silent
    assert breaker.until == at(6 + 240)


def test_rests_double_until_the_breaker_opens() -> None:
    breaker, rests = CLOSED, []
    for second in range(5):
        breaker = breaker_after(breaker, ok=False, now=at(second))
        rests.append(retry.pause_after(breaker))
    assert rests == [1.0, 2.0, 4.0, 8.0, 0.0]
    assert retry.pause_after(failed(0, 1, 20)) == 1.0


def test_a_clock_that_is_set_back_takes_the_breaker_with_it() -> None:
    assert retry.set_back(CLOSED, 1000) == CLOSED
    assert retry.set_back(failed(0, 1), 1000) == failed(-1, 0)
    opened = failed(0, 0, 0, 0, 0, 61)
    assert retry.set_back(opened, 1000) == Breaker(since=at(-1), until=at(180), probes=1)


def test_a_host_is_given_up_after_eight_failed_probes() -> None:
    breaker, given_up = failed(0, 0, 0, 0, 0), []
    for _ in range(8):
        now = breaker.until
        given_up.append(retry.given_up(breaker, now))
        breaker = breaker_after(breaker, ok=False, now=now)
    assert given_up == [False] * 8
    assert retry.given_up(breaker, now)


def test_or_after_six_hours() -> None:
    opened = failed(0, 0, 0, 0, 0)
    assert not retry.given_up(opened, at(6 * 3600 - 0.001))
    assert retry.given_up(opened, at(6 * 3600))
    assert not retry.given_up(CLOSED, NOW)


def test_a_breaker_survives_in_a_row() -> None:
    for breaker in (CLOSED, failed(0, 1), failed(0, 0, 0, 0, 0, 61)):
        assert msgspec.json.decode(msgspec.json.encode(breaker), type=Breaker) == breaker


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200_000)), max_size=60))
def test_an_open_breaker_never_shortens_its_hold(steps: list[tuple[bool, int]]) -> None:
    breaker, now = CLOSED, NOW
    for ok, pause in steps:
        now += pause
        after = breaker_after(breaker, ok=ok, now=now)
        if ok:
            assert after == CLOSED
        else:
            assert after.until >= breaker.until
            assert (retry.phase(after, now) == "open") == bool(after.since)
        breaker = after
