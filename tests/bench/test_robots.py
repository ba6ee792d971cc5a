"""CPU of robots.txt: reading a real file and asking about its URLs; the slowest of 4,231 files."""

from __future__ import annotations

import time

import pytest

from streams.policy import robots
from tests.conformance import robots_files

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

NOW = 1_700_000_000_000
SLOWEST = 2.0
"""Seconds of CPU: far above what the slowest file takes, so that only another order of growth fails."""


def test_the_slowest_file() -> None:
    took: list[tuple[float, float, int, str]] = []
    for name, body in robots_files.real_files():
        sampled = robots_files.sample(name, body)
        began = time.process_time()
        matcher = robots.Matcher(robots.read("http://example.org", 200, body, NOW))
        read = time.process_time()
        for url in sampled:
            matcher.allowed(url)
        asked = time.process_time()
        took.append((asked - began, read - began, len(body), name))
    slowest = max(took)
    total, reading, size, name = slowest
    all_asked = sum(cpu - read for cpu, read, _, _ in took)
    print(f"\n{len(took)} files in {sum(cpu for cpu, *_ in took):.2f} s of CPU; an answer takes "
          f"{1e6 * all_asked / len(took) / robots_files.SAMPLED:.1f} µs")  # fmt: skip
    print(f"slowest: {name}, {size} bytes: {1000 * reading:.0f} ms to read, {1000 * (total - reading):.0f} ms for "
          f"{robots_files.SAMPLED} answers")  # fmt: skip
    assert total < SLOWEST
