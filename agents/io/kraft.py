"""The files and the command line of one Kafka node in KRaft mode, and what its log says when it dies.

Kafka is not formatted by its own tool, which costs a second JVM: `meta.properties` is written here, and the node
bootstraps its metadata from that.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import random
import re
import socket
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from agents.io.java import Runtime
from streams.errors import EnvironmentFault
from streams.settings import MiB, Settings

HOST = "127.0.0.1"
FREE_BYTES = 500 * MiB  # less than this on the disk: the broker is not started

_LOG_LIMIT = 4 * MiB
_ERROR = re.compile(r"\b(ERROR|FATAL)\b|(Exception|Error)\b")
_FLOCK = "hhqqi"  # struct flock, fcntl(2): type, whence, start, length, process
_LOWEST_PORT = 20_000
_OVERHEAD = 64 * 1024  # of a record batch around the largest value: headers, key, compression of the incompressible


class PortTaken(EnvironmentFault):
    """A port that was free when it was chosen has been taken since."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a node keeps its things below its `root`."""

    root: Path

    @property
    def data(self) -> Path:
        """Kafka's `log.dirs`."""
        return self.root / "data"

    @property
    def log(self) -> Path:
        """What the JVM prints; the one before is beside it with the suffix `.1`."""
        return self.root / "broker.log"

    @property
    def properties(self) -> Path:
        """Kafka's configuration, written at each start."""
        return self.root / "server.properties"

    @property
    def scratch(self) -> Path:
        """Where the JVM unpacks native libraries: /tmp may be mounted without the right to execute."""
        return self.root / "tmp"


