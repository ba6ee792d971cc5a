"""Builds that are wrong on purpose: `python -m tests.faults.sabotage NAME[,NAME] worker STAGE`.

Each is `fyke worker STAGE` with one function replaced, and so one promise broken, which the checker must catch. The
product has no hooks for this. `trap` breaks nothing, see `tests.faults.trap`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.producer.message_accumulator import MessageBatch

from agents.cli.main import main
from agents.delivery.acker import Acker, Slot
from agents.fetcher import FetcherStage
from agents.frontier import FrontierStage
from agents.holdings import Holding, Holdings
from agents.parser import ParserStage
from streams.policy.politeness import WireClock
from streams.state.table import RowTable
from tests.faults import trap
from tests.faults.workers import Command


def commit_early() -> None:
    """What is taken counts as done."""
    take = Acker.take

    def taken(self: Acker, first: int, last: int) -> Slot:
        slot = take(self, first, last)
        slot.done()
        return slot

    Acker.take = taken  # type: ignore[method-assign] # the sabotage


def swallow_errors() -> None:
    """A batch that the broker refuses counts as delivered."""

    def failure(self: Any, exception: BaseException) -> None:
        self.done(0, -1)
        if not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    MessageBatch.failure = failure


def drop_last_batch() -> None:
    """At SIGTERM a worker acks what it holds, and forgets it."""

    async def drain(self: Any) -> None:
        for acker in self._delivery._shards._ackers.values():
            for slot in list(acker._slots):
                slot.done()
        self.revoked()
        await asyncio.sleep(0)

    for stage in (FrontierStage, FetcherStage, ParserStage):
        stage.drain = drain  # type: ignore[method-assign] # the sabotage


def ack_out_of_order() -> None:
    """The position moves to the end of whatever is done, over what is not."""

    def settle(self: Acker) -> None:
        done = [slot.end for slot in self._slots if slot.settled]
        if done and self.open and max(done) > self.position:
            before, self.position = self.position, max(done)
            self._moved(before, self.position)

    Acker.settle = settle  # type: ignore[method-assign] # the sabotage


def forget_delay() -> None:
    """A fetcher that takes a partition over begins at once."""

    def taken_over(self: Holdings, number: int, end: int) -> Holding:
        return Holding(WireClock())

    Holdings._taken_over = taken_over  # type: ignore[method-assign] # the sabotage


def write_unfenced() -> None:
    """An owner takes every record of the changelog for one that counts, whoever wrote it."""
    defaults: Any = RowTable.__init__.__kwdefaults__
    defaults["accept"] = lambda *_: True


BUILDS: dict[str, Callable[[], None]] = {
    "commit-early": commit_early,
    "swallow-errors": swallow_errors,
    "drop-last-batch": drop_last_batch,
    "ack-out-of-order": ack_out_of_order,
    "forget-delay": forget_delay,
    "write-unfenced": write_unfenced,
    "trap": trap.install,
}


def build(*names: str) -> Command:
    """The command of a worker with these patches; of the product as it is without any."""

    def command(stage: str) -> Sequence[str]:
        return sys.executable, "-m", "tests.faults.sabotage", ",".join(names), "worker", stage

    return command


if __name__ == "__main__":
    for name in filter(None, sys.argv.pop(1).split(",")):
        BUILDS[name]()
    sys.argv[0] = "fyke"
    main()
