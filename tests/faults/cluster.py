"""Three real Kafka nodes on loopback (KRaft, RF 3, min.insync.replicas 2), each of which may be killed by number.

The runtime, the command line and most settings are the embedded broker's own; what differs is that there are three.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from agents.io import kraft
from agents.io.admin import wait_until_serving
from agents.io.java import Runtime, prepare
from streams.settings import MiB, Settings
from tests.kafka import settings_for

T = TypeVar("T")

NODES = (1, 2, 3)
HEAP = 160 * MiB
MAX_MESSAGE = 2 * MiB
PATIENCE = 120.0
"""Seconds for a node to start, or for replicas to be in sync again, on a loaded machine."""


@dataclass(slots=True)
class Node:
    """One node. It keeps its ports and data over restarts.

    Whoever asks it on port `behind` is told to find it on port `detour`, where a proxy may listen.
    """

    number: int
    layout: kraft.Layout
    port: int
    controller: int
    behind: int
    detour: int
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None


@dataclass(slots=True)
class Cluster:
    """The three of them. `settings`: of a client, with the address of all."""

    settings: Settings
    nodes: dict[int, Node]
    runtime: Runtime
    kills: list[tuple[int, float]] = field(default_factory=list)
    """Number and time (seconds since the epoch) of every kill."""

    @property
    def bootstrap(self) -> str:
        """All nodes."""
        return _bootstrap(self.nodes.values())

    def start(self, number: int) -> None:
        """Start a node; returns when it listens."""
        node = self.nodes[number]
        with node.layout.log.open("ab") as log:
            node.process = subprocess.Popen(
                kraft.command(self.runtime, node.layout, HEAP),
                cwd=node.layout.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def listening(self, number: int) -> None:
        """Wait until a node takes connections."""
        node, deadline = self.nodes[number], time.monotonic() + PATIENCE
        while not kraft.listening(node.port):
            assert node.running, f"node {number} ended: {node.layout.log.read_text(errors='replace')[-2000:]}"
            assert time.monotonic() < deadline, f"node {number} does not listen"
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        node = self.nodes[number]
        assert node.process is not None
        self.kills.append((number, time.time()))
        node.process.kill()
        node.process.wait()
        node.frozen = False

    def freeze(self, number: int) -> None:
        """SIGSTOP."""
        self._signal(number, signal.SIGSTOP)
        self.nodes[number].frozen = True

    def thaw(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)
        self.nodes[number].frozen = False

    def restart(self, number: int) -> None:
        """Start a node that was killed; returns when it listens."""
        self.start(number)
        self.listening(number)

    def stop(self) -> None:
        """End all at once: what they hold is thrown away."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait()

    def leader_of(self, topic: str, partition: int) -> int:
        """The number of the node that leads a partition (`topic` with prefix)."""
        return int(self._partitions([topic])[topic, partition]["leader"])

    def in_sync(self) -> bool:
        """Whether every replica of every partition is in sync; False while the cluster cannot say."""
        try:
            found = self._partitions(None)
        except KafkaError:
            return False
        return all(len(partition["isr"]) == len(partition["replicas"]) for partition in found.values())

    def wait_in_sync(self) -> None:
        """Return when nothing is missing any more."""
        deadline = time.monotonic() + PATIENCE
        while not self.in_sync():
            assert time.monotonic() < deadline, "replicas do not come into sync"
            time.sleep(0.5)

    def _partitions(self, topics: list[str] | None) -> dict[tuple[str, int], dict[str, Any]]:
        async def ask(admin: Any) -> Any:
            return await admin.describe_topics(topics)

        return {
            (topic["topic"], partition["partition"]): partition
            for topic in asyncio.run(self._asked(ask))
            for partition in topic["partitions"]
        }

    async def _asked(self, question: Callable[[Any], Awaitable[T]]) -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5000)
        try:
            await admin.start()
            return await question(admin)
        finally:
            await admin.close()

    def _signal(self, number: int, sign: signal.Signals) -> None:
        process = self.nodes[number].process
        assert process is not None
        os.kill(process.pid, sign)


@contextmanager
def three_brokers(folder: Path) -> Iterator[Cluster]:
    """A cluster with its data in `folder`, until the end of the block. Takes some five seconds."""
    broker = {"heap": HEAP}
    own = settings_for(folder, broker=broker, kafka={"max_message": MAX_MESSAGE, "replication": 3})
    ports: set[int] = set()
    while len(ports) < 4 * len(NODES):
        ports.add(kraft.free_port())
    numbers = list(ports)
    nodes = {
        number: Node(
            number, kraft.Layout(folder / f"node-{number}"), numbers.pop(), numbers.pop(), numbers.pop(), numbers.pop()
        )
        for number in NODES
    }
    cluster_id = kraft._new_id()
    for node in nodes.values():
        _write(node, nodes, cluster_id, own)
    client = settings_for(folder, _bootstrap(nodes.values()), kafka={"max_message": MAX_MESSAGE, "replication": 3})
    cluster = Cluster(client, nodes, prepare(own))
    try:
        for number in NODES:
            cluster.start(number)
        for number in NODES:
            cluster.listening(number)
        wait_until_serving(cluster.bootstrap, client, PATIENCE)
        yield cluster
    finally:
        cluster.stop()


def _bootstrap(nodes: Any) -> str:
    return ",".join(f"{kraft.HOST}:{node.port}" for node in nodes)


def _write(node: Node, nodes: dict[int, Node], cluster_id: str, settings: Settings) -> None:
    """Configuration and identity, as `kraft.write_files` does it for one node."""
    layout = node.layout
    layout.data.mkdir(parents=True)
    layout.scratch.mkdir()
    (layout.data / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node.number}\ndirectory.id={kraft._new_id()}\n"
    )
    voters = ",".join(f"{other.number}@{kraft.HOST}:{other.controller}" for other in nodes.values())
    properties = kraft._properties(layout, node.port, node.controller, settings) | {
        "node.id": node.number, "controller.quorum.voters": voters, "min.insync.replicas": 2,
        "default.replication.factor": 3, "offsets.topic.replication.factor": 3,
        "transaction.state.log.replication.factor": 3, "transaction.state.log.min.isr": 2,
        "share.coordinator.state.topic.replication.factor": 3, "share.coordinator.state.topic.min.isr": 2,
        "listeners": ",".join(f"{name}://{kraft.HOST}:{port}" for name, port in (
            ("PLAINTEXT", node.port), ("CONTROLLER", node.controller), ("DETOUR", node.behind)
        )),
        "advertised.listeners": f"PLAINTEXT://{kraft.HOST}:{node.port},DETOUR://{kraft.HOST}:{node.detour}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,DETOUR:PLAINTEXT",
    }  # fmt: skip
    layout.properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
