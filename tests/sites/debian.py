"""Real sites, and a web server, from Debian packages: downloaded by name and unpacked, never installed.

Needs `apt-get` and `dpkg` and works without root; with root an empty package list is fetched first. Downloads are kept
in the test cache (`tests.suites.cache`), by name and version.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from tests.suites import absent, cache


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked package."""

    name: str
    version: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Documentation:
    """A static site in a package: `root` is what a server serves, `start` the path a crawl begins at."""

    package: str
    root: str
    start: str


POSTGRESQL = Documentation("postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html", "/index.html")
BOOST = Documentation("libboost1.81-doc", "usr/share/doc/libboost1.81-doc/doc/html", "/index.html")
APACHE = Documentation("apache2-doc", "usr/share/doc/apache2-doc/manual", "/index.html")
OPENJDK = Documentation("openjdk-17-doc", "usr/share/doc/openjdk-17-jre-headless", "/api/index.html")


@once
def package(name: str) -> Package:
    """The unpacked package `name`, downloaded if need be. Skips (or fails) by name where that is impossible."""
    folder = cache() / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        archive = _archive(name, folder) or _download(name, folder)
        version = archive.name.split("_")[1]
        unpacked = folder / archive.name.removesuffix(".deb")
        if not unpacked.is_dir():
            _unpack(archive, unpacked)
    return Package(name, version, unpacked)


def root_of(site: Documentation) -> Path:
    """The folder to serve."""
    return package(site.package).folder / site.root


def _archive(name: str, folder: Path) -> Path | None:
    return max(folder.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime, default=None)


def _download(name: str, folder: Path) -> Path:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        absent(name, "a Debian package, and this is not Debian")
    result = _apt("download", name, folder=folder)
    if result.returncode and os.geteuid() == 0:
        _apt("update", folder=folder)
        result = _apt("download", name, folder=folder)
    archive = _archive(name, folder)
    if result.returncode or archive is None:
        absent(name, f"apt-get download failed: {result.stderr.strip().splitlines()[-1:]}")
    return archive


def _apt(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-q", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack beside the target and rename, so that a killed test run leaves no half of a site."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    subprocess.run(["dpkg", "-x", archive, partial], check=True, timeout=300)
    partial.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