def port_free(port: int) -> bool:
    """Whether the loopback port can be listened on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the JVM does: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def listening(port: int) -> bool:
    """Whether something accepts connections on the loopback port."""
    try:
        socket.create_connection((HOST, port), 1.0).close()
    except OSError:
        return False
    return True


def free_port(taken: int = 0) -> int:
    """A free loopback port other than `taken`, below the range from which the system numbers outgoing connections.

    Inside that range a client that keeps trying to reach a stopped broker sooner or later gets the broker's own port
    as its source, connects to itself and holds the port against the broker's restart.
    """
    ceiling = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(_LOWEST_PORT, ceiling), min(200, max(0, ceiling - _LOWEST_PORT))):
        if port != taken and port_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def refuse_second(layout: Layout) -> None:
    """Raise `EnvironmentFault` while any Kafka works on the data, also one that no `broker.json` tells of.

    Kafka locks `data/.lock` itself, but opens its metadata log before: a second node would already have written there.
    """
    try:
        descriptor = os.open(layout.data / ".lock", os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    if kind != fcntl.F_UNLCK:
        raise EnvironmentFault(
            f"another Kafka (process {pid}) works on {layout.data}",
            "End it (a number that is not here belongs to a container), or name another folder with --state.",
        )


def write_files(layout: Layout, port: int, controller: int, settings: Settings) -> None:
    """Write what the node reads at its start; data that is there stays. Raises OSError."""
    layout.data.mkdir(parents=True, exist_ok=True)
    layout.scratch.mkdir(exist_ok=True)
    for leftover in layout.scratch.iterdir():  # native libraries that a killed JVM left behind
        leftover.unlink(missing_ok=True)
    meta = layout.data / "meta.properties"
    if not meta.exists():
        if any(layout.data.iterdir()):
            raise EnvironmentFault(
                f"the broker's data in {layout.data} is damaged: meta.properties is missing",
                "Remove it with `fyke clean`, or name another folder with --state.",
            )
        _write_durably(meta, f"version=1\ncluster.id={_new_id()}\nnode.id=1\ndirectory.id={_new_id()}\n")
    text = "".join(f"{key}={value}\n" for key, value in _properties(layout, port, controller, settings).items())
    layout.properties.write_text(text)
    if layout.log.exists() and layout.log.stat().st_size > _LOG_LIMIT:
        layout.log.replace(layout.log.with_suffix(".log.1"))


def _properties(layout: Layout, port: int, controller: int, settings: Settings) -> dict[str, str | int]:
    largest = settings.kafka.max_message + _OVERHEAD
    # One request may carry the largest message of every partition; a request beyond the limit is never taken.
    requests = max(settings.broker.heap // 3, settings.kafka.partitions * largest)
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": layout.data.name,  # relative: a comma or a non-ASCII letter in the path would need escapes
        "auto.create.topics.enable": "false",
        # One node: every internal topic has one copy, and one partition is enough.
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        # The offsets of a crawl that is resumed after a month must still be there.
        "offsets.retention.minutes": 60 * 24 * 365,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 * MiB,
        # Only whole segments are deleted or compacted: small ones give disk space back soon.
        "log.segment.bytes": 64 * MiB,
        "log.retention.check.interval.ms": 30_000,
        "log.segment.delete.delay.ms": 1000,
        # After kill -9 the controller refuses the new incarnation until the old one's session ends (default 9 s).
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 300,
        "message.max.bytes": largest,
        "replica.fetch.max.bytes": largest,
        # Requests that were read and not yet handled: beyond this no more is read from any connection. Without it a
        # few producers of large pages at once are more than the heap holds.
        "queued.max.request.bytes": requests,
        "socket.request.max.bytes": requests,
    }


def command(runtime: Runtime, layout: Layout, heap: int) -> list[str]:
    """The command that runs the node, in the folder `layout.root`. `heap` in bytes.

    C1 only: the second compiler doubles the start and, over the life of a crawl, the CPU time.
    """
    return [
        str(runtime.java),
        "-Xms64m",
        f"-Xmx{max(heap // MiB, 64)}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={layout.scratch.name}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        "-cp",
        f"{runtime.jars.absolute()}/*",  # Java expands it
        "kafka.Kafka",
        layout.properties.name,
    ]


def explain_death(layout: Layout, since: int) -> EnvironmentFault:
    """Say why the node ended, from what it logged after byte `since` of its log."""
    text = _tail(layout.log, since)
    if "No space left on device" in text:
        return disk_full(layout.root)
    if "Address already in use" in text:
        return PortTaken(
            f"a port of the embedded broker is taken by another process (log: {layout.log})",
            "Let FYKE_BROKER_PORT name another one, or leave it empty for a free one.",
        )
    for sign, problem, remedy in (
        ("OutOfMemoryError", "the embedded broker ran out of memory", "Raise FYKE_BROKER_HEAP (bytes)."),
        ("Permission denied", f"the embedded broker may not write to {layout.data}",
         "Make the folder writable, or name another one with --state."),
    ):  # fmt: skip
        if sign in text:
            return EnvironmentFault(f"{problem} (log: {layout.log})", remedy)
    lines = [line[:300] for line in text.splitlines() if _ERROR.search(line)][-10:]
    detail = "".join(f"\n    {line}" for line in lines) or " its log does not say why (killed from outside?)"
    return EnvironmentFault(f"the embedded broker ended:{detail}", f"Its log is {layout.log}.")


def disk_full(folder: Path) -> EnvironmentFault:
    """The fault of a disk that has no room for the broker's data."""
    return EnvironmentFault(
        f"the disk of {folder} is full, or has less than {FREE_BYTES // MiB} MiB left",
        "Free some space (`fyke clean` removes what earlier crawls kept), or name another folder with --state.",
    )


def _tail(log: Path, since: int, limit: int = 64 * 1024) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _new_id() -> str:
    """A Kafka id: 16 random bytes in URL-safe base64, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _write_durably(path: Path, text: str) -> None:
    """Whole or not at all, also over a power cut: a lost file here would orphan the data beside it."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def folder_fault(folder: Path, error: OSError) -> EnvironmentFault:
    """The fault of a state folder that cannot be used."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(folder)
    return EnvironmentFault(
        f"the state folder {folder} cannot be used: {error.strerror or error}",
        "Make it readable and writable, or name another folder with --state.",
    )
