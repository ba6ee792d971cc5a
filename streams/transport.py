"""Faust's Kafka transport with batches instead of events.

Builds on private names of faust-streaming, mode-streaming and aiokafka, which are pinned and checked at start
(`streams.app`). Replaced are the drain loop (`streams.feed`) and what feeds the commits: instead of lists of acked
offsets one position per partition, below which all is done. So a commit cannot pass work in flight, whatever gaps the
log has. Everything else stays Faust's: membership, assignment, recovery, the commit timer and the commit itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest
from aiokafka.structs import TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP as FaustTP  # noqa: N811 - it is a class of that name

from streams.errors import EnvironmentFault
from streams.feed import TP, Feed, Haul

log = logging.getLogger(__name__)
T = TypeVar("T")

FETCH_WAIT_MS = 100
"""How long the broker may sit on a fetch. aiokafka has one under way per broker, without the partitions whose records
are not taken yet: what arrives in them meanwhile waits for it, and so does every question about offsets."""
RETRY_SECONDS = 0.25
COMMIT_SECONDS = 5.0
_REBALANCE_IN_PROGRESS = 27
"""Kafka protocol, error codes: a heartbeat answered so was accepted; the member still owns what it had."""
_UNKNOWN_MEMBER = 25
"""The coordinator does not know the member: its session ended, or another one has joined under its static name."""
_FENCED = 82
"""Another member has joined under the same static name (KIP-345)."""
_MEMBERS = 5  # position in the description of a group (Kafka protocol, DescribeGroups)


class MembershipLost(Exception):
    """The worker can take no part in its group any more, for a reason that a restart may mend."""

    def __init__(self, group: str, error: BaseException) -> None:
        super().__init__(f"membership in {group} failed: {str(error) or type(error).__name__}")


def is_member(member_id: str, name: str) -> bool:
    """Whether a member is the static one of that name: the broker makes its id from the name, a hyphen and a UUID."""
    return re.fullmatch(re.escape(name) + r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", member_id) is not None


def _codes(request: Any, response: Any) -> set[int]:
    """The error codes in an answer of the coordinator; commits are answered for each partition."""
    if isinstance(request, OffsetCommitRequest):
        return {code for _, partitions in response.topics for _, code in partitions}
    return {getattr(response, "error_code", 0)}


def _twin(name: str, group: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"another worker has joined the group {group} under the name of this one, {name!r}, and has its partitions now",
        "Give each worker of a group a name of its own (FYKE_WORKER_NAME, such as the pod's name), or none.",
    )


class BatchThread(driver.AIOKafkaConsumerThread):
    """The consumer's own thread: heartbeats and fetches go on while the stage works."""

    app: Any

    confirmed_at = 0.0
    """CLOCK_BOOTTIME at the send of the last heartbeat or join that the coordinator accepted."""

    async def on_start(self) -> None:
        """Connect, and note from then on when the coordinator accepts us, and when it knows another one of our name."""
        await super().on_start()
        coordinator = self.kafka._coordinator  # noqa: SLF001 - the client is pinned; it has no hook for this
        self._end_with(coordinator)
        send = coordinator._send_req  # noqa: SLF001 - all that the coordinator answers passes here

        async def send_and_note(request: Any) -> Any:
            sent, ours = time.clock_gettime(time.CLOCK_BOOTTIME), coordinator.member_id
            response = await send(request)
            codes = _codes(request, response)
            accepted = {0, _REBALANCE_IN_PROGRESS} if isinstance(request, HeartbeatRequest) else {0}
            if isinstance(request, HeartbeatRequest | SyncGroupRequest) and codes <= accepted:
                self.confirmed_at = sent
            elif _FENCED in codes or (_UNKNOWN_MEMBER in codes and ours and await self._replaced(coordinator, ours)):
                self.app.port.fatal(_twin(self.app.conf.consumer_group_instance_id, coordinator.group_id))
            return response

        coordinator._send_req = send_and_note  # noqa: SLF001 - as above

    def _end_with(self, coordinator: Any) -> None:
        """End the process when membership fails in a way that aiokafka does not mend.

        It keeps such an error for the next `getmany`, and neither joins nor sends heartbeats until then. Nobody here
        calls that: the member would be gone from its group for good, without a word. So would it if the routine ended.
        """

        def fail(error: BaseException) -> None:
            if not coordinator._closing.done():  # noqa: SLF001 - nothing public tells that it is being stopped
                self.app.port.fatal(MembershipLost(coordinator.group_id, error))

        async def push(error: BaseException) -> None:
            fail(error)

        def ended(routine: asyncio.Task[None]) -> None:
            if not routine.cancelled() and (error := routine.exception()) is not None:
                fail(error)

        coordinator._push_error_to_user = push  # noqa: SLF001 - `getmany`, which would tell, is not called
        coordinator._coordination_task.add_done_callback(ended)  # noqa: SLF001 - its end is told nowhere

    async def _replaced(self, coordinator: Any, ours: str) -> bool:
        """Whether the group has another member of our static name than `ours`, the one that it does not know.

        aiokafka's heartbeats and commits do not say which static member they are of, so Kafka cannot answer that it is
        fenced: the member would join again and take the partitions back, its twin the same a heartbeat or a commit
        later, without an end.
        """
        name = self.app.conf.consumer_group_instance_id
        if not name:
            return False
        try:
            ready = await coordinator._client.ready(coordinator.coordinator_id)  # noqa: SLF001
            request = DescribeGroupsRequest([coordinator.group_id])
            answer = await coordinator._client.send(coordinator.coordinator_id, request) if ready else None  # noqa: SLF001
        except KafkaError as error:
            log.warning("%s: who has the name %s? %s", coordinator.group_id, name, error)
            return False
        members = [member[0] for group in answer.groups for member in group[_MEMBERS]] if answer is not None else []
        return any(is_member(each, name) and each != ours for each in members)

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        """With Faust's sticky assignor also where there are no tables, so that partitions stay put."""
        consumer = super()._create_worker_consumer(transport)
        self._assignor = self.app.assignor
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001 - hard-coded in Faust
        consumer._partition_assignment_strategy = [self._assignor]  # noqa: SLF001 - no argument of Faust leads there
        return consumer

    @property
    def kafka(self) -> Any:
        """The consumer of aiokafka."""
        return self._ensure_consumer()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in this thread's loop. Not through Faust's method queue: a waiting poll would take half its workers."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.thread_loop))


