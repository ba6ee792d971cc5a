"""One question of Kafka's protocol that aiokafka does not ask: which topic is this, whatever its name (KIP-516).

A topic that is deleted and made again keeps its name and loses its records; only its id tells the two apart. Brokers
say it since 2.8; version 12 of the request is understood since 3.0.
"""

from __future__ import annotations

from io import BytesIO
from typing import ClassVar

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_METADATA = 3  # Kafka protocol, API keys
_VERSION = 12
_TEXT = CompactString("utf-8")


class Uuid(AbstractType[bytes]):
    """16 bytes; zeros for none."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """As it is."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """As it is."""
        return data.read(16)


_BROKERS = CompactArray(("node", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields))
_PARTITIONS = CompactArray(
    ("error", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)), ("in_sync", CompactArray(Int32)), ("offline", CompactArray(Int32)),
    ("tags", TaggedFields),
)  # fmt: skip
_TOPICS = CompactArray(
    ("error", Int16), ("name", _TEXT), ("topic_id", Uuid), ("internal", Boolean), ("partitions", _PARTITIONS),
    ("operations", Int32), ("tags", TaggedFields),
)  # fmt: skip


class OriginResponse(Response):
    """Metadata, version 12. `topics`: (error, name, id, …) of the one that was asked for."""

    API_KEY = _METADATA
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("throttle", Int32), ("brokers", _BROKERS), ("cluster", _TEXT), ("controller", Int32), ("topics", _TOPICS),
        ("tags", TaggedFields),
    )  # fmt: skip

    cluster: str | None
    topics: list[tuple[int, str, bytes]]


class _OriginRequestV12(RequestStruct):
    API_KEY = _METADATA
    API_VERSION = _VERSION
    FLEXIBLE_VERSION: ClassVar[bool] = True
    RESPONSE_TYPE = OriginResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", _TEXT), ("tags", TaggedFields))), ("create", Boolean),
        ("operations", Boolean), ("tags", TaggedFields),
    )  # fmt: skip


class OriginRequest(Request[_OriginRequestV12]):
    """Asks for the ids of the cluster and of a topic, which is not made by asking.

    Sending it to a broker before 3.0 raises `NotImplementedError`.
    """

    API_KEY = _METADATA

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_OriginRequestV12]) -> _OriginRequestV12:
        """The request as it goes on the wire."""
        return request_struct_class([(bytes(16), self._topic, {})], False, False, {})
