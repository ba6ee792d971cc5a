"""The lock files fit pyproject.toml: every requirement is locked at a version it allows, with hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.suites import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
AGAIN = "run `make lock`"


def locked(name: str) -> dict[str, list[str]]:
    """Package -> locked versions (more than one where they differ by Python version)."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)", line):
            found.setdefault(canonicalize_name(match[1]), []).append(match[2])
    return found


def unfit(requirements: list[str], lock: dict[str, list[str]]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        versions = lock.get(canonicalize_name(requirement.name), [])
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            yield f"{text}: locked {versions}"


def test_the_lock_of_a_crawl_fits() -> None:
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["embedded"], *groups["build"]]
    assert not list(unfit(wanted, locked("requirements.lock"))), AGAIN


def test_the_lock_of_the_tests_fits_and_agrees() -> None:
    ours, theirs = locked("requirements.lock"), locked("requirements-dev.lock")
    assert not list(unfit(PROJECT["dependency-groups"]["dev"], theirs)), AGAIN
    assert not {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}, AGAIN


def test_everything_is_hashed() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        entries = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / name).read_text(encoding="utf-8").strip())
        assert not [entry[:60] for entry in entries if "==" in entry and "--hash=sha256:" not in entry]


def test_every_dependency_is_justified() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[text.index("\n## Dependencies") :]
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["embedded"]]
    names = [Requirement(requirement).name for requirement in wanted]
    assert not [name for name in names if name.removeprefix("opentelemetry") not in table]
