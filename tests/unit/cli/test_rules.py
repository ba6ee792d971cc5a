"""`fyke rules` where no broker is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agents.cli.main import cli
from agents.cli.rules import _conflict
from streams.definitions import CrawlDefinition
from streams.errors import Exit

RULES = """\
[[limits]]
id = "never"
windows = ["Mon 00:00-00:01"]
domain = "x.org"

[[limits]]
id = "api"
path = "/api/"
regex = "json$"
delay = 5

[[scope_rules]]
id = "no-print"
path = "*print"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["rules", *arguments])


def test_says_which_rule_applies_and_why_not_the_others(file: Path) -> None:
    result = run("test", "https://a.org/api/x.json", "--file", str(file))
    assert result.exit_code == 0
    assert result.output.splitlines()[:4] == [
        "https://a.org/api/x.json  (crawl file, version 1)",
        "  never            no: its domain is another one",
        "  api              applies",
        "    delay          5",
    ]
    assert "    window         always" in result.output.splitlines()


def test_says_that_no_rule_applies_and_what_keeps_a_url_out(file: Path) -> None:
    found = run("test", "https://a.org/api/print", "--file", str(file)).output
    assert "kept out of the crawl by" in found
    assert "no-print" in found
    assert "  api              no: its regex is not found" in found
    assert "no rule applies: the crawl's own values hold" in found


def test_prints_json(file: Path) -> None:
    found = json.loads(run("test", "https://x.org/", "--file", str(file), "--json").output)
    assert (found["rule"], found["tried"]) == ("never", [{"rule": "never", "mismatch": ""}])
    assert found["values"]["window"].startswith(("shut until Mon ", "open"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("test", "a.org"), "not an http or https URL"),
        (("test", "http://a.org/", "--file", "x.toml", "--crawl", "c"), "exclude each other"),
        (("test", "http://a.org/", "--file", "missing.toml"), "cannot read missing.toml"),
        (("apply", "c", "missing.toml"), "cannot read missing.toml"),
        (("dry-run", "c", "missing.toml"), "cannot read missing.toml"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(arguments: tuple[str, ...], problem: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, problem in result.output) == (Exit.USAGE, True)


def test_the_loser_of_two_updates_is_told_who_won_and_what_to_do() -> None:
    before = CrawlDefinition(id="c", version=7, delay=0.5)
    winner = CrawlDefinition(id="c", version=8, delay=2.0, by="anna@desk")
    error = _conflict(winner, "was changed at the same moment", before)
    assert error.exit_code == Exit.CONFLICT
    assert str(error) == (
        "conflict: the crawl c was changed at the same moment; nothing of yours was applied\n"
        "  Version 8 by anna@desk holds: delay: 0.5 → 2.0\n"
        "  Look at it (fyke rules show c), then apply yours to it: --version 8"
    )
