"""A running service for tests: a site that keeps its requests, workers in this loop or as processes, plain clients."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from agents import worker
from agents.broadcast import Broadcast, publish
from agents.io.admin import Admin
from agents.io.seeds import Writer
from streams.definitions import CrawlDefinition
from streams.settings import Settings, to_environment
from streams.topics import ALL, CRAWLS, FAILURES, RECORDS, Topic
from tests.kafka import settings_for

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
STAGES = ("frontier", "fetcher", "parser")


# ---- the site


@dataclass
class Site:
    """Any path is a page, linking to `links[path]`, unless `status` says otherwise."""

    url: str = ""
    links: dict[str, Sequence[str]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    extra: dict[str, dict[str, str]] = field(default_factory=dict)
    """More headers of the answer, by path."""
    files: dict[str, str | bytes] = field(default_factory=dict)
    """What is no page: paths with their content, whose type is that of their name."""
    etags: dict[str, str] = field(default_factory=dict)
    """Paths whose answers carry an entity tag; who names it is told that nothing has changed."""
    robots: str | int = 404
    """Text of robots.txt, or the status it is answered with."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers (names in lower case) of each request, in order."""

    @property
    def asked(self) -> Counter[str]:
        """How often each path was asked for, robots.txt apart."""
        return Counter(path for path, _ in self.requests if path != "/robots.txt")

    def headers(self, path: str) -> dict[str, str]:
        """The headers of the last request for `path`."""
        return [headers for asked, headers in self.requests if asked == path][-1]

    def answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/robots.txt":
            if isinstance(self.robots, str):
                return 200, "text/plain", self.robots.encode()
            return self.robots, "text/plain", b""
        if path in self.files:
            content = self.files[path]
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            return 200, kind, content.encode() if isinstance(content, str) else content
        body = "".join(f'<a href="{link}">x</a>' for link in self.links.get(path, ()))
        return (
            self.status.get(path, 200),
            "text/html; charset=utf-8",
            f"<!doctype html><title>{path}</title>{body}".encode(),
        )


@contextmanager
def serving() -> Iterator[Site]:
    """Serve a site on loopback during the block."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            site.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, kind, body = site.answer(self.path)
            tag = site.etags.get(self.path, "")
            if status == 200 and tag and self.headers["If-None-Match"] == tag:
                status, body = 304, b""
            self.send_response(status)
            if tag:
                self.send_header("ETag", tag)
            self.send_header("Content-Type", kind)
            for name, value in site.extra.get(self.path, {}).items():
                self.send_header(name, value)
            if status != 304:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


# ---- workers


def service_settings(state: Path, bootstrap: str, prefix: str, **groups: Any) -> Settings:
    """Settings of workers that may crawl loopback and notice a lost one soon."""
    return settings_for(
        state,
        bootstrap,
        prefix,
        kafka={"session_timeout": 6, "heartbeat": 0.5, "commit_interval": 0.3},
        fetch={"allow_private": True},
        export={"out": state / "out", "fsync": False},
        **groups,
    )


@asynccontextmanager
async def running(settings: Settings, *stages: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run stages in this loop during the block; gives the task. Raises what ended them."""
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stages or STAGES, settings, settings.kafka.bootstrap, stop))
    try:
        yield task
    finally:
        stop.set()
        await task


@dataclass
class Processes:
    """`fyke worker STAGE` as child processes, their logs in `folder`. `program`: another module to run them."""

    settings: Settings
    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *stages: str, program: str = "agents.cli.main") -> None:
        for stage in stages:
            with self.log(stage).open("ab") as log:
                self.running[stage] = subprocess.Popen(
                    (sys.executable, "-m", program, "worker", stage), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, env=os.environ | to_environment(self.settings), start_new_session=True,
                )  # fmt: skip

    def log(self, stage: str) -> Path:
        return self.folder / f"{stage}.log"

    async def ended(self, stage: str) -> int:
        """Wait until a worker ends by itself: its exit code."""
        process = self.running[stage]
        await until(lambda: process.poll() is not None, f"{stage} does not end")
        return process.returncode

    def check(self) -> None:
        """Fail with its log if a worker has ended."""
        for stage, process in self.running.items():
            assert process.poll() is None, f"{stage} ended with {process.returncode}:\n{self.log(stage).read_text()}"

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def processes(settings: Settings, folder: Path) -> Iterator[Processes]:
    """Worker processes, ended with the block."""
    workers = Processes(settings, folder)
    try:
        yield workers
    finally:
        workers.stop()


