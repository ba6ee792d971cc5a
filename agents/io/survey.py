"""How a cluster stands: topics against the plan, partitions without a leader, who is in which group and owns what.

Asks only; each answer is of one moment. Names of topics and groups are full, with the deployment's prefix.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from agents.io.provision import TopicPlan, plan_topics
from streams.errors import EnvironmentFault
from streams.settings import Settings

PATIENCE_MS: Final = 10_000
STABLE: Final = "Stable"
_STATE, _MEMBERS, _ASSIGNMENT = 2, 5, 4  # positions in the description of a group and of a member (DescribeGroups)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A planned topic as it is. `differing`: settings that are not as planned, as `name=is (planned)`."""

    plan: TopicPlan
    partitions: int
    leaderless: tuple[int, ...] = ()
    short_of_replicas: tuple[int, ...] = ()
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group. `owned`: partitions by topic that some member has."""

    name: str
    state: str
    members: int
    owned: Mapping[str, Collection[int]] = field(default_factory=dict)

    def unowned(self, waiting: Mapping[str, Mapping[int, int]]) -> dict[tuple[str, int], int]:
        """Of the messages that wait (topic -> partition -> number) those in partitions that no member has."""
        return {
            (topic, partition): number
            for topic, partitions in waiting.items()
            for partition, number in partitions.items()
            if number and partition not in self.owned.get(topic, ())
        }


class Survey:
    """A connection for questions about the state of a cluster: `async with survey(bootstrap, settings) as it`."""

    def __init__(self, client: Any, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    async def topics(self) -> list[TopicState]:
        """Every planned topic; one that is missing has no partitions."""
        found = {topic["topic"]: topic["partitions"] for topic in await self._client.describe_topics(None)}
        plans = plan_topics(self._settings)
        differing = await self._differing([plan for plan in plans if plan.name in found])
        return [self._topic(plan, found.get(plan.name, []), differing.get(plan.name, ())) for plan in plans]

    async def group(self, name: str) -> GroupState:
        """A group by its name without prefix; one that was never used has no members."""
        full = self._settings.kafka.prefix + name
        coordinator = await self._client.find_coordinator(full)
        (answer,) = await self._client.describe_consumer_groups([full], coordinator)
        (described,) = answer.groups
        owned: dict[str, set[int]] = {}
        for member in described[_MEMBERS]:
            if not member[_ASSIGNMENT]:
                continue  # it has joined and waits for its partitions
            for topic, partitions in ConsumerProtocolMemberAssignment.decode(member[_ASSIGNMENT]).assignment:
                owned.setdefault(topic, set()).update(partitions)
        return GroupState(full, described[_STATE], len(described[_MEMBERS]), owned)

    def _topic(self, plan: TopicPlan, partitions: list[dict[str, Any]], differing: tuple[str, ...]) -> TopicState:
        return TopicState(
            plan,
            len(partitions),
            tuple(sorted(p["partition"] for p in partitions if p["leader"] < 0)),
            tuple(sorted(p["partition"] for p in partitions if len(p["isr"]) < len(p["replicas"]))),
            differing,
        )

    async def _differing(self, plans: list[TopicPlan]) -> dict[str, tuple[str, ...]]:
        if not plans:
            return {}
        planned = {plan.name: plan.configs for plan in plans}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in planned]
        found: dict[str, tuple[str, ...]] = {}
        for answer in await self._client.describe_configs(resources):
            for _, _, _, topic, entries in answer.resources:
                values = {name: value for name, value, *_ in entries}
                found[topic] = tuple(
                    f"{name}={values[name]} (planned: {wanted})"
                    for name, wanted in sorted(planned[topic].items())
                    if name in values and values[name] != wanted
                )
        return found


@asynccontextmanager
async def survey(bootstrap: str, settings: Settings) -> AsyncIterator[Survey]:
    """Connect for the block. What the cluster refuses or does not answer is an `EnvironmentFault`."""
    client: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=PATIENCE_MS)
    try:
        await client.start()
        yield Survey(client, settings)
    except (KafkaError, OSError) as error:
        raise EnvironmentFault(f"Kafka at {bootstrap} does not say how it stands: {error}", "See its log.") from error
    finally:
        await client.close()
