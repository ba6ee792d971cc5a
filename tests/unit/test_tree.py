"""Rules over the whole tree that no linter has: sizes, names, and nothing that ties the project to one machine."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.suites import ROOT, absent

MODULE_LINES = 400
FUNCTION_LINES = 50
VAGUE = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
CODE = ("streams", "agents", "tests")
BINARY = {".png", ".gz", ".zst", ".br", ".bin", ".xz", ".ico"}

# Folders of one machine, and hosts of package registries: clients find those through their own configuration.
TIED = re.compile(
    r"/wor[k]/|/roo[t]/|/home/[a-z]|/Users/|pyp[i]\.org|pythonhoste[d]\.org|repo1?\.mave[n]"
    r"|deb\.debia[n]\.org|registry\.npmj[s]|proxy\.golan[g]|index\.crate[s]\.io|--index-url"
)


def sources() -> list[Path]:
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def files() -> Iterator[Path]:
    """What is, or would be, committed; but not this file, which has to name what it looks for."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        absent("the list of files", "no git here")
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in sorted(listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in BINARY and path != Path(__file__):
            yield path


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_modules_are_short() -> None:
    long = {named(p): n for p in sources() if (n := len(p.read_text(encoding="utf-8").splitlines())) > MODULE_LINES}
    assert not long


def test_functions_are_short() -> None:
    long = {}
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{named(path)}:{node.lineno} {node.name}"] = lines
    assert not long


def test_modules_have_names_that_say_something() -> None:
    assert not [named(p) for p in sources() if VAGUE & {part.removesuffix(".py") for part in p.relative_to(ROOT).parts}]


def test_folders_of_tests_are_packages() -> None:
    assert not [named(p.parent) for p in sources() if not (p.parent / "__init__.py").exists()]


def test_only_settings_and_io_read_the_environment() -> None:
    readers = {
        named(path)
        for path in sources()
        if not named(path).startswith(("tests/", "agents/io/")) and reads_environment(tree(path))
    }
    assert readers <= {
        "streams/settings.py",
        "agents/cli/supervisor.py",  # hands its environment to the workers it starts
    }


def reads_environment(module: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv", "environb"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(module)
    )


def test_nothing_names_a_machine_or_a_registry() -> None:
    tied = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if TIED.search(line):
                tied.append(f"{named(path)}:{number}: {line.strip()[:100]}")
    assert not tied


@pytest.mark.parametrize(
    "line", ["see /wor" + "k/x", "pip install --index-url y", "https://pyp" + "i.org/", "https://repo1.mav" + "en.org"]
)
def test_the_pattern_finds_what_it_is_for(line: str) -> None:
    assert TIED.search(line)
