"""The output folders of `fyke crawl`: their names, and the plan kept in each so that `fyke resume` can go on.

A crawl's folder is `./fyke-out/NAME` or what `--out` names; its plan is `.fyke/crawl.json` in it. What the workers must
know about the crawl is in the topic `crawls`; the plan holds what only the command line knows: the seeds to produce,
the state folder and broker, the workers' own settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agents.io.files import HIDDEN, replace_file
from streams.codecs import CRAWL_ID
from streams.definitions import CrawlDefinition
from streams.errors import EnvironmentFault, UsageError

HOME = Path("fyke-out")
_PLAN = Path(HIDDEN) / "crawl.json"
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_STEM = 56


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `settings`: those that must be the same when the crawl goes on, by dotted name."""

    name: str
    seeds: tuple[str, ...]
    definition: CrawlDefinition
    settings: dict[str, Any]
    named: bool = False  # the name was asked for
    workers: int = 1
    in_process: bool = False
    demo: bool = False
    sealed: bool = False  # all seeds are acknowledged and the seal is published
    result: str = ""  # as in the crawl's definition, once it has ended and everything is exported


def write_plan(folder: Path, plan: Plan) -> None:
    """Keep the plan; replaces an older one in one step."""
    data = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    try:
        replace_file(folder / _PLAN, data + b"\n")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {folder / _PLAN}: {error.strerror}",
            "Make the folder writable, or choose another one (--out).",
        ) from None


def read_plan(folder: Path) -> Plan:
    """The plan of the crawl in `folder`. Raises `UsageError` if there is none."""
    path = folder / _PLAN
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no crawl", "`ls fyke-out` lists the crawls of this folder.") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise EnvironmentFault(f"{path} cannot be read: {error}", "Restore the file, or crawl again.") from None


def default_name(host: str) -> str:
    """A crawl id made from a host name: characters that an id may not have become hyphens, a port is kept."""
    stem = _NOT_IN_NAME.sub("-", host).strip("-._")[:_LONGEST_STEM]
    return stem or "crawl"


def numbered(stem: str) -> Iterator[str]:
    """Names to try: `stem`, `stem-2`, `stem-3` and so on."""
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def check_name(name: str) -> str:
    """`name` if it can be a crawl's id, else `UsageError`."""
    if not CRAWL_ID.match(name):
        raise UsageError(
            f"{name!r} cannot be a crawl's name", "Use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit."
        )
    return name


def make_folder(name: str, out: Path | None, known: Callable[[str], bool], *, exact: bool) -> tuple[str, Path]:
    """Make the folder of a new crawl; returns its name and folder, never one that is in use.

    `known` says whether the broker has a crawl of that name. `exact`: the name was asked for, so it is not numbered.
    """
    for candidate in (name,) if exact else numbered(name):
        folder = HOME / candidate if out is None else out
        if known(candidate):
            continue
        if _claim(folder):
            return candidate, folder
        if out is not None:
            raise UsageError(
                f"the output folder {out} is not empty",
                f"Choose another folder, or go on with what it holds: fyke resume --out {out}",
            )
    raise UsageError(f"there is a crawl {name} already", f"Choose another --name, or go on with it: fyke resume {name}")


def _claim(folder: Path) -> bool:
    """Make the folder; an empty one may be used. False if something is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return False
        (folder / HIDDEN).mkdir()  # of two that claim the same folder at the same time one fails here
    except FileExistsError:
        return False
    except OSError as error:
        raise EnvironmentFault(
            f"cannot make the output folder {folder}: {error.strerror}", "Choose another one with --out."
        ) from None
    return True


def unfinished(name: str | None, out: Path | None) -> Path:
    """The folder that `fyke resume` means: the one named, else the newest below ./fyke-out that has not ended."""
    if out is not None:
        return out
    if name is not None:
        return HOME / check_name(name)
    plans = sorted(HOME.glob(f"*/{_PLAN}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in plans:
        folder = path.parent.parent
        if not read_plan(folder).result:
            return folder
    raise UsageError(
        f"no crawl in ./{HOME} is unfinished", "Name one (fyke resume NAME), or begin one (fyke crawl URL)."
    )
