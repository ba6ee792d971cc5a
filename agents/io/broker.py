"""The embedded broker: a real Kafka as a child JVM on loopback, shared by every `fyke` process of a state folder.

`<state>/broker/` holds `data`, `broker.json` (what runs, on which ports), `broker.log`, `lock` (held while somebody
starts or stops it) and `users/` (a locked file per process that uses it: the last one to leave stops the broker,
unless `fyke broker start` started it). The JVM outlives its parent, since others may be attached to it.

All methods block; from a loop call them through `asyncio.to_thread`, except `alive` and `watch`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.io import kraft, process
from agents.io.admin import wait_until_serving
from agents.io.java import Runtime, Say, prepare, silent
from agents.io.locks import Hold, exclusive
from streams.errors import EnvironmentFault
from streams.settings import Settings

START_TIMEOUT = 120.0  # seconds; recovery after kill -9 reads the last segment of every partition
STOP_TIMEOUT = 30.0
_LOCK_PATIENCE = 300.0
_POLL = 0.05
_PORT_TRIES = 3

_children: dict[int, subprocess.Popen[bytes]] = {}
"""The JVMs this process started: they are reaped here, and are not tied to the object that started them."""

_holds = itertools.count()


class Instance(msgspec.Struct, frozen=True):
    """`broker.json`: the node that was started last. Its ports are kept over restarts."""

    pid: int
    identity: str
    port: int
    controller: int
    persistent: bool = False
    log_start: int = 0  # size of the log when it started

    @property
    def running(self) -> bool:
        """Whether that very process is still there (not another one that got its number)."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:  # reaped: from here on the number is free
            del _children[self.pid]
        return self.identity != "" and process.identity(self.pid) == self.identity


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What `fyke broker status` shows. Sizes in bytes, `uptime` in seconds."""

    running: bool
    bootstrap: str
    pid: int
    rss: int
    data: int
    uptime: float
    persistent: bool
    users: int


class EmbeddedBroker:
    """The broker of one state folder, as one process uses it."""

    def __init__(self, settings: Settings, say: Say = silent) -> None:
        self._settings = settings
        self._say = say
        self._layout = kraft.Layout(settings.worker.state.absolute() / "broker")
        self._hold: Hold | None = None
        self._runtime: Runtime | None = None

    def ensure(self, *, persistent: bool = False) -> str:
        """Attach to the running broker or start it; its bootstrap address. Counts this process as a user.

        `persistent`: it goes on after its last user has left. Raises `EnvironmentFault`.
        """
        if not self.alive():
            self._prepare()  # a download takes long: not while the lock keeps others waiting
        with self._locked():
            new = self._register()
            try:
                instance = self._serve(keep_ports=self._other_users() > 0)
            except BaseException:
                if new:
                    self._unregister()
                raise
            if persistent and not instance.persistent:
                self._save(msgspec.structs.replace(instance, persistent=True))
            return _bootstrap(instance)

    def restart(self) -> str:
        """Start the broker again on the ports its users know, unless it runs. Raises `EnvironmentFault`."""
        with self._locked():
            self._register()
            return _bootstrap(self._serve(keep_ports=True))

    def release(self) -> bool:
        """Stop using the broker; whether it was stopped since nobody else uses it."""
        if self._hold is None:
            return False
        with self._locked():
            self._unregister()
            instance = self._instance()
            if not instance.running or instance.persistent or self._other_users():
                return False
            self._end(instance)
            return True

    def stop(self, *, force: bool = False) -> bool:
        """Stop the broker; whether one was running. Raises `EnvironmentFault` if others use it and not `force`."""
        with self._locked():
            instance = self._instance()
            others = self._other_users()
            if instance.running and others and not force:
                raise EnvironmentFault(
                    f"the embedded broker is used by {others} other process{'es' if others > 1 else ''}",
                    "Let them end first, or stop it all the same with --force.",
                )
            self._unregister()
            if not instance.running:
                return False
            self._end(instance)
            return True

    def alive(self) -> bool:
        """Whether the broker's process is there. Cheap enough to be asked every second."""
        return self._instance().running

    async def watch(self, period: float = 1.0) -> EnvironmentFault:
        """Return when the broker's process has ended, with the reason. Asks every `period` seconds."""
        while True:
            instance = self._instance()
            if not instance.running:
                return kraft.explain_death(self._layout, instance.log_start)
            await asyncio.sleep(period)

    def status(self) -> BrokerStatus:
        """What runs and how big it is. Starts nothing, makes no folders; waits while somebody starts or stops it."""
        users = 0
        if self._layout.root.exists():
            with self._locked():
                users = self._other_users() + (self._hold is not None)
        instance = self._instance()
        running = instance.running
        return BrokerStatus(
            running=running,
            bootstrap=_bootstrap(instance) if running else "",
            pid=instance.pid if running else 0,
            rss=process.resident(instance.pid) if running else 0,
            data=_size(self._layout.data),
            uptime=process.uptime(instance.pid) if running else 0.0,
            persistent=running and instance.persistent,
            users=users,
        )

    def clean(self) -> int:
        """Remove the broker's folder with all its data; the bytes freed. Raises `EnvironmentFault` while it runs."""
        if not self._layout.root.exists():
            return 0
        with self._locked():
            if self._instance().running:
                raise EnvironmentFault("the embedded broker is running", "Stop it first: fyke broker stop.")
            if self._other_users():
                raise EnvironmentFault("another fyke process uses the embedded broker", "Let it end first.")
            self._unregister()
            freed = _size(self._layout.root)
            for path in self._layout.root.iterdir():
                if path != self._lock_file:  # whoever waits for the lock waits on this very file
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            return freed

    # Starting and ending

    def _serve(self, *, keep_ports: bool) -> Instance:
        """The running broker, or a new one, once it takes writes. One that this call started does not outlive a fault.

        `keep_ports`: on the ports it had, if it had some, or not at all.
        """
        last = self._instance()
        if last.running:
            self._await_service(last)
            return last
        keep = keep_ports and last.port > 0
        for tries_left in reversed(range(_PORT_TRIES)):
            instance = self._start(last, keep_ports=keep)
            try:
                self._await_service(instance)
            except kraft.PortTaken:
                if keep or self._settings.broker.port or not tries_left:
                    raise
            except BaseException:
                self._end(instance)
                raise
            else:
                return instance
        raise AssertionError("unreachable")

    def _start(self, last: Instance, *, keep_ports: bool) -> Instance:
        """Start the JVM, on the ports of `last` where they are free."""
        if shutil.disk_usage(self._layout.root).free < kraft.FREE_BYTES:
            raise kraft.disk_full(self._layout.root)
        kraft.refuse_second(self._layout)
        runtime = self._prepare()
        self._say("Starting the embedded Kafka broker")
        port, controller = self._choose_ports(last, keep=keep_ports)
        kraft.write_files(self._layout, port, controller, self._settings)
        with self._layout.log.open("ab") as log:
            log_start = log.tell()
            child = subprocess.Popen(
                kraft.command(runtime, self._layout, self._settings.broker.heap),
                cwd=self._layout.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            _children[child.pid] = child
            instance = Instance(child.pid, process.identity(child.pid), port, controller, last.persistent, log_start)
        self._save(instance)
        return instance

    def _prepare(self) -> Runtime:
        self._runtime = self._runtime or prepare(self._settings, self._say)
        return self._runtime

    def _choose_ports(self, last: Instance, *, keep: bool) -> tuple[int, int]:
        """The broker's and the controller's port. Raises `EnvironmentFault` where the broker's is fixed and taken."""
        fixed = last.port if keep else self._settings.broker.port
        if fixed and not kraft.port_free(fixed):
            raise EnvironmentFault(
                f"port {fixed} of the embedded broker is taken by another process",
                "End that process" + ("." if keep else ", or let FYKE_BROKER_PORT name another port."),
            )
        kept = last.port if last.port and kraft.port_free(last.port) else 0
        port = fixed or kept or kraft.free_port()
        controller = last.controller if last.controller and kraft.port_free(last.controller) else 0
        return port, controller if controller not in {0, port} else kraft.free_port(taken=port)

    def _await_service(self, instance: Instance) -> None:
        """Wait until the broker takes requests. A broker that does not within START_TIMEOUT is a fault."""
        deadline = time.monotonic() + START_TIMEOUT
        while not kraft.listening(instance.port):
            if not instance.running:
                raise kraft.explain_death(self._layout, instance.log_start)
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the embedded broker does not answer after {START_TIMEOUT:.0f} s", f"See {self._layout.log}."
                )
            time.sleep(_POLL)
        wait_until_serving(_bootstrap(instance), self._settings, max(1.0, deadline - time.monotonic()))

    def _end(self, instance: Instance) -> None:
        """SIGTERM, and SIGKILL after STOP_TIMEOUT. Returns when the process is gone."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if not instance.running:
                return
            os.kill(instance.pid, sign)
            deadline = time.monotonic() + STOP_TIMEOUT
            while instance.running and time.monotonic() < deadline:
                time.sleep(_POLL)

    # The state folder

    @property
    def _lock_file(self) -> Path:
        return self._layout.root / "lock"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        root = self._layout.root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self._lock_file, _LOCK_PATIENCE, lambda: self._say("Waiting for another fyke process")):
                yield
        except TimeoutError:
            raise EnvironmentFault(
                f"another fyke process has been starting or stopping the broker of {root} for too long",
                "End it and try again.",
            ) from None
        except OSError as error:
            raise kraft.folder_fault(root, error) from error

    def _instance(self) -> Instance:
        """What `broker.json` says; an empty one where there is none to be read."""
        try:
            return msgspec.json.decode((self._layout.root / "broker.json").read_bytes(), type=Instance)
        except (OSError, msgspec.MsgspecError):  # a folder that is not ours to read is told of by its lock
            return Instance(0, "", 0, 0)

    def _save(self, instance: Instance) -> None:
        draft = self._layout.root / ".broker.json.new"
        draft.write_bytes(msgspec.json.encode(instance))
        draft.replace(self._layout.root / "broker.json")

    def _register(self) -> bool:
        """Count this object as a user; False if it was one already."""
        if self._hold is not None:
            return False
        folder = self._layout.root / "users"
        folder.mkdir(exist_ok=True)
        while self._hold is None:  # a name may be held by a process of another container with the same number
            self._hold = Hold.take(folder / f"{os.getpid()}.{next(_holds)}")
        return True

    def _unregister(self) -> None:
        if self._hold is not None:
            self._hold.drop(remove=True)
            self._hold = None

    def _other_users(self) -> int:
        """How many other users hold their file. Files whose process is gone are removed on the way."""
        count = 0
        own = self._hold.path if self._hold else None
        for path in (self._layout.root / "users").glob("*"):
            if path == own:
                continue
            found = Hold.take(path)
            if found is None:
                count += 1
            else:
                found.drop(remove=True)
        return count


def _bootstrap(instance: Instance) -> str:
    return f"{kraft.HOST}:{instance.port}"


def _size(folder: Path) -> int:
    """Bytes on the disk below `folder` (Kafka's index files are larger than what they occupy)."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:  # Kafka deletes segments while we look
                continue
    return total