# ---- plain clients


@dataclass
class Client:
    """A Kafka client that knows nothing of Fyke but the topics' names. `log`: all records by topic, as they came."""

    prefix: str
    producer: AIOKafkaProducer
    log: dict[str, list[ConsumerRecord]] = field(default_factory=lambda: defaultdict(list))

    async def produce(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> tuple[int, int]:  # fmt: skip
        """Produce one message: its partition and offset."""
        sent = await self.producer.send_and_wait(
            self.prefix + topic, value, key, partition=partition, headers=list(headers)
        )
        return sent.partition, sent.offset

    async def seed(self, **fields: Any) -> tuple[int, int]:
        """Produce a seed as JSON."""
        return await self.produce("urls", msgspec.json.encode(fields))

    def json(self, topic: str) -> list[dict[str, Any]]:
        """Everything that is readable as an object in a JSON topic."""
        found = []
        for record in self.log[topic]:
            try:
                value = msgspec.json.decode(record.value or b"")
            except msgspec.DecodeError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def records(self, crawl: str = "default") -> list[dict[str, Any]]:
        """The records of a crawl."""
        return [record for record in self.json(RECORDS.name) if record.get("crawl") == crawl]

    def failures(self, failure: str = "unreadable") -> list[dict[str, Any]]:
        """The failures of a class."""
        return [found for found in self.json(FAILURES.name) if found.get("failure") == failure]

    def urls(self, crawl: str = "default") -> list[str]:
        """The URLs of a crawl's records, sorted."""
        return sorted(record["url"] for record in self.records(crawl))


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Client]:
    """Make the topics; a client that follows all of them during the block."""
    bootstrap, prefix = settings.kafka.bootstrap, settings.kafka.prefix
    async with Admin(bootstrap, settings) as admin:
        await admin.apply_topics()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=2 * settings.kafka.max_message)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    client = Client(prefix, producer)
    count = settings.kafka.partitions
    consumer.assign([TopicPartition(prefix + t.name, p) for t in ALL for p in range(1 if t.single else count)])
    following = asyncio.create_task(_follow(client, consumer))
    try:
        yield client
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await consumer.stop()
        await producer.stop()


async def _follow(client: Client, consumer: AIOKafkaConsumer) -> None:
    while True:
        for partition, records in (await consumer.getmany(timeout_ms=200)).items():
            client.log[partition.topic.removeprefix(client.prefix)] += records


@asynccontextmanager
async def crawls_of(settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    """Gives `define(id, **fields)`: publishes the next version of a crawl's definition, delay 0 unless it says so."""
    bootstrap = settings.kafka.bootstrap
    broadcast = Broadcast(bootstrap, settings)
    async with Writer(bootstrap, settings) as writer:
        await broadcast.start()

        async def define(crawl: str, **fields: Any) -> CrawlDefinition:
            known = broadcast.crawls.get(crawl)
            if known is None:
                definition = CrawlDefinition(**{"id": crawl, "delay": 0.0, "parallelism": 8, **fields})
            else:
                definition = msgspec.structs.replace(known, version=known.version + 1, **fields)
            assert await publish(broadcast.crawls, definition, writer.send, broadcast.catch_up)
            return definition

        try:
            yield define
        finally:
            await broadcast.stop()


async def until(
    condition: Callable[[], object], what: str | Callable[[], str] = "it does not happen", seconds: float = PATIENCE
) -> None:
    """Wait for a condition that no event announces."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - nobody sets events for tests
                await asyncio.sleep(0.02)
    except TimeoutError:
        said = what if isinstance(what, str) else what()
        raise AssertionError(f"{said} within {seconds:.0f} s") from None


def ends(client: Client, crawl: str) -> list[str]:
    """The results with which a crawl's end was announced."""
    return [d["result"] for d in client.json(CRAWLS.name) if d.get("id") == crawl and d.get("state") == "ended"]


def topic(name: str) -> Topic:
    """A topic by its name."""
    return next(found for found in ALL if found.name == name)
