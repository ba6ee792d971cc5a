"""The contracts of public messages: a change of what is written, read or promised changes a golden file."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from streams import codecs, messages
from streams.errors import MessageError, NewerSchemaError
from tests.unit import contracts
from tests.unit.contracts import FULL, GOLDEN, MINIMAL

SAMPLES = [(name, kind) for kind in ("full", "minimal") for name in codecs.PUBLIC]
UNKNOWN = {"field_of_tomorrow": {"a": [1]}}


def sample(name: str, kind: str) -> tuple[Any, bytes]:
    return {"full": FULL, "minimal": MINIMAL}[kind][name], (GOLDEN / f"{name}.{kind}.json").read_bytes()


def test_what_is_written_and_promised_is_as_it_was() -> None:
    """After a deliberate change: `python -m tests.unit.contracts`, and say in the changelog what the diff means."""
    written = contracts.files()
    assert {path.name: path.read_bytes() for path in written} == {path.name: data for path, data in written.items()}
    assert set(GOLDEN.rglob("*.json")) == set(written)


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_what_was_written_is_read(name: str, kind: str) -> None:
    message, data = sample(name, kind)
    assert contracts.read(name, data) == message


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_the_json_schema_fits(name: str, kind: str) -> None:
    schema = json.loads((GOLDEN / "schemas" / f"{name}.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(contracts.plain(sample(name, kind)[0]), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "one"}, schema)


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_every_message_says_its_schema(name: str, kind: str) -> None:
    _, data = sample(name, kind)
    written = dict(json.loads(data))
    assert int(written["schema"]) == messages.SCHEMA


@pytest.mark.parametrize("name", codecs.PUBLIC)
def test_a_newer_schema_is_told_from_a_broken_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SCHEMA", messages.NEWEST + 1)
    known = msgspec.structs.replace(FULL[name], schema=messages.SCHEMA)
    different = json.dumps([["schema", "2"], ["url", "x"]] if name == "page" else {"schema": 2, "url": [1]}).encode()
    for data in (contracts.write(name, known), different):
        if name == "seed":
            with pytest.raises(MessageError):
                contracts.read(name, data)
        else:
            with pytest.raises(NewerSchemaError, match="has schema 2, this release reads up to 1"):
                contracts.read(name, data)


def test_a_new_message_says_the_schema_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SCHEMA", 7)
    assert b'"schema":7' in codecs.encode(messages.Outcomes(items=()))


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_unknown_fields_are_ignored(name: str, kind: str) -> None:
    message, data = sample(name, kind)
    longer: Any
    if name == "page":
        longer = [*json.loads(data), ["field_of_tomorrow", "1"]]
    else:
        longer = UNKNOWN | {key: _with_unknown(value) for key, value in json.loads(data).items()}
    assert contracts.read(name, json.dumps(longer).encode()) == message


def _with_unknown(value: Any) -> Any:
    """The same in structs inside a message: elements of lists, and the objects whose fields have fixed names."""
    if isinstance(value, list):
        return [UNKNOWN | element if isinstance(element, dict) else element for element in value]
    fixed = isinstance(value, dict) and ("action" in value or "mode" in value)
    return UNKNOWN | value if fixed else value


@pytest.mark.parametrize("name", codecs.PUBLIC)
def test_the_full_sample_sets_every_field(name: str) -> None:
    assert _left_out(FULL[name]) == set()


def _left_out(message: Any) -> set[str]:
    """Fields of a message, and of messages in it, that have their default values."""
    missing = set()
    for field in msgspec.structs.fields(message):
        value = getattr(message, field.name)
        if field.name != "schema" and value == field.default:
            missing.add(f"{type(message).__name__}.{field.name}")
        for part in _parts(value):
            if isinstance(part, msgspec.Struct):
                missing |= _left_out(part)
    return missing


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
