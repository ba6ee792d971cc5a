"""The closing summary: which suites were not there, so that a green run says what it did not look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.suites import ABSENT

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["tests.kafka", "tests.alone"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, separator, suite = str(report.longrepr).partition(ABSENT)
        if separator:
            missing[suite.rstrip("')")] += 1
    if missing:
        terminalreporter.section("suites not present")
        for suite, count in sorted(missing.items()):
            terminalreporter.line(f"{suite}: {count} skipped")
