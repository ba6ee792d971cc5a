"""Static members of consumer groups that have ended for good.

Fyke's supervised workers are static members (KIP-345): started again after a crash, they have their partitions back at
once. The price is that one which ends for good keeps them until its session times out, unless it is signed off here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest

from streams.settings import Settings

_MEMBERS = 5  # position in the description of a group (Kafka protocol, DescribeGroups)


async def sign_off(bootstrap: str, settings: Settings, members: Mapping[str, Iterable[str]]) -> int:
    """Remove members (group without prefix -> their static names); returns how many. Processes must have ended.

    Best effort: where the broker refuses, the session time-out does the same later.
    """
    client: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)
    removed = 0
    try:
        await client.start()
        for name, ended in members.items():
            removed += await _sign_off(client, settings.kafka.prefix + name, tuple(f"{each}-" for each in ended))
    except (KafkaError, OSError, TimeoutError):
        return removed
    finally:
        await client.close()
    return removed


async def _sign_off(client: Any, group: str, prefixes: tuple[str, ...]) -> int:
    """The broker makes a static member's id from its name, a hyphen and a UUID."""
    coordinator = await client.find_coordinator(group)
    (answer,) = await client.describe_consumer_groups([group], coordinator)
    left = 0
    for described in answer.groups:
        for member_id in (member[0] for member in described[_MEMBERS]):
            if member_id.startswith(prefixes):
                await client._send_request(LeaveGroupRequest(group, member_id), coordinator)  # noqa: SLF001 - no public way
                left += 1
    return left
