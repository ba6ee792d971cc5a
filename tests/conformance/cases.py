"""Cases of a suite as parameters, and the ones that are known to differ.

A divergence is listed by the case's id with its reason. It is a strict expected failure: a listed case that passes
fails the build, and so does a listed id that the suite does not have (`stale`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.suites import corpus

Divergences = Mapping[str, str]
"""Case id -> why the project answers differently."""


def data(name: str) -> Any:
    """A JSON file of the corpora. The module that asks is skipped (or fails) where the suite is absent."""
    return json.loads(corpus(name).read_text(encoding="utf-8", errors="surrogatepass"))


def file(name: str) -> Path:
    """A file of the corpora; as `data`."""
    return corpus(name)


def case(case_id: str, *values: Any, known: Divergences) -> Any:
    """One parameter set with its id; a known divergence must fail."""
    marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=known[case_id])] if case_id in known else []
    return pytest.param(*values, id=case_id, marks=marks)


def by_reason(lists: Mapping[str, Iterable[str]]) -> Divergences:
    """Divergences written as reason -> ids; an id stands under one reason only."""
    known: dict[str, str] = {}
    for reason, ids in lists.items():
        for case_id in ids:
            assert case_id not in known, f"listed twice: {case_id}"
            known[case_id] = reason
    return known


def stale(known: Divergences, ids: Iterable[str]) -> list[str]:
    """Listed ids that the suite does not have; a test of the suite asserts that there are none."""
    return sorted(set(known) - set(ids))
