"""What the doctor makes of facts: each fault it is there for is a problem with something to do, the rest is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.cli import checks
from agents.cli.checks import GIB, Finding, WorkerFolder
from agents.io.provision import TopicPlan
from agents.io.survey import GroupState, TopicState
from streams.state.checkup import REBUILD, Checkup

PLAN = TopicPlan("fyke.pages", 4, 3, {}, single=False)


@pytest.mark.parametrize(
    ("finding", "ok"),
    [
        (checks.disk("/data", 50 * GIB), True),
        (checks.disk("/data", GIB // 2), False),
        (checks.files(65_536), True),
        (checks.files(-1), True),
        (checks.files(256), False),
        (checks.clock(0.4), True),
        (checks.clock(-1.9), True),
        (checks.clock(3600.0), False),
        (checks.clock(-2.5), False),
    ],
)
def test_this_machine(finding: Finding, ok: bool) -> None:
    assert finding.ok == ok


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ([], []),
        ([WorkerFolder("parser-1", 7, True, True)], []),
        ([WorkerFolder("parser-1", 0, False, False)], []),
        ([WorkerFolder("parser-1", 7, True, False)], ["parser-1 (process 7) still runs"]),
    ],
)
def test_what_workers_left_behind(found: list[WorkerFolder], problems: list[str]) -> None:
    findings = checks.worker_folders(found)
    assert [finding.ok for finding in findings] == ([False] * len(problems) or [True])
    for finding, problem in zip(findings, problems, strict=False):
        assert finding.text.startswith(problem)


def test_stores() -> None:
    sound, aside, damaged = (Checkup(Path(f"/state/workers/frontier-1/rows-{n}.db"), n) for n in range(3))
    aside.found("none", "an earlier one is kept", "Remove it.")
    damaged.found("rebuilt", "it cannot be opened: torn", REBUILD)
    assert checks.stores([], Path("/state")) == []
    (fine,) = checks.stores([sound, aside], Path("/state"))
    assert (fine.ok, fine.text) == (True, "2 stores at rest can be used as they are")
    (problem,) = checks.stores([sound, aside, damaged], Path("/state"))
    assert problem.text == "workers/frontier-1/rows-2.db: it cannot be opened: torn"
    assert problem.remedy == REBUILD


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ([TopicState(PLAN, 4)], []),
        ([TopicState(PLAN, 0)], ["there are none yet"]),
        ([TopicState(PLAN, 4), TopicState(PLAN, 0)], ["missing: fyke.pages"]),
        ([TopicState(PLAN, 8)], ["fyke.pages has 8 partitions, not 4"]),
        ([TopicState(PLAN, 4, leaderless=(1,))], ["fyke.pages has no leader for partition 1"]),
        ([TopicState(PLAN, 4, short_of_replicas=(0, 2))], ["fyke.pages lacks copies in sync of partitions 0, 2"]),
        (
            [TopicState(PLAN, 4, differing=("retention.ms=1 (planned: 2)",))],
            ["fyke.pages differs from the plan: retention.ms=1 (planned: 2)"],
        ),
        (
            [TopicState(PLAN, 0), TopicState(PLAN, 8, leaderless=(3,))],
            ["missing", "fyke.pages has 8", "fyke.pages has no leader for partition 3"],
        ),
    ],
)
def test_topics(found: list[TopicState], problems: list[str]) -> None:
    findings = [finding for finding in checks.topics(found) if not finding.ok]
    assert len(findings) == len(problems)
    for finding, problem in zip(findings, problems, strict=True):
        assert finding.text.startswith(problem)


OWNED = {"fyke.pages": {0, 1}}


@pytest.mark.parametrize(
    ("state", "waiting", "problem"),
    [
        (GroupState("g", "Empty", 0), {0: 0, 1: 0}, ""),
        (GroupState("g", "Empty", 0), {0: 3, 1: 0}, "no worker; 3 messages wait"),
        (GroupState("g", "Stable", 2, OWNED), {0: 3, 1: 9}, ""),
        (GroupState("g", "Stable", 2, OWNED), {0: 3, 2: 0}, ""),
        (GroupState("g", "Stable", 2, OWNED), {0: 3, 2: 5, 3: 1}, "6 of them in partitions that no worker has: fyke."),
        (GroupState("g", "PreparingRebalance", 2), {0: 3}, "the group is in the state PreparingRebalance"),
    ],
)
def test_groups(state: GroupState, waiting: dict[int, int], problem: str) -> None:
    finding = checks.group("parser", state, {"fyke.pages": waiting})
    assert finding.ok == (not problem)
    assert problem in finding.text
