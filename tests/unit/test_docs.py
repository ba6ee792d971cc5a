"""The documentation says what the code says: generated pages, names of settings, links between files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams import topics
from tests import docs
from tests.suites import ROOT

OF_TESTS = {"FYKE_CORPORA", "FYKE_REQUIRE_SUITES", "FYKE_TEST_CACHE"}
WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", docs.pages(), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == docs.pages()[path], "run `make docs`"


def test_every_setting_and_topic_is_on_its_page() -> None:
    text = "".join(docs.pages().values())
    missing = [variable for _, _, variable, field in docs.settings() if f"`{variable}`" not in text]
    assert not missing
    assert not [topic.name for topic in topics.ALL if f"`{topic.name}`" not in text]


def test_every_setting_has_a_description() -> None:
    assert not [variable for _, _, variable, field in docs.settings() if not field.description]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_only_settings_that_exist_are_named(path: Path) -> None:
    known = {variable for _, _, variable, _ in docs.settings()} | OF_TESTS
    named = set(re.findall(r"FYKE_[A-Z]+(?:_[A-Z]+)*", path.read_text(encoding="utf-8")))
    assert named <= known


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (path.parent / target).exists()]
