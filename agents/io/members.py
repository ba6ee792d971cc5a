"""Static members of consumer groups: when all are there, and when one has ended for good.

Fyke's supervised workers are static members (KIP-345): started again after a crash, they have their partitions back at
once. The price is that one which ends for good keeps them until its session times out, unless it is signed off here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest

from streams.settings import Settings
from streams.transport import is_member

_STATE, _MEMBERS = 2, 5  # positions in the description of a group (Kafka protocol, DescribeGroups)
_LOOK = 0.1


async def gather(bootstrap: str, settings: Settings, members: Mapping[str, Collection[str]], patience: float) -> bool:
    """Wait until each group (without prefix -> static names) has all of its members and their partitions are settled.

    Work that is given out before is given out again when the next member joins. Returns False after `patience`
    seconds: to start with fewer is no fault.
    """
    try:
        async with asyncio.timeout(patience), _client(bootstrap) as client:
            for name, wanted in members.items():
                while not await _gathered(client, settings.kafka.prefix + name, wanted):  # noqa: ASYNC110 - a broker sends no event
                    await asyncio.sleep(_LOOK)
    except (KafkaError, OSError, TimeoutError):
        return False
    return True


async def sign_off(bootstrap: str, settings: Settings, members: Mapping[str, Iterable[str]]) -> int:
    """Remove members (group without prefix -> their static names); returns how many. Processes must have ended.

    Best effort: where the broker refuses, the session time-out does the same later.
    """
    removed = 0
    try:
        async with _client(bootstrap) as client:
            for name, ended in members.items():
                removed += await _sign_off(client, settings.kafka.prefix + name, ended)
    except (KafkaError, OSError, TimeoutError):
        pass
    return removed


async def _gathered(client: Any, group: str, wanted: Collection[str]) -> bool:
    _, described = await _describe(client, group)
    ids = [member[0] for member in described[_MEMBERS]]
    return described[_STATE] == "Stable" and all(any(is_member(each, name) for each in ids) for name in wanted)


async def _sign_off(client: Any, group: str, ended: Iterable[str]) -> int:
    coordinator, described = await _describe(client, group)
    left = 0
    for member_id in (member[0] for member in described[_MEMBERS]):
        if any(is_member(member_id, name) for name in ended):
            await client._send_request(LeaveGroupRequest(group, member_id), coordinator)  # noqa: SLF001 - no public way
            left += 1
    return left


async def _describe(client: Any, group: str) -> tuple[int, Any]:
    """The group's coordinator and its description."""
    coordinator = await client.find_coordinator(group)
    (answer,) = await client.describe_consumer_groups([group], coordinator)
    (described,) = answer.groups
    return coordinator, described


@asynccontextmanager
async def _client(bootstrap: str) -> AsyncIterator[Any]:
    client: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)
    try:
        await client.start()
        yield client
    finally:
        await client.close()
