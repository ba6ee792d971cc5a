from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import agents
from agents.cli.conduct import exporter_group
from agents.exporter import ExporterStage
from agents.fetcher import FetcherStage
from agents.frontier import FrontierStage
from agents.intake import IntakeStage
from agents.io.provision import TopicPlan, plan_groups, plan_topics
from agents.parser import ParserStage
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


def test_the_groups_of_all_stages_are_planned_with_the_topics_they_read() -> None:
    groups = plan_groups(Settings(kafka=Kafka(prefix="here.")))
    for name, stage in (("fetcher", FetcherStage), ("parser", ParserStage), ("exporter", ExporterStage)):
        assert groups["here." + name] == ["here." + topic.name for topic in stage.topics]
    together = {"here." + topic.name for stage in (IntakeStage, FrontierStage) for topic in stage.topics}
    assert set(groups["here." + FrontierStage.name]) == together
    assert groups["here." + exporter_group("*")] == groups["here.exporter"]


def test_every_group_that_the_code_names_is_planned() -> None:
    """Whoever commits or asks for the offsets of a group names it: by its text, or by a name for it in the plan."""
    named: dict[str, str] = {}
    for file in Path(agents.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if isinstance(node, ast.Call) and called in {"commit", "committed", "lag"} and node.args:
                named[ast.unparse(node.args[0])] = file.name
    texts = {ast.literal_eval(group) for group in named if group.startswith("'")}
    assert texts, "the search has found what it looks for"
    assert {group for group in texts if not any(fnmatchcase(group, known) for known in topics.GROUPS)} == set()
    assert {"BROADCAST_GROUP"} <= named.keys()
    assert {name for name in named if name.isupper()} <= {"BROADCAST_GROUP"}
