"""Which topics a deployment has: names, partition counts and settings, worked out from the settings alone."""

from __future__ import annotations

from dataclasses import dataclass

from streams import topics
from streams.settings import Settings


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic as it has to be on the cluster. `configs`: the topic's own settings, values as Kafka prints them."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]
    single: bool


def plan_topics(settings: Settings) -> list[TopicPlan]:
    """Every topic, changelog included, in the order of `streams.topics.ALL`."""
    return [_plan(topic, settings) for topic in topics.ALL]


def plan_groups(settings: Settings) -> dict[str, list[str]]:
    """Every consumer group and the topics it commits offsets of, by their full names; `*`: of any crawl."""
    prefix = settings.kafka.prefix
    return {prefix + group: [prefix + topic.name for topic in read] for group, read in topics.GROUPS.items()}


def _plan(topic: topics.Topic, settings: Settings) -> TopicPlan:
    kafka = settings.kafka
    configs = topic.configs(kafka.max_message)
    # Of three copies two must have a record before it counts as accepted: then the loss of one machine loses nothing.
    configs["min.insync.replicas"] = "2" if kafka.replication >= 3 else "1"
    if topic is topics.PAGES and not kafka.bootstrap:
        configs["retention.bytes"] = str(settings.broker.retention)
    return TopicPlan(
        name=kafka.prefix + topic.name,
        partitions=1 if topic.single else kafka.partitions,
        replication=kafka.replication,
        configs=configs,
        single=topic.single,
    )
