"""Rule files: the parts of a crawl's definition that people write and change while it runs, as TOML.

A file names what it replaces, whole: `delay = 1.0`, a list of tables `[[limits]]`, a table `[traps]`. What it does not
name stays. `"none"` takes a value away where a definition may be without it (`concurrency = "none"`).
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec

from streams.definitions import CrawlDefinition, Keys, LimitRule, Pattern, Recrawl, Scope, ScopeRule, Traps
from streams.errors import UsageError
from streams.policy.limits import check_rule
from streams.policy.patterns import check_pattern

FIXED: Final = frozenset({"schema", "id", "version", "state", "seal", "created", "ended", "result", "by"})
"""What no file may say: it names the crawl, or says how it goes."""

MADE_ONCE: Final = frozenset({"keys"})
"""What may be said when a crawl is made, and never changed: URLs are stored under keys made by it."""

_TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "limits": LimitRule, "scope_rules": ScopeRule, "scope": Scope, "keys": Keys, "recrawl": Recrawl, "traps": Traps,
}  # fmt: skip
_HINTS: Final = get_type_hints(CrawlDefinition)
_HEADER: Final = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?")
_PLACE: Final = re.compile(r" - at `\$\.?([^`]*)`$")


def changeable() -> tuple[str, ...]:
    """The names that a file may use for a crawl that exists."""
    return tuple(name for name in CrawlDefinition.__struct_fields__ if name not in FIXED | MADE_ONCE)


def read_rules(text: str, file: str, *, new: bool) -> dict[str, Any]:
    """The parts of a definition that `text` says, checked. `new`: of a crawl that is about to be made.

    Raises `UsageError` that names file, line, rule and field.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}", "Quote texts; tables look like [[limits]].") from None
    reader = _Reader(text, file)
    reader.check_names(data, new=new)
    values = {name: reader.prepared(name, value) for name, value in data.items()}
    try:
        read = msgspec.convert({"id": "x", **values}, CrawlDefinition)
    except msgspec.ValidationError as error:
        raise reader.fault(str(error)) from None
    reader.check_own(read, data)
    for name, rules in (("limits", read.limits), ("scope_rules", read.scope_rules)):
        reader.check_rules(name, rules)
    return {name: getattr(read, name) for name in data}


