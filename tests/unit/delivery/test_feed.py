"""The four rules that keep batches from being lost over rebalances; each test fails without its rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import pytest

from streams.errors import OwnershipLost
from streams.feed import TP, Feed, Haul

A: TP = ("t", 0)
B: TP = ("t", 1)


@dataclass(frozen=True)
class Record:
    offset: int


@dataclass
class Log:
    """A partition as aiokafka holds it: a log with holes, a commit, and the position of the next read."""

    offsets: list[int]
    committed: int = -1
    position: int = 0
    begin: int = 0
    before: int = 0  # records before the position that a poll brings along, as from a compressed batch

    @property
    def end(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else self.begin


@dataclass
class FakeSource:
    """Polls return `size` records at most; `gate` holds a poll back after it took its data."""

    logs: dict[TP, Log]
    size: int = 2
    calls: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: set[TP] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    patience: float = 0.05
    returning: Callable[[], None] | None = None  # once, in the loop turn after a poll brought data

    def __post_init__(self) -> None:
        self.gate.set()

    async def poll(self, wanted: frozenset[TP], seconds: float) -> Mapping[TP, Haul]:
        self.calls.append("poll")
        self.wanted = set(wanted)
        hauls = self.take()
        if not hauls:
            self.woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.patience):
                    await self.woken.wait()
            hauls = self.take()
        await self.gate.wait()
        if hauls and self.returning is not None:
            asyncio.get_running_loop().call_soon(self.returning)
            self.returning = None
        return hauls

    def take(self) -> dict[TP, Haul]:
        hauls = {}
        for tp in self.wanted:
            log = self.logs[tp]
            found = [offset for offset in log.offsets if offset >= log.position][: self.size]
            if found:
                start, log.position = log.position, found[-1] + 1
                extra = [offset for offset in log.offsets if start - log.before <= offset < start]
                hauls[tp] = Haul(start, log.position, [Record(offset) for offset in extra + found])
        return hauls

    def want(self, tp: TP) -> None:
        self.wanted.add(tp)
        self.woken.set()

    async def rewind(self) -> Mapping[TP, int]:
        self.calls.append("rewind")
        await asyncio.sleep(0)
        return {tp: self.stand(tp, log.committed) for tp, log in self.logs.items()}

    async def seek(self, tp: TP, position: int) -> int:
        self.calls.append("seek")
        return self.stand(tp, position)

    def stand(self, tp: TP, position: int) -> int:
        log = self.logs[tp]
        log.position = min(max(position, log.begin), log.end)
        return log.position


class Fatal(Exception):
    pass


@dataclass
class FakePort:
    got: list[tuple[TP, int]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    block: dict[TP, asyncio.Event] = field(default_factory=dict)
    fail: Exception | None = None
    fatals: list[BaseException] = field(default_factory=list)
    running: set[TP] = field(default_factory=set)
    cancelled: int = 0
    linger: float = 0.0  # seconds a cancelled call takes to end

    def revoked(self) -> None:
        self.events.append("revoked")

    async def assigned(self, generation: int, positions: Mapping[TP, int]) -> None:
        self.events.append(f"assigned {sorted(positions.values())}")
        self.generations.append(generation)

    async def batch(self, tp: TP, generation: int, records: list[Any]) -> None:
        assert tp not in self.running, "two calls for one partition"
        self.running.add(tp)
        try:
            self.got += [(tp, record.offset) for record in records]
            if self.fail is not None:
                raise self.fail
            if tp in self.block:
                await self.block[tp].wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(self.linger)
            raise
        finally:
            self.running.discard(tp)

    def fatal(self, error: BaseException) -> NoReturn:
        self.fatals.append(error)
        raise Fatal from error

    def offsets(self, tp: TP = A) -> list[int]:
        return [offset for got, offset in self.got if got == tp]


@asynccontextmanager
async def feeding(source: FakeSource, port: FakePort, *, assign: bool = True) -> AsyncIterator[Feed]:
    feed = Feed(source, port)
    task = asyncio.create_task(feed.run())
    if assign:
        reassign(feed)
    try:
        yield feed
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def reassign(feed: Feed) -> None:
    """What Faust does: the first sign, the assignment, the end of recovery."""
    feed.interrupt(asyncio.get_running_loop())
    feed.revoke()
    feed.grant()
    feed.resume()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the fakes have no events for everything
            await asyncio.sleep(0.001)


async def settled() -> None:
    await asyncio.sleep(0.12)


async def test_everything_is_handed_over_in_order() -> None:
    source, port = FakeSource({A: Log(list(range(7))), B: Log(list(range(3)))}), FakePort()
    async with feeding(source, port) as feed:
        await until(lambda: len(port.got) == 10)
        assert feed.fed
    assert port.offsets(A) == list(range(7))
    assert port.offsets(B) == list(range(3))
    assert port.events == ["revoked", "revoked", "assigned [0, 0]"]


async def test_rule_1_the_record_at_the_committed_offset_comes_and_those_before_do_not() -> None:
    source, port = FakeSource({A: Log(list(range(8)), committed=4, before=2)}), FakePort()
    async with feeding(source, port):
        await until(lambda: 7 in port.offsets())
    assert port.offsets() == [4, 5, 6, 7]


async def test_rule_2_nothing_is_handed_over_from_the_first_sign_to_the_assignment() -> None:
    source, port = FakeSource({A: Log(list(range(100)))}, size=1), FakePort()
    async with feeding(source, port) as feed:
        await until(lambda: len(port.got) > 3)
        feed.interrupt(asyncio.get_running_loop())
        before = len(port.got)
        await settled()
        assert len(port.got) == before
        assert not feed.fed
        feed.resume()  # the end of a recovery that belongs to the assignment before
        await settled()
        assert len(port.got) == before
        feed.grant()
        feed.resume()
        await until(lambda: len(port.got) > before)
        assert feed.fed


async def test_rule_2_calls_of_the_old_generation_are_cancelled_and_over_before_the_new_one_begins() -> None:
    source, port = FakeSource({A: Log([0, 1])}), FakePort(block={A: asyncio.Event()}, linger=0.05)
    async with feeding(source, port) as feed:
        await until(lambda: A in port.running)
        reassign(feed)
        await until(lambda: len(port.generations) == 2)
        assert port.cancelled == 1
        await until(lambda: len(port.got) == 4)  # uncommitted, so again
        assert not port.fatals


async def test_rule_2_a_call_that_has_not_begun_at_the_first_sign_does_not_begin() -> None:
    source, port = FakeSource({A: Log([0, 1])}), FakePort()
    async with feeding(source, port, assign=False) as feed:
        source.returning = partial(feed.interrupt, asyncio.get_running_loop())
        reassign(feed)
        await settled()
    assert port.got == []


async def test_rule_3_positions_are_the_committed_ones_also_if_another_owner_moved_them() -> None:
    source, port = FakeSource({A: Log(list(range(10)), committed=2)}), FakePort()
    async with feeding(source, port) as feed:
        await until(lambda: 9 in port.offsets())
        source.logs[A].committed = 7
        port.got.clear()
        reassign(feed)
        await until(lambda: 9 in port.offsets())
    assert port.offsets() == [7, 8, 9]


async def test_rule_3_a_poll_that_began_before_the_assignment_is_dropped() -> None:
    source, port = FakeSource({A: Log(list(range(6)))}), FakePort()
    source.gate.clear()
    async with feeding(source, port) as feed:
        await until(lambda: source.logs[A].position == 2)  # the poll has its data and hangs
        source.logs[A].committed = 1
        reassign(feed)
        await settled()
        source.gate.set()
        await until(lambda: 5 in port.offsets())
    assert port.offsets() == [1, 2, 3, 4, 5]
    assert source.calls[:4] == ["rewind", "poll", "rewind", "poll"]


async def test_rule_3_a_dropped_poll_moves_nothing() -> None:
    source, port = FakeSource({A: Log(list(range(6)))}), FakePort(block={A: asyncio.Event()})
    async with feeding(source, port) as feed:
        await until(lambda: port.offsets() == [0, 1])
        source.gate.clear()
        source.logs[A].position = 4
        port.block.pop(A).set()
        await until(lambda: source.logs[A].position == 6)  # the poll has its data and hangs
        reassign(feed)
        source.gate.set()
        await until(lambda: 5 in port.offsets())
    assert "seek" not in source.calls


async def test_rule_4_data_that_begins_elsewhere_is_read_again_from_the_expected_position() -> None:
    source, port = FakeSource({A: Log(list(range(10)))}), FakePort(block={A: asyncio.Event()})
    async with feeding(source, port) as feed:
        await until(lambda: port.offsets() == [0, 1])
        source.logs[A].position = 6  # somebody else took 2 to 5 out
        port.block[A].set()
        await until(lambda: 9 in port.offsets())
        assert feed.returns == 1
    assert port.offsets() == list(range(10))


async def test_rule_4_holes_of_the_log_are_no_loss() -> None:
    source, port = FakeSource({A: Log([0, 4, 5, 9], committed=0)}, size=1), FakePort()
    async with feeding(source, port) as feed:
        await until(lambda: 9 in port.offsets())
        assert feed.returns == 0
    assert port.offsets() == [0, 4, 5, 9]


async def test_rule_4_what_retention_removed_is_passed() -> None:
    source, port = FakeSource({A: Log(list(range(10)))}), FakePort(block={A: asyncio.Event()})
    async with feeding(source, port):
        await until(lambda: port.offsets() == [0, 1])
        log = source.logs[A]
        log.begin = log.position = 7
        log.offsets = [7, 8, 9]
        port.block[A].set()
        await until(lambda: 9 in port.offsets())
    assert port.offsets() == [0, 1, 7, 8, 9]


async def test_a_slow_partition_does_not_stop_the_others_and_comes_back_at_once() -> None:
    logs = {A: Log(list(range(4))), B: Log(list(range(50)))}
    source, port = FakeSource(logs, patience=300.0), FakePort(block={A: asyncio.Event()})
    async with feeding(source, port):
        await until(lambda: 49 in port.offsets(B))
        assert port.offsets(A) == [0, 1]
        port.block.pop(A).set()
        await until(lambda: port.offsets(A) == [0, 1, 2, 3])


async def test_hold_stops_for_good() -> None:
    source, port = FakeSource({A: Log([0, 1, 2, 3])}), FakePort(block={A: asyncio.Event()})
    async with feeding(source, port) as feed:
        await until(lambda: A in port.running)
        await feed.hold()
        assert not port.running
        assert not feed.fed
        reassign(feed)
        await settled()
    assert port.offsets() == [0, 1]


async def test_an_exception_of_the_stage_ends_the_process() -> None:
    source, port = FakeSource({A: Log([0])}), FakePort(fail=KeyError("bug"))
    async with feeding(source, port):
        await until(lambda: bool(port.fatals))
    assert isinstance(port.fatals[0], KeyError)


async def test_ownership_lost_before_the_first_sign_ends_the_process() -> None:
    source, port = FakeSource({A: Log([0])}), FakePort(fail=OwnershipLost("moved"))
    async with feeding(source, port):
        await until(lambda: bool(port.fatals))
