"""What Fyke asks a Kafka cluster beside producing and consuming: topics, offsets, lag, trimming. All of it goes here.

Names of topics and groups are given without the deployment's prefix. Whatever the cluster refuses becomes an
`EnvironmentFault` that names the operation, the topic or group and the remedy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from agents.io.provision import TopicPlan, plan_topics
from streams import codecs, topics
from streams.definitions import Deployment
from streams.errors import EnvironmentFault
from streams.settings import Settings

T = TypeVar("T")

CONNECT_PATIENCE = 10.0
"""Seconds for which the first connection is tried: somebody who mistyped an address waits for the answer."""

PATIENCE = 30.0
"""Seconds for which an operation is tried again while the cluster elects, loads or restarts."""

_PAUSE = 0.25
_DYNAMIC_TOPIC_CONFIG = 1  # where a value comes from: set on the topic itself (Kafka protocol, DescribeConfigs)
_PINNED_KEY = b"deployment"

_PASSING = (
    kafka_errors.GroupCoordinatorNotAvailableError,  # the first group ever makes __consumer_offsets
    kafka_errors.GroupLoadInProgressError,
    kafka_errors.NotCoordinatorForGroupError,
    kafka_errors.NotControllerError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.UnknownTopicOrPartitionError,  # made a moment ago; what is really missing is checked before
    kafka_errors.RequestTimedOutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.StaleMetadata,
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    TimeoutError,
)
_AWAY = (kafka_errors.NodeNotReadyError, kafka_errors.KafkaConnectionError, kafka_errors.KafkaTimeoutError,
         kafka_errors.RequestTimedOutError, TimeoutError)  # fmt: skip
_FORBIDDEN = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
)
_STRANGER = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.AuthenticationMethodNotSupported,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.UnsupportedSaslMechanismError,
)


class Admin:
    """A connection to a cluster: `async with Admin(bootstrap, settings) as admin`. Raises `EnvironmentFault`."""

    def __init__(self, bootstrap: str, settings: Settings, patience: float | None = None) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._patience = patience or CONNECT_PATIENCE
        self._patience_connected = patience or PATIENCE
        self._client: Any = None
        self._consumer: Any = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._try("connect", self._connect)
        self._patience = self._patience_connected
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
        await self._client.close()

    # Topics

    async def partition_counts(self) -> dict[str, int]:
        """Every topic this user may see, by its full name, with its number of partitions."""
        found = await self._try("list topics", lambda: self._client.describe_topics(None))
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    async def apply_topics(self) -> list[str]:
        """Make what is missing, correct what differs, pin the deployment; a line per change.

        Partition counts are never changed: rows, orders and offsets of a shard stay where its keys hash to. Nothing
        is made or changed if an existing topic's count differs.
        """
        plans = plan_topics(self._settings)
        existing = await self.partition_counts()
        self._check_counts(plans, existing)
        missing = [plan for plan in plans if plan.name not in existing]
        await self._create(missing)
        changes = [f"made {plan.name} with {plan.partitions} partitions" for plan in missing]
        for plan in plans:
            if plan.name in existing:
                changes += await self._correct(plan)
        if await self.deployment() is None:
            await self._pin(Deployment(politeness=self._settings.frontier.politeness))
            changes.append(f"pinned the politeness key: {self._settings.frontier.politeness}")
        await self.check_pinned()  # another process may have pinned at the same moment: the last one counts
        return changes

    async def check_topics(self) -> None:
        """Raise `EnvironmentFault` unless all topics are there as the settings want them. Changes nothing."""
        plans = plan_topics(self._settings)
        existing = await self.partition_counts()
        missing = [plan.name for plan in plans if plan.name not in existing]
        if missing:
            raise EnvironmentFault(
                f"topics are missing on {self._bootstrap} (or hidden from this user): {', '.join(missing)}",
                "Make them with `fyke topics apply`.",
            )
        self._check_counts(plans, existing)
        await self.check_pinned()

    async def check_pinned(self) -> None:
        """Raise `EnvironmentFault` unless this deployment is what the settings say."""
        wanted, pinned = self._settings.frontier.politeness, await self.deployment()
        if pinned is None:
            raise EnvironmentFault("the topics are not complete: nothing is pinned", "Run `fyke topics apply`.")
        if pinned.politeness != wanted:
            raise EnvironmentFault(
                f"this deployment keeps politeness by {pinned.politeness}, settings say {wanted}: every key would "
                "move to another shard",
                f"Set FYKE_FRONTIER_POLITENESS={pinned.politeness}, or use another prefix (FYKE_KAFKA_PREFIX).",
            )

    async def deployment(self) -> Deployment | None:
        """What was pinned with the topics; None before `apply_topics`."""
        topic = self._name(topics.DEPLOYMENT.name)
        ends = await self.end_offsets(topics.DEPLOYMENT.name)
        if not ends:
            return None
        return await self._try(f"read {topic}", lambda: self._read_last(topic, ends[0]))

    async def wait_for_leaders(self, *names: str) -> None:
        """Return when the cluster takes writes: it has a controller, and every partition has a leader.

        `names`: topics that must be among them, by their full names.
        """

        async def look() -> None:
            cluster = await self._client.describe_cluster()
            if not cluster["brokers"] or cluster["controller_id"] < 0:
                raise kafka_errors.LeaderNotAvailableError
            found = await self._client.describe_topics(None)
            led = {t["topic"] for t in found if t["partitions"] and all(p["leader"] >= 0 for p in t["partitions"])}
            if len(led) < len(found) or not led.issuperset(names):
                raise kafka_errors.LeaderNotAvailableError

        await self._try("wait for leaders", look)

    # Offsets

    async def begin_offsets(self, topic: str) -> dict[int, int]:
        """The first offset that is still there, by partition; empty if there is no such topic."""
        return await self._offsets(topic, "beginning_offsets")

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset that the next record will get, by partition; empty if there is no such topic."""
        return await self._offsets(topic, "end_offsets")

    async def offsets_at(self, topic: str, at: int) -> dict[int, int]:
        """The first offset whose record is stamped `at` (ms) or later, by partition; its end where there is none."""
        ends = await self.end_offsets(topic)
        wanted = {TopicPartition(self._name(topic), p): at for p in ends}

        async def ask() -> dict[Any, Any]:
            return dict(await (await self._reader()).offsets_for_times(wanted))

        found = await self._try(f"read the offsets of {self._name(topic)}", ask)
        return ends | {tp.partition: first.offset for tp, first in found.items() if first is not None}

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """What the group has committed (the next offset it reads), by partition; without one: absent."""
        full, group_id = self._name(topic), self._name(group)

        async def ask() -> dict[Any, Any]:
            found: dict[Any, Any] = await self._client.list_consumer_group_offsets(group_id)
            if not found:  # there are none; or the coordinator does not know yet, which aiokafka does not tell
                (answer,) = await self._client.describe_consumer_groups([group_id])
                for code, *_ in answer.groups:
                    _raise_for(code, None)
                found = await self._client.list_consumer_group_offsets(group_id)
            return found

        found = await self._try(f"read the offsets of group {group_id}", ask)
        return {tp.partition: at.offset for tp, at in found.items() if tp.topic == full and at.offset >= 0}

    async def lag(self, group: str, topic: str) -> dict[int, int]:
        """Records that the group has yet to commit, by partition of the topic. Trimmed records do not count."""
        committed = await self.committed(group, topic)  # before the ends: a lag is never too small
        begins, ends = await asyncio.gather(self.begin_offsets(topic), self.end_offsets(topic))
        return {p: max(0, end - max(committed.get(p, 0), begins[p])) for p, end in ends.items()}

    async def trim(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records of each partition below the given offset; the first offset left, by partition."""
        if not before:
            return {}
        full = self._name(topic)
        wanted = {TopicPartition(full, p): RecordsToDelete(offset) for p, offset in before.items()}
        left = await self._try(f"delete records of {full}", lambda: self._client.delete_records(wanted))
        return {tp.partition: offset for tp, offset in left.items()}

    # How it is done

    def _name(self, name: str) -> str:
        return self._settings.kafka.prefix + name

    async def _connect(self) -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=self._timeout_ms)
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        self._client = client

    @property
    def _timeout_ms(self) -> int:
        return int(1000 * min(self._settings.kafka.request_timeout, self._patience))

    async def _reader(self) -> Any:
        """One consumer without a group for all questions about offsets."""
        async with self._starting:  # of several questions at once the first one starts it
            if self._consumer is None:
                consumer = AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap, request_timeout_ms=self._timeout_ms, enable_auto_commit=False,
                )  # fmt: skip
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._consumer = consumer
            return self._consumer

    async def _offsets(self, topic: str, question: str) -> dict[int, int]:
        full = self._name(topic)
        count = (await self.partition_counts()).get(full, 0)
        if not count:
            return {}

        async def ask() -> dict[Any, int]:
            found: dict[Any, int] = await getattr(await self._reader(), question)(
                [TopicPartition(full, p) for p in range(count)]
            )
            return found

        return {tp.partition: offset for tp, offset in (await self._try(f"read the offsets of {full}", ask)).items()}

    async def _create(self, plans: list[TopicPlan]) -> None:
        for plan in plans:
            new = NewTopic(plan.name, plan.partitions, plan.replication, topic_configs=dict(plan.configs))

            async def create(new: Any = new) -> None:
                answer = await self._client.create_topics([new])
                for _, code, *detail in answer.topic_errors:
                    if code != kafka_errors.TopicAlreadyExistsError.errno:  # made meanwhile by another process
                        _raise_for(code, detail[0] if detail else "")

            await self._try(f"create topic {plan.name}", create)
        await self.wait_for_leaders(*(plan.name for plan in plans))

    async def _correct(self, plan: TopicPlan) -> list[str]:
        """Set the settings of a topic that differ; those set on it by others stay (AlterConfigs replaces all)."""
        resource = ConfigResource(ConfigResourceType.TOPIC, plan.name)

        async def describe() -> dict[str, tuple[str, int]]:
            (answer,) = await self._client.describe_configs([resource])
            (code, detail, _, _, entries) = answer.resources[0]
            _raise_for(code, detail)
            return {name: (value, source) for name, value, _, source, *_ in entries}

        found = await self._try(f"describe topic {plan.name}", describe)
        differing = {k: v for k, v in plan.configs.items() if found.get(k, ("", 0))[0] != v}
        if not differing:
            return []
        own = {name: value for name, (value, source) in found.items() if source == _DYNAMIC_TOPIC_CONFIG}
        wanted = ConfigResource(ConfigResourceType.TOPIC, plan.name, {**own, **plan.configs})

        async def alter() -> None:
            (answer,) = await self._client.alter_configs([wanted])
            for code, detail, *_ in answer.resources:
                _raise_for(code, detail)

        await self._try(f"alter topic {plan.name}", alter)
        return [f"set {key}={value} on {plan.name}" for key, value in sorted(differing.items())]

    def _check_counts(self, plans: list[TopicPlan], existing: Mapping[str, int]) -> None:
        for plan in plans:
            count = existing.get(plan.name, plan.partitions)
            if count != plan.partitions:
                raise EnvironmentFault(
                    f"the partition count of {plan.name} is {count}, settings say {plan.partitions}: growing a topic "
                    "under live state is refused",
                    f"Set FYKE_KAFKA_PARTITIONS={count}." if not plan.single else "Delete that topic, or use another "
                    "prefix (FYKE_KAFKA_PREFIX).",
                )  # fmt: skip

    async def _pin(self, deployment: Deployment) -> None:
        topic = self._name(topics.DEPLOYMENT.name)

        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, acks="all", request_timeout_ms=self._timeout_ms
            )
            await producer.start()
            try:
                await producer.send_and_wait(topic, codecs.encode(deployment), key=_PINNED_KEY, partition=0)
            finally:
                await producer.stop()

        await self._try(f"write {topic}", send)

    async def _read_last(self, topic: str, end: int) -> Deployment | None:
        """The last record of partition 0 before `end`, found by position: compaction leaves gaps."""
        reader = await self._reader()
        partition = TopicPartition(topic, 0)
        reader.assign([partition])
        found: Deployment | None = None
        try:
            await reader.seek_to_beginning(partition)
            while await reader.position(partition) < end:
                for records in (await reader.getmany(partition, timeout_ms=1000)).values():
                    for record in records:
                        found = codecs.decode(Deployment, record.value)
        finally:
            reader.unsubscribe()
        return found

    async def _try(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call; again, within the patience, while the cluster is busy with itself. `EnvironmentFault`."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await call()
            except _PASSING as error:
                if time.monotonic() + _PAUSE > deadline:
                    raise _fault(self._bootstrap, operation, error) from error
            except (kafka_errors.KafkaError, ValueError) as error:
                raise _fault(self._bootstrap, operation, error) from error
            await asyncio.sleep(_PAUSE)


def _raise_for(code: int, detail: str | None) -> None:
    if code:
        raise kafka_errors.for_code(code)(detail or "")


def _fault(bootstrap: str, operation: str, error: Exception) -> EnvironmentFault:
    """Turn what the library raised into a sentence and a remedy."""
    if isinstance(error, _AWAY):
        return EnvironmentFault(
            f"no Kafka answers at {bootstrap} ({operation})",
            "Start it, or correct --kafka / FYKE_KAFKA_BOOTSTRAP; without either Fyke starts a broker of its own.",
        )
    if isinstance(error, _FORBIDDEN):
        return EnvironmentFault(
            f"not authorised on {bootstrap}: {operation}",
            "Give this user the right (`fyke topics plan` lists what is needed), or let an administrator run "
            "`fyke topics apply`.",
        )
    if isinstance(error, _STRANGER):
        return EnvironmentFault(f"{bootstrap} does not accept the credentials ({operation})", "Correct them.")
    if isinstance(error, ValueError) and not isinstance(error, kafka_errors.KafkaError):
        return EnvironmentFault(f"{bootstrap!r} is not a list of host:port: {error}", "Correct --kafka.")
    return EnvironmentFault(f"Kafka at {bootstrap} refused to {operation}: {error}", "See the broker's log.")


def wait_until_serving(bootstrap: str, settings: Settings, patience: float) -> None:
    """Block until the cluster at `bootstrap` takes writes (`Admin.wait_for_leaders`).

    Raises `EnvironmentFault` after `patience` seconds.
    """
    with ThreadPoolExecutor(1) as pool:  # the calling thread may have a loop that runs
        pool.submit(asyncio.run, _serving(bootstrap, settings, patience)).result()


async def _serving(bootstrap: str, settings: Settings, patience: float) -> None:
    async with Admin(bootstrap, settings, patience) as admin:
        await admin.wait_for_leaders()
