"""`fyke doctor`: is this machine fit for a crawl, and did anything that went wrong leave something behind?"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import Exit, FykeError

if TYPE_CHECKING:
    from agents.cli.checks import Finding, WorkerFolder
    from agents.io.admin import Admin
    from streams.settings import Settings

_READ = {"frontier": ("urls", "inbox"), "fetcher": ("fetches",), "parser": ("pages",)}
"""The stages that must always run, and what they read."""

_PATIENCE = 10.0
"""Seconds for the broker to take one message."""


@click.command()
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Look for what is wrong: this machine, the state folder, the broker, its topics, groups and clock.

    Each line is a finding, with what to do about a problem. Exit code 5 if there is one. The broker is not started.
    """
    settings = settings_of(state=state, kafka=kafka)
    findings = [*_machine(settings), *_folders(settings.worker.state), *asyncio.run(_cluster(settings))]
    if as_json:
        found = [{"check": f.check, "ok": f.ok, "text": f.text, "remedy": f.remedy} for f in findings]
        click.echo(json.dumps(found, indent=2))
    else:
        for finding in findings:
            click.echo(f"{'ok     ' if finding.ok else 'PROBLEM'}  {finding.check:<8}  {finding.text}")
            if not finding.ok:
                click.echo(f"{'':19}{finding.remedy}")
    if not all(finding.ok for finding in findings):
        sys.exit(Exit.BROKEN)


def _machine(settings: Settings) -> list[Finding]:
    from agents.cli import checks
    from agents.io.java import find_java

    findings = [checks.files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]
    if not settings.kafka.bootstrap:
        findings.append(_asked("java", lambda: str(find_java(settings.broker.java))))
    existing = next(path for path in (settings.worker.state, *settings.worker.state.parents) if path.exists())
    findings.append(checks.disk(str(existing), shutil.disk_usage(existing).free))
    if not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Make it readable and writable for this user, or name another folder with --state."
        findings.append(checks.Finding("state", f"{existing} cannot be written", remedy))
    return findings


def _folders(state: Path) -> list[Finding]:
    """The workers' folders, and the stores in those that are at rest."""
    from agents.cli import checks

    folders = [_worker(path) for path in sorted((state / "workers").glob("*-[0-9]*")) if path.is_dir()]
    return [*checks.worker_folders(folders), *_stores(state)] if folders else []


def _worker(folder: Path) -> WorkerFolder:
    from agents.cli.checks import WorkerFolder
    from agents.io.locks import is_held

    runs = is_held(folder / "worker")
    pid = int((folder / "worker").read_text() or 0) if runs else 0
    return WorkerFolder(folder.name, pid, runs, is_held(folder / "slot"))


def _stores(state: Path) -> list[Finding]:
    """Whether a start would take the stores as they are; not every row is read, as `fyke state check` does."""
    from agents.cli import checks
    from agents.io.locks import is_held
    from streams.frontier.index import FrontierIndexer
    from streams.state.checkup import examine
    from streams.state.glimpse import STORES
    from streams.state.table import MAX_AGE
    from streams.topics import ROWS

    now, indexer = time.time_ns() // 1_000_000, FrontierIndexer()
    paths = sorted(state.glob(STORES.format(table=ROWS, partition="*")))
    at_rest = [path for path in paths if not is_held(path.parents[3] / "slot")]
    return checks.stores([examine(path, indexer, None, None, max_age=MAX_AGE, now=now) for path in at_rest], state)


async def _cluster(settings: Settings) -> list[Finding]:
    from agents.cli.checks import Finding
    from agents.cli.cluster import running_bootstrap
    from agents.io.admin import Admin
    from agents.io.broker import EmbeddedBroker

    if not settings.kafka.bootstrap and not EmbeddedBroker(settings).alive():
        return [Finding("broker", "the embedded broker does not run: topics, groups and clock were not looked at")]
    try:
        bootstrap = running_bootstrap(settings)
        async with Admin(bootstrap, settings) as admin:
            return [Finding("broker", bootstrap), *await _questions(bootstrap, settings, admin)]
    except FykeError as error:
        return [_fault("broker", error)]


async def _questions(bootstrap: str, settings: Settings, admin: Admin) -> list[Finding]:
    from agents.cli import checks
    from agents.io.survey import survey

    async with survey(bootstrap, settings) as cluster:
        found = await cluster.topics()
        findings = checks.topics(found)
        if not all(topic.partitions for topic in found):
            return findings
        try:
            await admin.check_pinned()
        except FykeError as error:
            findings.append(_fault("topics", error))
        prefix = settings.kafka.prefix
        for stage, read in _READ.items():
            waiting = {prefix + topic: await admin.lag(stage, topic) for topic in read}
            findings.append(checks.group(stage, await cluster.group(stage), waiting))
    return [*findings, await _clock(bootstrap, settings)]


async def _clock(bootstrap: str, settings: Settings) -> Finding:
    """Send what says nothing, as a fetcher does when it starts: the acknowledgement has the broker's time."""
    from agents.cli import checks
    from agents.clock import BrokerClock
    from agents.delivery.producer import Producer
    from streams import codecs, messages
    from streams.topics import INBOX

    clock, failures = BrokerClock(), list[Exception]()
    producer = Producer(bootstrap, settings, "doctor", failures.append, clock)
    try:
        await producer.start()
        try:
            nothing = codecs.encode(messages.Outcomes(items=()))
            await asyncio.wait_for(await producer.send(INBOX, nothing, key=None, partition=0), _PATIENCE)
        finally:
            await producer.stop()
    except FykeError as error:
        return _fault("clock", error)
    except Exception as error:  # noqa: BLE001 - whatever the client raises: nobody can write there now
        reason = failures[0] if failures else error
        remedy = getattr(reason, "remedy", "") or "See the broker's log: its disk may be full."
        return checks.Finding("broker", f"takes no message: {getattr(reason, 'problem', repr(reason))}", remedy)
    if not clock.heard:
        return checks.Finding("clock", "the broker does not stamp the inbox", "Run `fyke topics apply`.")
    return checks.clock(clock.skew())


def _asked(check: str, ask: Callable[[], str]) -> Finding:
    from agents.cli.checks import Finding

    try:
        return Finding(check, ask())
    except FykeError as error:
        return _fault(check, error)


def _fault(check: str, error: FykeError) -> Finding:
    from agents.cli.checks import Finding

    return Finding(check, error.problem, error.remedy or "See the broker's log.")
