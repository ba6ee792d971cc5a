"""What the tests need from outside the repository, and what happens when it is not there.

`FYKE_CORPORA` names the folder of conformance data (default: `shared/corpora` beside the repository). What is absent is
a loud, named skip; with `FYKE_REQUIRE_SUITES=1` (set by `.ci/run`) it is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
ABSENT = "suite not present: "
"""How the reason of such a skip begins; `tests/conftest.py` gathers them into the closing summary."""


def required() -> bool:
    """Whether an absent suite is a failure."""
    return os.environ.get("FYKE_REQUIRE_SUITES", "") not in ("", "0")


def absent(suite: str, why: str) -> NoReturn:
    """Skip (or fail) the running test or module because `suite` is not here."""
    if required():
        pytest.fail(f"{ABSENT}{suite} ({why})", pytrace=False)
    pytest.skip(f"{ABSENT}{suite} ({why})", allow_module_level=True)


def corpora() -> Path:
    """The folder of conformance data; it need not exist."""
    named = os.environ.get("FYKE_CORPORA")
    return Path(named) if named else ROOT.parent / "shared" / "corpora"


def corpus(name: str) -> Path:
    """A folder or file of the conformance data. Skips (or fails) where it is absent."""
    path = corpora() / name
    if not path.exists():
        absent(name, "FYKE_CORPORA names the folder that holds it")
    return path


def cache() -> Path:
    """Where downloaded packages and computed expectations are kept: outside the repository, safe to delete."""
    named = os.environ.get("FYKE_TEST_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fyke-tests"
