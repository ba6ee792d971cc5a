from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from agents.io.files import HIDDEN, Line, OutputFolder, read_json, write_json
from streams.errors import EnvironmentFault

FILES = ("records.jsonl", "failures.jsonl")
STEPS = ("wrote records.jsonl", "wrote failures.jsonl", "before identities", "after identities")


def lines(*numbers: int, file: str = "records.jsonl") -> list[Line]:
    return [Line(file, b"id%d" % number, b'{"n": %d}' % number) for number in numbers]


def opened(path: Path, **options) -> OutputFolder:
    folder = OutputFolder(path, FILES, **options)
    folder.open()
    return folder


def content(path: Path, name: str = "records.jsonl") -> list[bytes]:
    return (path / name).read_bytes().splitlines()


def test_lines_are_written_once_within_a_call_across_calls_and_across_openings(tmp_path):
    folder = opened(tmp_path)
    assert folder.append(lines(1, 2, 1)) == {"records.jsonl": 2}
    assert folder.append(lines(2, 3)) == {"records.jsonl": 1}
    folder.close()
    folder = opened(tmp_path)
    assert folder.append(lines(3, 1)) == {}
    assert folder.append([*lines(4), *lines(1, file="failures.jsonl")]) == {"records.jsonl": 1, "failures.jsonl": 1}
    folder.close()
    assert content(tmp_path) == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', b'{"n": 4}']
    assert content(tmp_path, "failures.jsonl") == [b'{"n": 1}']


def _die_at(path: Path, step: str) -> None:
    def crash(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    opened(path, step=crash).append([*lines(2, 3), *lines(1, file="failures.jsonl")])


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_between_two_steps_leaves_every_line_once_after_the_replay(tmp_path, step):
    folder = opened(tmp_path)
    folder.append(lines(1))
    folder.close()
    child = multiprocessing.get_context("spawn").Process(target=_die_at, args=(tmp_path, step))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert len(content(tmp_path)) == 3, "the child wrote before it died"

    folder = opened(tmp_path)
    survived = content(tmp_path)
    assert survived == ([b'{"n": 1}'] if step != "after identities" else [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'])
    folder.append([*lines(1, 2, 3), *lines(1, file="failures.jsonl")])
    folder.close()
    assert content(tmp_path) == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    assert content(tmp_path, "failures.jsonl") == [b'{"n": 1}']


def test_half_a_line_at_the_end_is_cut_off(tmp_path):
    folder = opened(tmp_path)
    folder.append(lines(1))
    folder.close()
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b'{"n": 2')
    folder = opened(tmp_path)
    folder.append(lines(2))
    folder.close()
    assert content(tmp_path) == [b'{"n": 1}', b'{"n": 2}']


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(EnvironmentFault, match="another process exports"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_shortened_file_is_reported_instead_of_continued(tmp_path):
    folder = opened(tmp_path)
    folder.append(lines(1, 2))
    folder.close()
    os.truncate(tmp_path / "records.jsonl", 3)
    with pytest.raises(EnvironmentFault, match="3 bytes, 18 were written"):
        opened(tmp_path)


def test_a_foreign_file_is_never_written_over(tmp_path):
    (tmp_path / "records.jsonl").write_text("mine\n")
    with pytest.raises(EnvironmentFault, match="not written by this export"):
        opened(tmp_path)
    assert content(tmp_path) == [b"mine"]


def test_a_full_disk_is_one_clear_message_and_nothing_counts_as_written(tmp_path):
    def full(step: str) -> None:
        if step == "wrote records.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")

    folder = opened(tmp_path, step=full)
    with pytest.raises(EnvironmentFault, match="no space left") as caught:
        folder.append(lines(1))
    assert "nothing is lost" in caught.value.remedy
    folder.close()
    folder = opened(tmp_path)
    assert content(tmp_path) == []
    assert folder.append(lines(1)) == {"records.jsonl": 1}
    folder.close()


def test_a_folder_that_cannot_be_made_is_one_clear_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write the output"):
        opened(tmp_path / "file" / "out")


def test_a_damaged_index_is_one_clear_message(tmp_path):
    folder = opened(tmp_path)
    folder.append(lines(1))
    folder.close()
    (tmp_path / HIDDEN / "exported" / "CURRENT").write_text("nonsense")
    with pytest.raises(EnvironmentFault, match="cannot be opened"):
        opened(tmp_path)


def test_json_is_replaced_in_one_step_and_damage_is_reported(tmp_path):
    path = tmp_path / "deep" / "crawl.json"
    write_json(path, {"name": "ü"})
    write_json(path, {"name": "ö"})
    assert read_json(path) == {"name": "ö"}
    assert [entry.name for entry in path.parent.iterdir()] == ["crawl.json"]
    path.write_text("{")
    with pytest.raises(EnvironmentFault, match="not readable JSON"):
        read_json(path)
