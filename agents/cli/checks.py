"""What `fyke doctor` makes of what it sees: facts in, findings out. Nothing here looks at anything itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.io.endpoints import MAX_SKEW
from agents.io.survey import STABLE, GroupState, TopicState
from streams.state.checkup import REBUILD, Checkup

GIB: Final = 1 << 30
LEAST_FREE: Final = 1 * GIB
"""Bytes: a broker and its workers' tables write more than that in a crawl of some size."""

LEAST_FILES: Final = 1024
"""Open files of a process: a connection for each request, the files of RocksDB, the broker's segments."""

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and, if that is a problem, what to do."""

    check: str
    text: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.remedy


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """A worker's folder below the state folder: whether a worker is in it, and whoever started that one still there."""

    name: str
    pid: int
    runs: bool
    has_parent: bool


def disk(path: str, free: int) -> Finding:
    """Room for the broker and the tables."""
    text = f"{free / GIB:.1f} GiB free at {path}"
    if free >= LEAST_FREE:
        return Finding("disk", text)
    return Finding("disk", text, "Make room, or name another folder with --state: a full disk stops the broker.")


def files(limit: int) -> Finding:
    """Open files a process may have; `limit` < 0: any number."""
    text = f"{'any number of' if limit < 0 else limit} open files a process"
    if limit < 0 or limit >= LEAST_FILES:
        return Finding("files", text)
    return Finding("files", text, f"Raise the limit: ulimit -n {4 * LEAST_FILES} (LimitNOFILE in a systemd unit).")


def clock(skew: float) -> Finding:
    """This machine's clock against the broker's, in seconds."""
    text = f"{skew:+.1f} s against the broker's"
    if abs(skew) < MAX_SKEW:
        return Finding("clock", text)
    return Finding("clock", text, "Set the clock (NTP): a worker that is so far off is not ready.")


def worker_folders(found: Sequence[WorkerFolder]) -> list[Finding]:
    """Processes that were left behind."""
    running = [worker for worker in found if worker.runs]
    findings = [
        Finding(
            "workers",
            f"{worker.name} (process {worker.pid}) still runs, and the `fyke crawl` that started it is gone",
            f"It ends by itself when it has finished its work; if it does not: kill {worker.pid}",
        )
        for worker in running
        if not worker.has_parent
    ]
    return findings or [Finding("workers", f"{len(running)} of {len(found)} run here; nothing is left of others")]


def stores(found: Sequence[Checkup], state: Path) -> list[Finding]:
    """Stores at rest below the state folder `state`."""
    findings = [
        Finding("state", f"{checkup.path.relative_to(state)}: {each.text}", each.remedy or REBUILD)
        for checkup in found
        for each in checkup.findings
        if each.effect != "none"
    ]
    return findings or ([Finding("state", f"{len(found)} stores at rest can be used as they are")] if found else [])


def topics(found: Sequence[TopicState]) -> list[Finding]:
    """Topics against the plan."""
    missing = [topic.plan.name for topic in found if not topic.partitions]
    if len(missing) == len(found):
        return [Finding("topics", "there are none yet", "They are made by `fyke crawl` or `fyke topics apply`.")]
    findings = []
    if missing:
        findings.append(Finding("topics", f"missing: {', '.join(missing)}", "Run `fyke topics apply`."))
    for topic in found:
        findings += _topic(topic)
    return findings or [Finding("topics", f"{len(found)}, as planned")]


def _topic(topic: TopicState) -> list[Finding]:
    name, plan = topic.plan.name, topic.plan
    findings = []
    if topic.partitions and topic.partitions != plan.partitions:
        remedy = f"Set FYKE_KAFKA_PARTITIONS={topic.partitions}." if not plan.single else "Delete that topic."
        findings.append(Finding("topics", f"{name} has {topic.partitions} partitions, not {plan.partitions}", remedy))
    if topic.leaderless:
        text = f"{name} has no leader for {_partitions(topic.leaderless)}: nothing can be written or read there"
        findings.append(Finding("brokers", text, "Start the brokers that hold them again."))
    if topic.short_of_replicas:
        text = f"{name} lacks copies in sync of {_partitions(topic.short_of_replicas)}"
        findings.append(Finding("brokers", text, "Start the missing brokers, or wait until they have caught up."))
    if topic.differing:
        text = f"{name} differs from the plan: {', '.join(topic.differing)}"
        findings.append(Finding("topics", text, "Run `fyke topics apply`."))
    return findings


def group(stage: str, state: GroupState, waiting: Mapping[str, Mapping[int, int]]) -> Finding:
    """A stage's consumer group. `waiting`: messages to be done, by topic and partition."""
    total = sum(sum(partitions.values()) for partitions in waiting.values())
    if not state.members:
        text = f"no worker; {total} messages wait"
        remedy = f"Start workers: `fyke resume`, or `fyke worker {stage}`." if total else ""
        return Finding(stage, text, remedy)
    text = f"{state.members} workers; {total} messages wait"
    if state.state != STABLE:
        remedy = "Look again in a minute: a worker that does not answer is put out after its session time-out."
        return Finding(stage, f"{text}; the group is in the state {state.state}", remedy)
    unowned = state.unowned(waiting)
    if unowned:
        text = f"{text}; {sum(unowned.values())} of them in partitions that no worker has: {_shown(unowned)}"
        return Finding(stage, text, "Restart one of its workers: the group then shares the partitions out again.")
    return Finding(stage, text)


def _partitions(numbers: Sequence[int]) -> str:
    return f"partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _shown(partitions: Mapping[tuple[str, int], int]) -> str:
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
