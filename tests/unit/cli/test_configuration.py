from __future__ import annotations

import json

import pytest

from agents.cli.configuration import all_names, load, origins, override
from streams.errors import SettingsError
from streams.settings import Settings, to_environment


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_flag_wins_over_the_environment_the_environment_over_the_file(folder, monkeypatch):
    (folder / "fyke.toml").write_text(
        '# mine\n[fetch]\nconcurrency = 3\nstall_timeout = 4.0\n\n[kafka]\nprefix = "x."\n'
    )
    monkeypatch.setenv("FYKE_FETCH_CONCURRENCY", "7")
    monkeypatch.setenv("FYKE_KAFKA_PREFIX", "y.")
    flags = {"kafka.prefix": ("--prefix", "z.")}
    settings, sources = load(flags), origins(flags)
    assert (settings.fetch.concurrency, settings.fetch.stall_timeout, settings.kafka.prefix) == (7, 4.0, "z.")
    assert sources["fetch.concurrency"] == "FYKE_FETCH_CONCURRENCY"
    assert sources["fetch.stall_timeout"] == "fyke.toml:4"
    assert sources["kafka.prefix"] == "--prefix"
    assert sources["worker.grace"] == "default"


def test_lines_of_dotted_keys_and_inline_tables_are_found(folder):
    (folder / "fyke.toml").write_text('worker.log = "debug"\nkafka = { prefix = "p." }\n')
    sources = origins()
    assert (sources["worker.log"], sources["kafka.prefix"]) == ("fyke.toml:1", "fyke.toml:2")
    assert (load().worker.log, load().kafka.prefix) == ("debug", "p.")


def test_a_variable_counts_however_its_letters_are_written(monkeypatch):
    monkeypatch.setenv("fyke_fetch_concurrency", "5")
    assert load().fetch.concurrency == 5
    assert origins()["fetch.concurrency"] == "fyke_fetch_concurrency"


def test_every_setting_has_an_origin():
    assert set(origins()) == set(all_names())
    assert set(origins().values()) == {"default"}


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FYKE_FETCH_CONCURRENCY", "many", "FYKE_FETCH_CONCURRENCY: fetch.concurrency = 'many'"),
        ("FYKE_FETCH_CONCURRENCY", "0", "greater than or equal to 1"),
        ("FYKE_FETCH_SPEED", "9", "FYKE_FETCH_SPEED: there is no setting fetch.speed"),
        ("FYKE_FETCH_CONNECT_TO", "a:1:b:2", "fetch"),
        ("FYKE_WORKER_LOG", "loud", "FYKE_WORKER_LOG"),
    ],
)
def test_an_unreadable_variable_is_named(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert message in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fetch]\n\nconcurrency = 'many'\n", "fyke.toml:3: fetch.concurrency"),
        ("[fetch]\nspeed = 9\n", "fyke.toml:2: there is no setting fetch.speed"),
        ("[typo]\nx = 1\n", "there is no setting typo"),
        ("[fetch\n", "fyke.toml is not readable TOML"),
    ],
)
def test_an_unreadable_file_is_named_with_its_line(folder, text, message):
    (folder / "fyke.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load()
    assert message in caught.value.problem


def test_a_child_process_gets_the_settings_whatever_its_file_says(folder, monkeypatch):
    settings = Settings.model_validate(
        {"fetch": {"allow_private": True, "connect_to": ["a:1:b:2"]}, "export": {"out": folder / "o", "crawl": "c"}}
    )
    (folder / "fyke.toml").write_text("[fetch]\nallow_private = false\nconcurrency = 9\n")
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load() == settings


def test_override_replaces_single_values():
    changed = override(Settings(), {"worker.name": "w", "export.crawl": "c", "worker.port": 1})
    assert (changed.worker.name, changed.worker.port, changed.export.crawl) == ("w", 1, "c")
    assert changed.worker.grace == Settings().worker.grace
    assert json.loads(to_environment(changed)["FYKE_WORKER_PORT"]) == 1