def load_rules(file: Path, *, new: bool) -> dict[str, Any]:
    """`read_rules` of a file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}", "Name a TOML file.") from None
    return read_rules(text, str(file), new=new)


class _Reader:
    """Finds the words for what is wrong in one file."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = text.splitlines()
        self._file = file

    def check_names(self, data: Mapping[str, Any], *, new: bool) -> None:
        """Refuse names that mean nothing, or must not be said."""
        for name in data:
            if name in MADE_ONCE and not new:
                raise UsageError(
                    f"{self._place(name)}: {name} cannot be changed: the URLs of a crawl are stored under it",
                    "Take it out of the file, or make a new crawl: fyke crawl URL… --rules FILE",
                )
            if name in FIXED:
                raise UsageError(f"{self._place(name)}: {name} is not for a rule file", "Take it out.")
            self._check_name(name, (*changeable(), *MADE_ONCE), self._place(name))
        for name, kind in _TABLES.items():
            for number, table in enumerate(_as_tables(data.get(name))):
                for field in table:
                    self._check_name(field, kind.__struct_fields__, self._place(name, number, field))

    def _check_name(self, name: str, known: tuple[str, ...], place: str) -> None:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"{place}: there is no {name}", f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            )

    def prepared(self, name: str, value: Any) -> Any:
        """A value as the definition has it: times as ms, `"none"` as None."""
        if value == "none" and type(None) in get_args(_HINTS[name]):
            return None
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise UsageError(f"{self._place(name)}: {name} has no time zone", "Write 2026-12-24T18:00:00Z.")
            return int(value.timestamp() * 1000)
        return value

    def check_own(self, read: CrawlDefinition, data: Mapping[str, Any]) -> None:
        """The crawl's own values must be such as a rule may have."""
        interval = read.recrawl.interval if read.recrawl is not None else None
        for name, rule in (
            ("delay", LimitRule(id=".", delay=read.delay)),
            ("user_agent", LimitRule(id=".", user_agent=read.user_agent)),
            ("recrawl", LimitRule(id=".", recrawl=interval)),
        ):
            if name in data:
                self._check_rule(rule, self._place(name))

    def check_rules(self, name: str, rules: tuple[Pattern, ...]) -> None:
        """Rules must be readable and told apart by their ids."""
        seen: set[str] = set()
        for number, rule in enumerate(rules):
            rule_id: str = getattr(rule, "id", "")
            place = self._place(name, number)
            if not rule_id or rule_id in seen:
                raise UsageError(f"{place}: " + ("there are two of that id" if rule_id else "id is empty"),
                                 "Every rule needs an id of its own: orders and exclusions carry it.")  # fmt: skip
            seen.add(rule_id)
            self._check_rule(rule, place)

    @staticmethod
    def _check_rule(rule: Pattern, place: str) -> None:
        try:
            if isinstance(rule, LimitRule):
                check_rule(rule)
            else:
                check_pattern(rule)
        except UsageError as error:
            raise UsageError(f"{place}: {error.problem}", error.remedy) from None

    def fault(self, text: str) -> UsageError:
        """What msgspec says, with the place in words."""
        found = _PLACE.search(text)
        path = re.findall(r"[\w-]+", found[1]) if found else []
        name = path[0] if path else ""
        number = int(path[1]) if len(path) > 1 and path[1].isdigit() else 0
        field = next((part for part in path[1:] if not part.isdigit()), "")
        missing = re.search(r"missing required field `(\w+)`", text)
        problem = f"{missing[1]} is missing" if missing else text[: found.start() if found else None]
        label = f"{field}: " if field else ""
        return UsageError(f"{self._place(name, number, field)}: {label}{problem}", "See docs/rules.md for all fields.")

    def _place(self, name: str, number: int = 0, field: str = "") -> str:
        """`rules.toml, line 7, limits (rule api)`."""
        begin, end = self._block(name, number)
        line = next((at for at in range(begin, end) if field and self._defines(at, field)), begin)
        words = [self._file]
        if begin < len(self._lines):
            words.append(f"line {line + 1}")
        if name in _TABLES:
            rule = next((found for at in range(begin, end) if (found := self._id(at))), "")
            words.append(f"{name} (rule {rule})" if rule else name)
        return ", ".join(words)

    def _block(self, name: str, number: int) -> tuple[int, int]:
        """The lines of the `number`-th table called `name`; of a plain value, its line."""
        headers = [at for at, line in enumerate(self._lines) if _HEADER.match(line)]
        own = [at for at in headers if (found := _HEADER.match(self._lines[at])) and found[1] == name]
        if number < len(own):
            begin = own[number]
            later = (at for at in headers if at > begin and not self._lines[at].strip(" [").startswith(f"{name}."))
            return begin, next(later, len(self._lines))
        begin = next((at for at in range(len(self._lines)) if self._defines(at, name)), len(self._lines))
        return begin, min(begin + 1, len(self._lines))

    def _defines(self, at: int, name: str) -> bool:
        return re.match(rf"""\s*["']?{re.escape(name)}["']?\s*[.=]""", self._lines[at]) is not None

    def _id(self, at: int) -> str:
        found = re.match(r"""\s*id\s*=\s*["']([^"']*)["']""", self._lines[at])
        return found[1] if found else ""


def _as_tables(value: Any) -> list[Mapping[str, Any]]:
    tables = value if isinstance(value, list) else [value]
    return [table for table in tables if isinstance(table, dict)]


# --- writing


def write_rules(definition: CrawlDefinition) -> str:
    """The parts of a definition that differ from a new one's, as a rule file."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(definition))
    values = {name: plain[name] for name in (*changeable(), *MADE_ONCE) if name in plain}
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if not _is_table(value)]
    for name, value in values.items():
        for table in _as_tables(value) if _is_table(value) else ():
            fixed = "  # fixed when the crawl was made; cannot be applied" if name in MADE_ONCE else ""
            lines += ["", (f"[[{name}]]" if isinstance(value, list) else f"[{name}]") + fixed]
            lines += [f"{field} = {_toml(each)}" for field, each in table.items()]
    return "\n".join(lines).strip() + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(_as_tables(value)))


def _toml(value: Any) -> str:
    """A value in TOML: JSON but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def differences(before: CrawlDefinition, after: CrawlDefinition) -> Iterator[str]:
    """What an update changes, a line each."""
    for name in CrawlDefinition.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new or name in ("version", "by", "schema"):
            continue
        if isinstance(old, tuple) and isinstance(new, tuple):
            yield f"{name}: {_rule_changes(old, new)}"
        else:
            yield f"{name}: {_short(old)} → {_short(new)}"


def _rule_changes(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    old, new = ({rule.id: rule for rule in rules} for rules in (before, after))
    parts = [
        *(f"+{name}" for name in new if name not in old),
        *(f"-{name}" for name in old if name not in new),
        *(f"~{name}" for name in new if name in old and new[name] != old[name]),
    ]
    return f"{len(before)} → {len(after)} rules ({' '.join(parts) or 'in another order'})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"
