"""The short form of the fault table, a test for each line: see `tests.faults.run` and docs/reliability.md.

All lines take about 25 minutes, so every run has those that found most so far; `FYKE_TEST_FAULTS=all` has all of
them, as has `make faults SHORT=1`. `FYKE_TEST_SEED` repeats a run; without it every run has another one, which a
failure names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.bench import Bench
from tests.faults.lines import Line
from tests.faults.registry import ALL
from tests.faults.run import measure

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

IN_EVERY_RUN = ("worker-kill", "zombies", "state-lost")
WANTED = [line for line in ALL if line.name in IN_EVERY_RUN or os.environ.get("FYKE_TEST_FAULTS") == "all"]
SHORT = [pytest.param(line, id=line.name) for line in WANTED if line.short is not None]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Brokers and workers that the lines share."""
    with Bench(tmp_path_factory.mktemp("faults") / "bench") as shared:
        yield shared


@pytest.mark.parametrize("line", SHORT)
def test_line(line: Line, bench: Bench) -> None:
    seed = os.environ.get("FYKE_TEST_SEED") or str(random.randrange(1_000_000))
    result = measure(line, "short", seed, bench.folder, bench)
    assert result is not None
    assert result.holds, f"seed {seed}:\n" + "\n".join(result.problems)
