"""What the broker says to a message becomes a sentence about a topic, with the remedy where there is one."""

from __future__ import annotations

import pytest
from aiokafka import errors

from agents.delivery.undelivered import DeliveryFailed, explain
from streams.errors import EnvironmentFault

TOPIC = "fyke.pages"


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        (errors.TopicAuthorizationFailedError(TOPIC), "may not write to topic fyke.pages", "fyke topics plan"),
        (errors.ClusterAuthorizationFailedError(), "may not write to topic fyke.pages", "IdempotentWrite"),
        (errors.MessageSizeTooLargeError(), "topic fyke.pages takes smaller messages", "fyke topics apply"),
        (errors.RecordListTooLargeError(), "topic fyke.pages takes smaller batches", "segment.bytes"),
        (errors.InvalidTopicError(), "name of topic fyke.pages", "FYKE_KAFKA_PREFIX"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_a_person_can_mend(error: Exception, problem: str, remedy: str) -> None:
    fault = explain(TOPIC, error)
    assert isinstance(fault, EnvironmentFault)
    assert problem in fault.problem
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    "error",
    [
        errors.OutOfOrderSequenceNumber(),
        errors.ProducerFenced(),
        errors.KafkaStorageError(),
        errors.UnknownError(),
        errors.UnknownTopicOrPartitionError(),  # what a broker says of every topic just after its start
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_restart_may_mend_names_topic_and_error(error: Exception) -> None:
    failed = explain(TOPIC, error)
    assert isinstance(failed, DeliveryFailed)
    assert TOPIC in str(failed)
    assert str(error) in str(failed)
