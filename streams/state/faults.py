"""What is said when a store or its changelog cannot be used, and a person has to do something about it."""

from __future__ import annotations

from pathlib import Path

from aiokafka.errors import CorruptRecordException, KafkaError, TopicAuthorizationFailedError

from streams.errors import DamagedError, EnvironmentFault, StateError

ASIDE = ".aside"
"""At the end of the name of a store that was set aside."""


def unusable(path: Path, problem: str) -> EnvironmentFault:
    """What is said when the machine does not let a store be read or written."""
    if "No space left" in problem:
        remedy = "Make room on its disk and start the worker again: nothing is lost, it goes on where it was."
    else:
        remedy = "Look at its disk and at the rights of its folder, then start the worker again: nothing is lost."
    return EnvironmentFault(f"the store {path} cannot be used: {problem}", remedy)


def removed(path: Path) -> DamagedError:
    """What is said when somebody removed a store under its worker."""
    return DamagedError(f"{path} was removed", "Start the worker again: it rebuilds the store from the changelog.")


def recreated(path: Path, rows: int) -> StateError:
    """What is said of a store whose changelog is another one now: it may have the only copy of its rows."""
    return StateError(
        f"the changelog topic was deleted and made again since {path} was written: "
        f"the store holds about {rows:,} keys that Kafka has no more",
        "To go on with what Kafka has: `fyke state rebuild --incomplete` (it keeps the store under another name).",
    )


def expired(path: Path, offset: int, begin: int) -> StateError:
    """What is said where the changelog begins behind the `offset` that a store contains."""
    return StateError(
        f"the changelog of {path} begins at offset {begin}, the store needs it from {offset + 1} "
        "on: records were deleted otherwise than by compaction, so rows are missing",
        "Set the topic's cleanup.policy to compact (`fyke topics apply`) and look for a store that is complete: that "
        f"of a worker that had the shard before, or one kept as …{ASIDE}. "
        "To go on with what is left: `fyke state rebuild --incomplete`.",
    )


def refused(topic: str, error: KafkaError) -> EnvironmentFault:
    """What is said when the brokers refuse the changelog for good: rights, or a record that they cannot read."""
    if isinstance(error, TopicAuthorizationFailedError):
        remedy = "Grant this worker's user Read, Write, Describe and DescribeConfigs on it."
    elif isinstance(error, CorruptRecordException):
        remedy = "A replica of it is damaged: let another one lead (kafka-leader-election.sh), or restore the topic."
    else:
        remedy = "Look at the brokers' logs, then start the worker again."
    return EnvironmentFault(f"the changelog {topic} cannot be read: {error or type(error).__name__}", remedy)
