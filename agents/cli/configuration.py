"""Settings as a command sees them (flags, environment, `fyke.toml`, defaults), and where each value came from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import pydantic_settings

from streams.errors import SettingsError
from streams.settings import Settings, variable, variables_set

FILE = Path("fyke.toml")
DEFAULT = "default"

Flags = Mapping[str, tuple[str, Any]]
"""Settings given on the command line: dotted name -> (flag, value)."""

_HEADER = re.compile(r"\s*\[\s*(\w+)\s*\]")
_KEY = re.compile(r"\s*(?:(\w+)\s*\.\s*)?(\w+)\s*=")


def load(flags: Flags | None = None) -> Settings:
    """The effective settings. Raises `SettingsError` that names the setting and where its value stands."""
    flags = flags or {}
    given: dict[str, Any] = {}
    for dotted, (_, value) in flags.items():
        group, name = dotted.split(".")
        given.setdefault(group, {})[name] = value
    try:
        return Settings(**given)
    except pydantic.ValidationError as error:
        raise _explained(error, flags) from None
    except pydantic_settings.SettingsError as error:
        raise SettingsError(
            str(error),
            f"A list is written as JSON, e.g. {variable('fetch', 'connect_to')}='[\"a:80:127.0.0.1:8080\"]'.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{FILE} is not readable TOML: {error}", "Mend or remove the file.") from None
    except OSError as error:
        raise SettingsError(f"{FILE} cannot be read: {error.strerror}", "Make it readable, or remove it.") from None


def override(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with some values replaced, by dotted name. For values that code made: they are not validated."""
    for dotted, value in values.items():
        group, name = dotted.split(".")
        changed = getattr(settings, group).model_copy(update={name: value})
        settings = settings.model_copy(update={group: changed})
    return settings


def origins(flags: Flags | None = None) -> dict[str, str]:
    """Where each setting comes from, by dotted name: a flag, a variable, a line of `fyke.toml`, or `default`."""
    variables, lines = variables_set(), dict(_file_lines())
    out = {}
    for dotted in all_names():
        group, name = dotted.split(".")
        variable_name = variables.get(variable(group, name)) or variables.get(f"FYKE_{group}".upper())
        out[dotted] = (flags or {}).get(dotted, ("",))[0] or variable_name or lines.get(dotted, DEFAULT)
    return out


def all_names() -> Iterator[str]:
    """Every setting's dotted name, in the order of `streams.settings`."""
    for group, field in Settings.model_fields.items():
        assert isinstance(field.default, pydantic.BaseModel)  # noqa: S101 - how Settings is built
        for name in type(field.default).model_fields:
            yield f"{group}.{name}"


def _file_lines() -> Iterator[tuple[str, str]]:
    """Dotted name -> `fyke.toml:LINE` of each key in the file, as far as a line tells."""
    try:
        text = FILE.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, ValueError):
        return
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[1]
        elif key := _KEY.match(line):
            group, name = key[1] or table, key[2]
            if group:
                yield f"{group}.{name}", f"{FILE}:{number}"
            else:  # kafka = { bootstrap = … }
                inline = content.get(name)
                yield from ((f"{name}.{inner}", f"{FILE}:{number}") for inner in inline or {})


def _explained(error: pydantic.ValidationError, flags: Flags) -> SettingsError:
    """The first thing that is wrong, with the place a person must look at."""
    first = error.errors(include_url=False)[0]
    dotted = ".".join(str(part) for part in first["loc"][:2])
    group, _, name = dotted.partition(".")
    unknown = {variable(group, name): f"{FILE}"} | variables_set()
    place = origins(flags).get(dotted) or dict(_file_lines()).get(dotted) or unknown[variable(group, name)]
    if first["type"] == "extra_forbidden":
        return SettingsError(f"{place}: there is no setting {dotted}", "`fyke config` lists every setting.")
    return SettingsError(
        f"{place}: {dotted} = {first['input']!r}: {first['msg']}",
        f"Mend the value; the default is {_default(group, name)!r}.",
    )


def _default(group: str, name: str) -> Any:
    field = Settings.model_fields.get(group)
    return getattr(field.default, name, None) if field else None
