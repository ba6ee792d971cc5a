from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from agents.cli.crawl import exit_code
from agents.cli.main import cli
from streams.codecs import PUBLIC
from streams.errors import Exit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FYKE_WORKER_STATE", str(tmp_path / "state"))
    return tmp_path


def run(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(cli, arguments, input=stdin)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("crawl",), "no URL given"),
        (("crawl", "--demo", "http://a/"), "--demo brings its own URL"),
        (("crawl", "example.org"), "https://example.org"),
        (("crawl", "http://a/", "--depth", "-1"), "--depth"),
        (("crawl", "http://a/", "--limit", "0"), "--limit"),
        (("crawl", "http://a/", "--scope", "web"), "--scope"),
        (("crawl", "http://a/", "--connect-to", "a:80"), "HOST:PORT:ADDR:PORT"),
        (("crawl", "http://a/", "--name", "../x"), "cannot be a crawl's name"),
        (("resume",), "no crawl in ./fyke-out is unfinished"),
        (("resume", "nobody"), "holds no crawl"),
        (("seed",), "no URL given"),
        (("seed", "http://a/", "--header", "x"), "NAME:VALUE"),
        (("seed", "http://a/", "--meta", "{"), "not JSON"),
        (("schema", "nothing"), "Known are: seed"),
        (("worker",), "frontier"),
        (("worker", "cook"), "cook"),
    ],
)
def test_wrong_usage_is_explained_with_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status",), "no broker runs"),
        (("topics", "check"), "no broker runs"),
        (("topics", "apply"), "no broker runs"),
        (("seed", "http://a/"), "no broker runs"),
        (("worker", "parser"), "no broker runs"),
        (("worker", "exporter"), "no output folder"),
        (("status", "--kafka", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_what_the_environment_lacks_is_explained_with_exit_code_3(arguments, message):
    result = run(*arguments)
    assert result.exit_code == Exit.ENVIRONMENT
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_setting_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("FYKE_FETCH_CONCURRENCY", "many")
    for command in (("config",), ("crawl", "http://a/"), ("status",), ("broker", "start")):
        result = run(*command)
        assert result.exit_code == Exit.ENVIRONMENT
        assert "FYKE_FETCH_CONCURRENCY" in result.output


def test_config_shows_values_and_where_they_come_from(folder, monkeypatch):
    (folder / "fyke.toml").write_text("[fetch]\nconcurrency = 3\n")
    monkeypatch.setenv("FYKE_KAFKA_PREFIX", "x.")
    found = json.loads(run("config", "--json", "--kafka", "k:1", "--allow-private").output)
    assert found["fetch.concurrency"] == {"value": 3, "from": "fyke.toml:2", "variable": "FYKE_FETCH_CONCURRENCY"}
    assert found["kafka.prefix"]["from"] == "FYKE_KAFKA_PREFIX"
    assert found["kafka.bootstrap"] == {"value": "k:1", "from": "--kafka", "variable": "FYKE_KAFKA_BOOTSTRAP"}
    assert found["fetch.allow_private"]["from"] == "--allow-private"
    assert found["worker.grace"]["from"] == "default"
    text = run("config").output
    assert "fyke.toml:2" in text
    assert "default (FYKE_WORKER_GRACE)" in text


def test_every_public_message_has_a_schema():
    names = run("schema").output.split()
    assert names == list(PUBLIC)
    for name in names:
        assert "$defs" in json.loads(run("schema", name).output)


def test_topics_plan_needs_no_broker(monkeypatch):
    monkeypatch.setenv("FYKE_KAFKA_PREFIX", "p.")
    plan = json.loads(run("topics", "plan", "--json").output)
    assert {"p.urls", "p.inbox", "p.crawls"} <= {topic["name"] for topic in plan["topics"]}
    assert plan["groups"]["p.frontier.broadcast"] == ["p.crawls", "p.progress"]
    text = run("topics", "plan").output
    assert "p.urls  partitions=4" in text
    assert "group p.exporter.*  reads p.records p.failures\n" in text


def test_broker_status_and_stop_without_a_broker():
    assert run("broker", "status").exit_code == 1
    assert "not running" in run("broker", "status").output
    assert json.loads(run("broker", "status", "--json").output)["running"] is False
    assert "no broker was running" in run("broker", "stop").output


def test_clean_asks_first(folder):
    assert "nothing to remove" in run("clean").output
    (folder / "state/logs").mkdir(parents=True)
    assert run("clean", stdin="n\n").exit_code == 1
    assert (folder / "state/logs").exists()
    assert run("clean", "--yes").exit_code == 0
    assert not (folder / "state/logs").exists()


@pytest.mark.parametrize(
    ("result", "pages", "code"),
    [
        ("exhausted", 5, Exit.ENDED),
        ("exhausted", 0, Exit.NO_PAGE),
        ("limit", 5, Exit.LIMIT),
        ("limit", 0, Exit.NO_PAGE),
        ("size", 5, Exit.LIMIT),
        ("deadline", 5, Exit.LIMIT),
        ("deadline", 0, Exit.NO_PAGE),
        ("cancelled", 5, Exit.CANCELLED),
        ("cancelled", 0, Exit.CANCELLED),
    ],
)
def test_the_exit_code_says_how_it_ended(result, pages, code):
    assert exit_code(result, pages) is code


def test_help_and_schemas_load_neither_faust_nor_kafka():
    script = (
        "import sys; from click.testing import CliRunner; from agents.cli.main import cli;"
        "assert CliRunner().invoke(cli, ['schema', 'seed']).exit_code == 0;"
        "assert CliRunner().invoke(cli, ['crawl', '--help']).exit_code == 0;"
        "heavy = ('faust', 'aiokafka', 'aiohttp', 'rocksdict', 'rich', 'pydantic');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ("each shard 256 (", "answered in 10 s", "In all 4 shards: 1,024 or", "never more than 40,000.")),
        (
            {"FYKE_FRONTIER_RELEASE_FLOOR": "20000", "FYKE_KAFKA_PARTITIONS": "48"},
            ("each shard 10,000 (", "In all 48 shards: 480,000 or"),
        ),
        ({"FYKE_FRONTIER_RELEASE_SECONDS": "2.5"}, ("is fetched in 2.5 s",)),
    ],
)
def test_config_says_what_a_crash_repeats(monkeypatch, tmp_path, variables, said) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    output = " ".join(CliRunner().invoke(cli, ["config"]).output.split())
    for words in said:
        assert words in output
