"""Registrable domains: the public suffix list's own cases (corpora/psl)."""

from __future__ import annotations

from typing import Any

import pytest

from streams.policy import urls
from tests.conformance import cases

CASES = cases.data("psl/cases.json")["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case["input"]))
def test_registrable_domain(case: dict[str, Any]) -> None:
    host = (case["input"] or "").lower()
    assert urls.registrable_domain(host) == case["registrable_domain"]
    assert urls.site(host) == (case["registrable_domain"] or host)