class ThreadSource:
    """A `streams.feed.Source`: the public methods are called from the stage's loop, the others run in the thread."""

    def __init__(self, thread: BatchThread, settled: Callable[[Mapping[TP, int], Mapping[TP, int]], None]) -> None:
        self._thread = thread
        self._settled = settled
        self._asked = 0  # polls, counted in the stage's loop
        self._polled = 0  # the poll that runs or ran last, in the thread
        self._wanted: set[TP] = set()
        self._early: set[TP] = set()  # wanted for a poll that has not begun to run
        self._woken: asyncio.Future[None] | None = None

    async def poll(self, wanted: frozenset[TP], seconds: float) -> Mapping[TP, Haul]:
        """See `Source`."""
        self._asked += 1
        return await self._thread.run(self._poll(self._asked, wanted, seconds))

    def want(self, tp: TP) -> None:
        """See `Source`."""
        with suppress(RuntimeError):  # the thread's loop is closed
            self._thread.thread_loop.call_soon_threadsafe(self._want, self._asked, tp)

    async def rewind(self) -> Mapping[TP, int]:
        """See `Source`."""
        committed, positions = await self._thread.run(self._rewind())
        self._settled(committed, positions)
        return positions

    async def seek(self, tp: TP, position: int) -> int:
        """See `Source`."""
        return (await self._thread.run(self._settle({tp: position})))[tp]

    async def _poll(self, number: int, wanted: frozenset[TP], seconds: float) -> Mapping[TP, Haul]:
        fetcher = self._thread.kafka._fetcher  # noqa: SLF001
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._polled, self._wanted, self._early = number, {*wanted, *self._early}, set()
        while True:
            if fetcher._closed:  # noqa: SLF001
                raise ConsumerStoppedError
            hauls = await self._hauls(fetcher)
            left = deadline - loop.time()
            if hauls or left <= 0:
                return hauls
            waiter = fetcher._create_fetch_waiter()  # noqa: SLF001
            self._woken = loop.create_future()
            try:
                await asyncio.wait((waiter, self._woken), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if waiter.done():
                    waiter.result()  # raises what the fetcher could not mend, such as missing rights
            finally:
                waiter.cancel()
                self._woken = None

    async def _hauls(self, fetcher: Any) -> dict[TP, Haul]:
        """What is there. Nothing here suspends, so start, records and end of a partition belong together."""
        subscriptions = fetcher._subscriptions  # noqa: SLF001
        assignment = subscriptions.subscription and subscriptions.subscription.assignment
        if assignment is None or subscriptions.reassignment_in_progress:
            return {}
        states = {tp: assignment.state_value(tp) for tp in assignment.tps}
        starts = {tp: state.position for tp, state in states.items() if state.has_valid_position}
        limit = self._thread.kafka._max_poll_records  # noqa: SLF001
        with subscriptions.fetch_context():
            found = await fetcher.fetched_records(self._wanted, 0, limit)
        return {tp: Haul(starts[tp], states[tp].position, records) for tp, records in found.items()}

    def _want(self, number: int, tp: TP) -> None:
        if number != self._polled:  # a quick stage is done before the poll's coroutine has had its first step
            self._early.add(tp)
            return
        self._wanted.add(tp)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _rewind(self) -> tuple[dict[TP, int], dict[TP, int]]:
        kafka = self._thread.kafka
        changelogs = self._thread.app.tables.changelog_topics
        assigned = kafka.assignment()
        # Recovery reads changelogs by itself; here they would only fill the prefetch buffers.
        kafka.pause(*(tp for tp in assigned if tp.topic in changelogs))
        mine = [tp for tp in assigned if tp.topic not in changelogs]
        found = await self._patiently(lambda: kafka._coordinator.fetch_committed_offsets(mine))  # noqa: SLF001
        committed = {tp: found[tp].offset if tp in found else -1 for tp in mine}
        return committed, await self._settle(committed)

    async def _settle(self, wanted: Mapping[TP, int]) -> dict[TP, int]:
        """Seek each partition to the wanted position as far as its log reaches; below 0 is its beginning."""
        kafka = self._thread.kafka
        tps = [TopicPartition(*tp) for tp in wanted]
        begins = await self._patiently(lambda: kafka.beginning_offsets(tps))
        ends = await self._patiently(lambda: kafka.end_offsets(tps))
        positions = {tp: min(max(wanted[tp], begins[tp]), ends[tp]) for tp in tps}
        for tp, position in positions.items():
            with suppress(IllegalStateError):  # not ours any more: the generation is over
                kafka.seek(tp, position)
        return positions

    async def _patiently(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask the broker until it answers."""
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("%s: %s; asking again", self._thread.app.conf.id, error)
                await asyncio.sleep(RETRY_SECONDS)


class BatchConsumer(driver.Consumer):
    """Faust's consumer, fed in batches. The app gives it its `port` (`streams.app.StageApp`)."""

    app: Any
    _thread: BatchThread

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.feed = Feed(ThreadSource(self._thread, self._settled), self.app.port)
        self._done: dict[Any, int] = {}
        self._unclaimed: set[FaustTP] = set()  # of the assignment: without a committed offset when it came

    def _new_consumer_thread(self) -> BatchThread:
        return BatchThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def confirmed_at(self) -> float:
        """See `BatchThread`."""
        return self._thread.confirmed_at

    async def ends(self, tps: Iterable[TP]) -> Mapping[TP, int]:
        """The ends of partitions, asked from the broker now. Raises `KafkaError`."""
        partitions = [TopicPartition(*tp) for tp in tps]
        ends: Mapping[TP, int] = await self._thread.run(self._thread.kafka.end_offsets(partitions))
        return ends

    def ends_seen(self) -> dict[TP, int]:
        """The ends of the assigned partitions as of their last fetch."""
        return {tp: end for tp in self.assignment() if (end := self.highwater(tp)) is not None}

    # ---- commits --------------------------------------------------------------------------------------------------

    def _settled(self, committed: Mapping[TP, int], positions: Mapping[TP, int]) -> None:
        """Positions after a rewind. One that differs from the committed offset is committed as it is.

        So a partition without a commit gets one at once: its lag is known to everyone from the start.
        """
        self._unclaimed = {FaustTP(*tp) for tp, offset in committed.items() if offset < 0}
        for (topic, partition), position in positions.items():
            tp = FaustTP(topic, partition)
            self._committed_offset[tp] = position if committed[tp] == position else None
            self._done[tp] = position

    async def claim(self, tps: Iterable[TP]) -> set[TP]:
        """Those of our partitions that no member of the group had before. The next owner knows that we had them.

        What says so is their committed offset: here they get one. Where that fails, somebody may have been faster.
        """
        unclaimed = self._unclaimed.intersection(tps)
        if unclaimed:
            await self.commit()
        return {tp for tp in unclaimed if self._committed_offset.get(tp) is not None}

    def advance(self, tp: TP, position: int) -> None:
        """All before `position` is done. Positions of a partition only grow within a generation."""
        if tp in self._done:  # since the rewind; a plain tuple is equal to the key that is there
            self._done[tp] = position

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[FaustTP]:
        return iter([tp for tp in self._done if topics is None or tp in topics or tp.topic in topics])

    def _new_offset(self, tp: FaustTP) -> int | None:
        return self._done.get(tp)

    # ---- rebalances -----------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: set[FaustTP]) -> None:
        """Commit what was done before Faust forgets it; the work in flight was cancelled at the first sign."""
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await self.commit()
        except TimeoutError:
            log.warning(
                "%s: no commit before the rebalance; what was done since the last one repeats", self.app.conf.id
            )
        self._done.clear()
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[FaustTP], generation_id: int = 0) -> None:
        """A new generation begins; it is fed when recovery is through."""
        self.feed.grant()
        await super().on_partitions_assigned(assigned, generation_id)

    async def perform_seek(self) -> None:
        """Called by recovery when the tables are there. The feed itself seeks: here a time-out would end recovery."""
        if not self.app.tables.recovery.signal_recovery_start.is_set():  # else another recovery follows at once
            self.feed.resume()

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            await self.feed.run()
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def verify_all_partitions_active(self) -> None:
        """Faust's livelock detector looks at its own event streams; the watchdog of `agents.delivery` replaces it."""


class BatchTransport(driver.Transport):
    """Makes `BatchConsumer`s."""

    Consumer = BatchConsumer
