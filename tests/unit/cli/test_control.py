"""What commands make of a definition, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from agents.cli.control import _cancelled, _command, _paused, _target, _unpaused
from agents.cli.main import cli
from streams.definitions import CrawlDefinition
from streams.errors import Exit, UsageError
from streams.messages import DEFAULT_CRAWL
from streams.policy.urls import fingerprint


def crawl(**fields: Any) -> CrawlDefinition:
    return CrawlDefinition(**{"id": "c", **fields})


@pytest.mark.parametrize(("change", "before", "after"), [
    (_paused, {}, "paused"),
    (_paused, {"state": "sealed", "seal": {0: 1}}, "paused"),
    (_paused, {"state": "paused"}, "paused"),
    (_unpaused, {"state": "paused"}, "open"),
    (_unpaused, {"state": "paused", "seal": {0: 1}}, "sealed"),
    (_unpaused, {"state": "sealed", "seal": {0: 1}}, "sealed"),
    (_cancelled, {}, "ended"),
    (_cancelled, {"state": "paused", "seal": {0: 1}}, "ended"),
])  # fmt: skip
def test_states(change: Any, before: dict[str, Any], after: str) -> None:
    assert change(crawl(**before)).state == after


def test_a_cancelled_crawl_says_so_and_when() -> None:
    cancelled = _cancelled(crawl())
    assert cancelled.result == "cancelled"
    assert cancelled.ended > 0


@pytest.mark.parametrize("change", [_paused, _unpaused, _cancelled])
def test_a_crawl_that_has_ended_is_not_changed(change: Any) -> None:
    with pytest.raises(UsageError, match="has ended: limit"):
        change(crawl(state="ended", result="limit"))


def test_the_default_crawl_cannot_be_cancelled() -> None:
    with pytest.raises(UsageError, match="would drop them"):
        _cancelled(crawl(id=DEFAULT_CRAWL))


@pytest.mark.parametrize(("what", "fields", "sample"), [
    (("http://H.example/%7ea#x", None, None), {"url": "http://h.example/%7ea"}, "http://h.example/%7ea"),
    ((None, "H.example.", None), {"host": "h.example"}, "http://h.example./"),
    ((None, "münchen.example", None), {"host": "xn--mnchen-3ya.example"}, "http://xn--mnchen-3ya.example/"),
    ((None, None, "https://h.example/a"), {"prefix": "https://h.example/a"}, "https://h.example/a"),
])  # fmt: skip
def test_what_is_to_be_forgotten(what: tuple[Any, Any, Any], fields: dict[str, str], sample: str) -> None:
    target = _target(*what)
    assert (target.fields, target.sample) == (fields, sample)
    command = _command(target, crawl(version=7))
    assert (command.action, command.crawl, command.rules) == ("forget", "c", 7)
    assert {name: getattr(command, name) for name in fields} == fields
    about_one = "url" in fields
    assert command.fingerprint == (fingerprint("c", "http://h.example/~a") if about_one else bytes(16))


@pytest.mark.parametrize(("arguments", "message"), [
    (("forget", "--crawl", "c"), "a URL, --host or --prefix"),
    (("forget", "http://h/", "--host", "h", "--crawl", "c"), "a URL, --host or --prefix"),
    (("forget", "http://h/"), "--crawl NAME or --all"),
    (("forget", "http://h/", "--crawl", "c", "--all"), "--crawl NAME or --all"),
    (("forget", "h.example", "--crawl", "c", "--yes"), "not an http or https URL"),
    (("forget", "--host", "a/b", "--crawl", "c", "--yes"), "not a host name"),
    (("why", "h.example"), "not an http or https URL"),
    (("failures", "--yes"), "go with --redrive"),
    (("failures", "--class", "bad"), "bad"),
])  # fmt: skip
def test_wrong_usage_is_explained(
    arguments: tuple[str, ...], message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FYKE_WORKER_STATE", str(tmp_path / "state"))
    result = CliRunner().invoke(cli, arguments)
    assert message in result.output
    assert result.exit_code == Exit.USAGE


@pytest.mark.parametrize("arguments", [
    ("why", "http://h/"), ("failures",), ("pause", "c"), ("unpause", "c"), ("cancel", "c", "--yes"),
    ("forget", "http://h/", "--crawl", "c", "--yes"), ("failures", "--redrive"),
])  # fmt: skip
def test_where_nothing_was_ever_crawled_no_broker_is_started(
    arguments: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FYKE_WORKER_STATE", str(tmp_path / "state"))
    result = CliRunner().invoke(cli, arguments)
    assert "no broker runs" in result.output
    assert result.exit_code == Exit.ENVIRONMENT
    assert not (tmp_path / "state" / "broker").exists()


def test_a_question_comes_before_what_cannot_be_undone() -> None:
    assert CliRunner().invoke(cli, ("cancel", "c"), input="n\n").exit_code == 1
    assert CliRunner().invoke(cli, ("forget", "http://h/", "--all"), input="n\n").exit_code == 1
