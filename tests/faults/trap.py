"""A worker that stands still at the worst moment: with a batch of rows in its producer's buffer that is not sent yet.

It does so once, when a file `trap` is in its working folder: it removes the file and stops itself by SIGSTOP. What a
frontier decided then lands in the changelog whenever it goes on, whoever owns the shard by then.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.topics import CHANGELOG
from tests.faults.workers import Process

FILE = "trap"
LEAST = 2
"""Records: the batch of a claim has one, that of a turn some."""


def install() -> None:
    """Called in the worker before it starts."""
    trap, send = Path(FILE), AIOKafkaProducer.send_batch

    def spring() -> None:
        if trap.exists():
            trap.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)

    async def send_batch(self: Any, batch: Any, topic: str, *, partition: int) -> Any:
        sent = await send(self, batch, topic, partition=partition)
        if topic.endswith(CHANGELOG.name) and batch.record_count() >= LEAST:
            spring()  # the sender is another task: it has not had its turn
        return sent

    AIOKafkaProducer.send_batch = send_batch


def lay(process: Process) -> None:
    """Have a worker stop itself when it next writes rows."""
    (process.log.parent / FILE).touch()


def sprung(process: Process) -> bool:
    """Whether it has; from then on it counts as frozen."""
    if not process.pid or _state(process.pid) != "T":
        return False
    process.frozen = True
    return True


def release(process: Process) -> float:
    """Let it go on; when, in seconds since the epoch."""
    at = time.time()
    process.signal(signal.SIGCONT)
    return at


def _state(pid: int) -> str:
    """As in /proc: T is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
