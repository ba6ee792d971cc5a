from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from agents.cli import outputs
from agents.cli.outputs import Plan, check_name, default_name, make_folder, read_plan, unfinished, write_plan
from streams.codecs import CRAWL_ID
from streams.definitions import CrawlDefinition
from streams.errors import EnvironmentFault, UsageError

PLAN = Plan(name="a", seeds=("http://a/",), definition=CrawlDefinition(id="a", seal={0: 3}), settings={"k": [1]})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nothing(_name: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("example.org", "example.org"),
        ("example.org:8080", "example.org-8080"),
        ("[::1]:80", "1-80"),
        ("-.-", "crawl"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a" * 300, "a" * 56),
    ],
)
def test_a_host_becomes_a_name_that_can_be_numbered(host, name):
    assert default_name(host) == name
    assert CRAWL_ID.match(f"{name}-99999")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "../a", "ä", "a" * 65])
def test_what_cannot_be_a_name_is_refused(name):
    with pytest.raises(UsageError):
        check_name(name)


def test_a_taken_name_is_numbered_whether_the_folder_or_the_broker_has_it(folder):
    assert make_folder("a", None, nothing, exact=False) == ("a", Path("fyke-out/a"))
    assert make_folder("a", None, nothing, exact=False) == ("a-2", Path("fyke-out/a-2"))
    assert make_folder("a", None, {"a-3"}.__contains__, exact=False) == ("a-4", Path("fyke-out/a-4"))
    assert not (folder / "fyke-out/a-3").exists()


def test_a_name_that_was_asked_for_is_not_changed():
    make_folder("a", None, nothing, exact=True)
    with pytest.raises(UsageError, match="there is a crawl a already"):
        make_folder("a", None, nothing, exact=True)
    with pytest.raises(UsageError, match="fyke resume b"):
        make_folder("b", None, {"b"}.__contains__, exact=True)


def test_a_given_folder_is_used_if_empty_and_never_written_over(folder):
    (folder / "o").mkdir()
    assert make_folder("a", folder / "o", {"a"}.__contains__, exact=False) == ("a-2", folder / "o")
    with pytest.raises(UsageError, match="not empty"):
        make_folder("b", folder / "o", nothing, exact=False)
    (folder / "p").mkdir()
    (folder / "p" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        make_folder("b", folder / "p", nothing, exact=False)


def test_a_folder_that_cannot_be_made_is_one_clear_message(folder):
    (folder / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot make the output folder"):
        make_folder("a", folder / "file" / "o", nothing, exact=False)


def test_a_plan_comes_back_as_it_was(folder):
    write_plan(folder, PLAN)
    assert read_plan(folder) == PLAN
    with pytest.raises(UsageError, match="holds no crawl"):
        read_plan(folder / "elsewhere")
    (folder / ".fyke/crawl.json").write_text("{")
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        read_plan(folder)


def test_resume_takes_the_newest_that_has_not_ended():
    for number, (name, result) in enumerate((("a", ""), ("b", ""), ("c", "exhausted"))):
        path = outputs.HOME / name
        write_plan(path, replace(PLAN, name=name, result=result))
        os.utime(path / ".fyke/crawl.json", (number, number))
    assert unfinished(None, None).name == "b"
    assert unfinished("a", None).name == "a"
    assert unfinished(None, Path("elsewhere")) == Path("elsewhere")
    write_plan(outputs.HOME / "a", replace(PLAN, result="limit"))
    write_plan(outputs.HOME / "b", replace(PLAN, result="limit"))
    with pytest.raises(UsageError, match="unfinished"):
        unfinished(None, None)
