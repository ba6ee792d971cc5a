"""Rule files: what they may say, and what people are told when they say something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from agents.cli.rulefile import FIXED, MADE_ONCE, changeable, differences, load_rules, read_rules, write_rules
from streams.definitions import CrawlDefinition, Keys, LimitRule, Scope, ScopeRule, Traps
from streams.errors import UsageError
from tests.unit.contracts import FULL

RULES = """\
delay = 1          # seconds
concurrency = "none"
deadline = 2026-12-24T18:00:00Z

[[limits]]
id = "api"
domain = "*.example.org"
headers = { "X-A" = "b" }
windows = ["Mon-Fri 22:00-06:00 Europe/Berlin"]

[[limits]]
id = "rest"
delay = 5

[[scope_rules]]
id = "no-print"
path = "*print=1"

[traps]
depth = 5
"""


def test_says_only_what_it_names() -> None:
    assert read_rules(RULES, "r.toml", new=False) == {
        "delay": 1.0,
        "concurrency": None,
        "deadline": 1_798_135_200_000,
        "limits": (
            LimitRule(
                id="api", domain="*.example.org", headers={"X-A": "b"}, windows=("Mon-Fri 22:00-06:00 Europe/Berlin",)
            ),
            LimitRule(id="rest", delay=5.0),
        ),
        "scope_rules": (ScopeRule(id="no-print", path="*print=1"),),
        "traps": Traps(depth=5),
    }


def test_keys_can_be_said_when_a_crawl_is_made_and_never_again() -> None:
    text = "[keys]\nsort_query = true\n"
    assert read_rules(text, "r.toml", new=True) == {"keys": Keys(sort_query=True)}
    with pytest.raises(UsageError, match=r"r.toml, line 1, keys: keys cannot be changed"):
        read_rules(text, "r.toml", new=False)


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("delay = ", r"r.toml is not TOML: Invalid value \(at end", "Quote"),
        ("\ndelya = 3", r"r.toml, line 2: there is no delya", "Did you mean delay?"),
        ("zzz = 3", r"r.toml, line 1: there is no zzz", "Known: "),
        ("version = 3", r"r.toml, line 1: version is not for a rule file", "Take it out"),
        ('delay = "x"', r"r.toml, line 1: Expected `float`, got `str`", "docs/rules.md"),
        ("delay = -1", r"r.toml, line 1: Expected `float` >= 0.0", ""),
        ("deadline = 2026-12-24T18:00:00", r"r.toml, line 1: deadline has no time zone", "Z"),
        ("delay = 100000", r"r.toml, line 1: delay is 100000 s", "At most 86400 s"),
        ('user_agent = "a\\nb"', r"r.toml, line 1: the header 'User-Agent' is not valid", "one line"),
        ("[recrawl]\ninterval = 0", r"r.toml, line 1, recrawl: recrawl is 0 s", "At least 1 s"),
        ('[[limits]]\nid = "a"\nrecrawl = 0', r"limits \(rule a\): recrawl is 0 s", "At least 1 s"),
        ('delay = "none"', r"r.toml, line 1: Expected `float`", ""),
        ('[[limits]]\nid = "a"\n[[limits]]\nid = "b"\ndleay = 3', r"line 5, limits \(rule b\): there is no dl", "de"),
        ('[[limits]]\nid = "a"\n[[limits]]\nid = "b"\ndelay = "3"', r"line 5, limits \(rule b\): delay: Ex", ""),
        ('[[limits]]\nid = "a"\nparallelism = 0', r"line 3, limits \(rule a\): parallelism: Expected `int` >= 1", ""),
        ("[[limits]]\ndelay = 3", r"line 1, limits: id is missing", ""),
        ('[[limits]]\nid = ""', r"line 1, limits: id is empty", "Every rule"),
        ('[[limits]]\nid = "a"\n[[limits]]\nid = "a"', r"line 3, limits \(rule a\): there are two of that id", ""),
        ('[[limits]]\nid = "a"\nregex = "("', r"line 1, limits \(rule a\): the regular expression '\('", "Known"),
        ('[[limits]]\nid = "a"\nwindows = ["x"]', r"limits \(rule a\): the time window 'x' cannot be read", "Mon-Fri"),
        ('[[limits]]\nid = "a"\ntimeout = 301', r"limits \(rule a\): timeout is 301 s", "At most 300 s"),
        ('[[limits]]\nid = "a"\naccept = ["html"]', r"limits \(rule a\): accept: 'html' is no media type", "text/html"),
        ('[[limits]]\nid = "a"\nheaders = {"A b" = "c"}', r"limits \(rule a\): the header 'A b' is not valid", ""),
        ('[[scope_rules]]\nid = "a"\ndomain = "a/b"', r"scope_rules \(rule a\): the domain 'a/b' is no host name", ""),
        ("[traps]\ndeep = 3", r"line 2, traps: there is no deep", "depth"),
        ("limits = 3", r"r.toml, line 1, limits: Expected `array`", ""),
        ("[limits]\nid = 'a'", r"line 1, limits \(rule a\): Expected `array`", ""),
    ],
)  # fmt: skip
def test_says_where_what_is_wrong_and_what_to_do(text: str, problem: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        read_rules(text, "r.toml", new=False)
    assert remedy in caught.value.remedy


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("delay = 3\n")
    assert load_rules(tmp_path / "a.toml", new=False) == {"delay": 3.0}
    (tmp_path / "b.toml").write_bytes(b"\xff")
    for name in ("b.toml", "missing.toml"):
        with pytest.raises(UsageError, match=f"cannot read .*{name}"):
            load_rules(tmp_path / name, new=False)


def test_every_part_of_a_definition_is_fixed_made_once_or_changeable() -> None:
    assert {*FIXED, *MADE_ONCE, *changeable()} == set(CrawlDefinition.__struct_fields__)


@pytest.mark.parametrize(
    "definition",
    [
        CrawlDefinition(id="news"),
        FULL["crawl"],
        replace(CrawlDefinition(id="news"), **read_rules(RULES, "r.toml", new=False)),
        CrawlDefinition(id="news", scope=Scope(mode="host", values=('a"b\\', "ü")), user_agent="é\t"),
    ],
)
def test_what_is_shown_can_be_applied(definition: CrawlDefinition) -> None:
    text = write_rules(definition)
    said = read_rules(text, "shown.toml", new=True)
    again = replace(CrawlDefinition(id=definition.id), **said)
    assert [getattr(again, name) for name in (*changeable(), *MADE_ONCE)] == [
        getattr(definition, name) for name in (*changeable(), *MADE_ONCE)
    ]
    assert ("cannot be applied" in text) == (definition.keys != Keys())


def test_differences_are_said_a_line_each() -> None:
    rules = [LimitRule(id=name) for name in "abc"]
    before = CrawlDefinition(id="c", version=1, delay=0.5, limits=tuple(rules))
    after = replace(
        before, version=2, by="x", delay=2.0, concurrency=5, user_agent="u" * 100,
        limits=(LimitRule(id="d"), rules[1], LimitRule(id="c", delay=3.0)),
    )  # fmt: skip
    assert list(differences(before, after)) == [
        "delay: 0.5 → 2.0",
        "concurrency: null → 5",
        "limits: 3 → 3 rules (+d -a ~c)",
        f"user_agent:  → {'u' * 57}…",
    ]
    turned = replace(before, limits=tuple(reversed(rules)))
    assert list(differences(before, turned)) == ["limits: 3 → 3 rules (in another order)"]
    assert re.match("scope: ", next(differences(before, replace(before, scope=Scope(mode="host")))))
