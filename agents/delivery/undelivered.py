"""What a failed delivery means, in words: which topic, what the broker said, and what a person can do about it.

Whatever is returned here ends the process: what was sent is not acked, so that its next owner does it again. What a
person must mend ends it with their exit code, for starting again would not help; the rest is started again.

An unknown topic is of the rest: a broker that has just come back says so of every topic until it has read what it
knows. A topic that is really gone is told of at the next start (`Producer.partitions`).
"""

from __future__ import annotations

from typing import Final

from aiokafka import errors

from streams.errors import EnvironmentFault

_REMEDIES: Final[dict[type[errors.KafkaError], tuple[str, str]]] = {
    errors.TopicAuthorizationFailedError: (
        "this user may not write to topic {topic}",
        "Give it the right (`fyke topics plan` lists what is needed), or correct the credentials.",
    ),
    errors.ClusterAuthorizationFailedError: (
        "this user may not write to topic {topic} with an idempotent producer",
        "Give it the right IdempotentWrite on the cluster (Kafka before 3.0 asks for it).",
    ),
    errors.MessageSizeTooLargeError: (
        "topic {topic} takes smaller messages than the settings say",
        "Run `fyke topics apply`, which sets max.message.bytes, or lower FYKE_KAFKA_MAX_MESSAGE to what it takes.",
    ),
    errors.RecordListTooLargeError: (
        "topic {topic} takes smaller batches than its segment.bytes lets it",
        "Raise segment.bytes of the topic, or lower FYKE_KAFKA_MAX_MESSAGE.",
    ),
    errors.InvalidTopicError: ("the cluster does not take the name of topic {topic}", "Correct FYKE_KAFKA_PREFIX."),
}


class DeliveryFailed(Exception):
    """A delivery failed for good, for a reason that a restart may mend."""


def explain(topic: str, error: Exception) -> Exception:
    """The error that ends the process. `topic`: its full name."""
    for kind, (problem, remedy) in _REMEDIES.items():
        if isinstance(error, kind):
            return EnvironmentFault(problem.format(topic=topic), remedy)
    return DeliveryFailed(f"a message for {topic} was not delivered: {str(error) or type(error).__name__}")
