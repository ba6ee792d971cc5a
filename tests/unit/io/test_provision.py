from __future__ import annotations

from agents.io.provision import TopicPlan, plan_topics
from streams import topics
from streams.settings import Broker, Kafka, Settings


def _plans(**kafka: object) -> dict[str, TopicPlan]:
    settings = Settings(kafka=Kafka.model_validate(kafka), broker=Broker(retention=7))
    return {plan.name: plan for plan in plan_topics(settings)}


def test_every_topic_is_planned_under_the_prefix() -> None:
    plans = _plans(prefix="here.", partitions=48)
    assert set(plans) == {"here." + topic.name for topic in topics.ALL}
    assert plans["here.inbox"].partitions == 48
    assert plans["here.crawls"].partitions == plans["here.progress"].partitions == 1


def test_the_changelog_has_the_name_and_the_partitions_that_faust_expects() -> None:
    plan = _plans()["fyke.frontier-rows-changelog"]  # {app id}-{table}-changelog, app id {prefix}frontier
    assert plan.partitions == _plans()["fyke.inbox"].partitions
    assert plan.configs["cleanup.policy"] == "compact"
    assert plan.configs["min.compaction.lag.ms"] == str(topics.HOUR)


def test_nothing_accepted_is_lost_with_one_of_three_machines() -> None:
    assert {plan.configs["min.insync.replicas"] for plan in _plans(replication=3).values()} == {"2"}
    assert {plan.replication for plan in _plans(replication=3).values()} == {3}
    assert {plan.configs["min.insync.replicas"] for plan in _plans().values()} == {"1"}


def test_only_pages_of_the_embedded_broker_are_kept_by_size() -> None:
    kept = {name for name, plan in _plans().items() if "retention.bytes" in plan.configs}
    assert kept == {"fyke.pages"}
    assert _plans()["fyke.pages"].configs["retention.bytes"] == "7"
    assert not any("retention.bytes" in plan.configs for plan in _plans(bootstrap="kafka:9092").values())


def test_seeds_and_inbox_have_no_time_limit() -> None:
    plans = _plans()
    assert plans["fyke.urls"].configs["retention.ms"] == plans["fyke.inbox"].configs["retention.ms"] == "-1"
