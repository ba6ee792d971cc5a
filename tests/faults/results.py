"""What runs of the fault ring found: a file for the newest result of each line and form, and a log of all of them.

    <folder>/LINE.FORM.json   the newest result
    <folder>/log.jsonl        every result, oldest first

A result names the sources it was made with (`tree`, a digest), so a run that was cut goes on where it stopped: what has
a result for the sources as they are now is not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tests.faults.lines import Figure, Line
from tests.suites import ROOT, cache

Form = Literal["short", "long"]

SOURCES = ("streams", "agents", "tests/faults", "tests/servers")
"""What a result depends on."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of one run. `at`: ISO time in UTC; `took` in seconds; `commit` ends with + if the tree was changed."""

    line: str
    form: Form
    dose: str
    seed: str
    commit: str
    tree: str
    at: str
    took: float
    holds: bool
    figures: dict[str, Figure] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Results:
    """The results in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, result: Result) -> None:
        """Keep a result, whole or not at all."""
        text = json.dumps(asdict(result), indent=1)
        path = self._path(result.line, result.form)
        draft = path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(path)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(result)) + "\n")

    def get(self, line: str, form: Form) -> Result | None:
        """The newest result of a line; None if there is none."""
        try:
            return Result(**json.loads(self._path(line, form).read_text()))
        except FileNotFoundError:
            return None

    def _path(self, line: str, form: Form) -> Path:
        return self.folder / f"{line}.{form}.json"


def folder() -> Path:
    """Where results are kept: `FYKE_FAULTS`, else in the cache of the tests."""
    named = os.environ.get("FYKE_FAULTS")
    return Path(named) if named else cache() / "faults"


def digest(root: Path = ROOT, parts: Sequence[str] = SOURCES) -> str:
    """Of the sources a result depends on."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(path for part in parts for path in (root / part).rglob("*.py")):
        state.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return state.hexdigest()


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out; empty where git or its folder is missing."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, check=True)
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=root, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.decode().strip() + ("+" if status.stdout.strip() else "")


# --- the table


def table(lines: Iterable[Line], results: Results, form: Form) -> str:
    """The results of a form as a Markdown table, in the order of the lines."""
    rows = ["| fault | dose | must hold | verdict | measured |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *_rows(lines, results, form)])


def _rows(lines: Iterable[Line], results: Results, form: Form) -> Iterator[str]:
    for line in lines:
        dose = line.dose(short=form == "short")
        if dose is None:
            continue
        result = results.get(line.name, form)
        verdict = "not run" if result is None else "holds" if result.holds else "**does not hold**"
        measured = "" if result is None else _cell(measurements(result))
        shown = dose.text if result is None else result.dose
        yield f"| {line.fault} (`{line.name}`) | {_cell(shown)} | {_cell(line.holds)} | {verdict} | {measured} |"


def measurements(result: Result) -> str:
    """The figures of a result in one line."""
    figures = ", ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {_plain(value)}"
                        for name, value in result.figures.items())  # fmt: skip
    return f"{figures}; {result.took:.0f} s; seed {result.seed}, commit {result.commit}".lstrip("; ")


def _plain(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
