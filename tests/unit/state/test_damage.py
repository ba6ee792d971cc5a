"""What damage of each kind to a store leads to: a store that agrees with its changelog, a rebuild, or a named stop."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from streams.errors import DamagedError, EnvironmentFault, Exit, StateError
from streams.state.fold import Folded
from streams.state.store import DAMAGED, Store
from tests.unit.state.rows import Clock, counters_of, derived, index_of, shelf

ROOT = Path(__file__).parents[3]
HALF, ALL = 600, 1200
Spoil = Callable[[Path], None]


def record(offset: int) -> tuple[bytes, bytes | None]:
    """The record at an offset of the changelog: rows are written, written again, and some are deleted."""
    key = b"%05d" % (offset % 500)
    return key, None if offset % 11 == 0 else b"w" + bytes([offset % 7]) + b"row %d " % offset * 8


def rows_at(offset: int) -> dict[bytes, bytes]:
    """The fold of the changelog up to an offset."""
    newest = dict(record(each) for each in range(offset + 1))
    return {key: value for key, value in newest.items() if value is not None}


def write(store: Store, first: int, last: int) -> None:
    for begin in range(first, last, 50):
        store.absorb(Folded(0, dict(record(each) for each in range(begin, begin + 50))), begin + 49)


async def written(folder: Path) -> Path:
    """A store whose first half is in files and whose second half is in the write-ahead log only, as after a kill."""
    store = derived(await shelf(folder / "whole").open("c", "t", 3))
    write(store, 0, HALF)
    store._db.flush()
    write(store, HALF, ALL)
    path = folder / "rows-3.db"
    shutil.copytree(store.path, path)
    store.close()
    return path


async def look(folder: Path) -> int:
    """Open the store and hold it to the changelog; the offset it contains. Raises what opening or reading raises."""
    store = await shelf(folder).open("c", "t", 3)
    try:
        rows = rows_at(store.offset)
        assert dict(store.rows(limit=10_000)) == rows
        if store.derived:
            assert store.scan(b"", limit=10_000) == index_of(rows)
            assert store.counters() == counters_of(rows)
        return store.offset
    finally:
        store.close()


async def after_a_restart(folder: Path) -> int:
    """As `look`; a worker that ends because its store is damaged is started again."""
    with suppress(DamagedError):
        return await look(folder)
    return await look(folder)


def files(path: Path, pattern: str) -> list[Path]:
    found = sorted(path.glob(pattern))
    assert found
    return found


def truncate(pattern: str) -> Spoil:
    def spoil(path: Path) -> None:
        for file in files(path, pattern):
            os.truncate(file, file.stat().st_size // 2)

    return spoil


def flip(pattern: str) -> Spoil:
    def spoil(path: Path) -> None:
        for file in files(path, pattern):
            flip_bit(file, file.stat().st_size // 3)

    return spoil


def flip_bit(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def lose(pattern: str) -> Spoil:
    def spoil(path: Path) -> None:
        for file in files(path, pattern):
            file.unlink()

    return spoil


async def test_nothing_damaged(tmp_path: Path) -> None:
    await written(tmp_path)
    assert await look(tmp_path) == ALL - 1


@pytest.mark.parametrize(
    ("spoil", "offsets"),
    [
        (truncate("*.sst"), {-1}),
        (flip("*.sst"), {-1}),
        (lose("*.sst"), {-1}),
        (truncate("MANIFEST-*"), {-1}),
        (lose("MANIFEST-*"), {-1}),
        (truncate("CURRENT"), {-1}),
        (lose("CURRENT"), {-1}),
        (truncate("*.log"), range(HALF - 1, ALL - 1)),  # what it lacks is read from the changelog again
        (flip("*.log"), range(HALF - 1, ALL - 1)),
        (lose("*.log"), {HALF - 1}),
        (lose("OPTIONS-*"), {ALL - 1}),
        (lose("IDENTITY"), {ALL - 1}),
        (lose("LOCK"), {ALL - 1}),
    ],
)
async def test_damage(
    tmp_path: Path, spoil: Spoil, offsets: set[int] | range, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(await written(tmp_path))
    with caplog.at_level(logging.WARNING):
        offset = await after_a_restart(tmp_path)
    assert offset in offsets
    assert (offset >= 0) != ("is rebuilt from the changelog" in caplog.text)


async def test_no_flipped_bit_changes_what_is_read(tmp_path: Path) -> None:
    """A bit of any file, anywhere: the store is what the changelog says up to its offset, or it is rebuilt."""
    whole = await written(tmp_path / "whole")
    dice = random.Random(4)
    outcomes = []
    for number in range(40):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder / "rows-3.db")
        file = dice.choice([each for each in files(folder / "rows-3.db", "*") if each.stat().st_size])
        flip_bit(file, dice.randrange(file.stat().st_size))
        outcomes.append(await after_a_restart(folder))
        shutil.rmtree(folder)
    assert set(outcomes) <= {-1, *range(HALF - 1, ALL)}
    assert -1 in outcomes
    assert ALL - 1 in outcomes


async def test_a_manifest_cut_anywhere_hides_no_rows(tmp_path: Path) -> None:
    """Cut between two records it is a valid one, of a store that lacks what was written to files since."""
    store = derived(await shelf(tmp_path / "whole").open("c", "t", 3))
    for begin in range(0, ALL, 400):
        write(store, begin, begin + 400)
        if begin < 800:
            store._db.flush()
    whole = tmp_path / "copy"
    shutil.copytree(store.path, whole)
    store.close()
    (manifest,) = whole.glob("MANIFEST-*")
    for cut in range(0, manifest.stat().st_size, 11):
        folder = tmp_path / str(cut)
        shutil.copytree(whole, folder / "rows-3.db")
        os.truncate(folder / "rows-3.db" / manifest.name, cut)
        assert await look(folder) == -1
        shutil.rmtree(folder)


async def test_damage_met_at_work_ends_the_worker_so_that_it_starts_again(tmp_path: Path) -> None:
    path = await written(tmp_path)
    flip("*.sst")(path)
    said: list[DamagedError] = []
    try:
        await look(tmp_path)
    except DamagedError as error:  # not `raises`: it would keep the iterator alive, and with it the lock
        said.append(error.with_traceback(None))
    assert [error.exit_code for error in said] == [Exit.BROKEN]  # so that a supervisor starts it again
    said.clear()
    assert (path / DAMAGED).exists()
    assert await look(tmp_path) == -1


async def test_a_store_removed_under_its_worker_is_rebuilt_by_its_next_start(tmp_path: Path) -> None:
    store = derived(await shelf(tmp_path).open("c", "t", 3))
    write(store, 0, HALF)
    shutil.rmtree(store.path)
    with pytest.raises(DamagedError, match="was removed"):
        write(store, HALF, 80 * ALL)  # until a file must be made
    store.close()
    assert await look(tmp_path) == -1


HOLDER = """
import asyncio, sys
from pathlib import Path
from tests.unit.state.rows import shelf
store = asyncio.run(shelf(Path(sys.argv[1])).open("c", "t", 3))
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    path = await written(tmp_path)
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (path / "LOCK").exists()
    assert await look(tmp_path) == ALL - 1


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A small file system of its own."""
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={size}", "fyke", str(folder)):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


async def test_a_full_disk_is_a_named_stop_and_nothing_is_lost(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "6m") as folder:
        store = derived(await shelf(folder).open("c", "t", 3))
        write(store, 0, HALF)
        (folder / "ballast").write_bytes(bytes(_free(folder) - (64 << 10)))
        with pytest.raises(EnvironmentFault, match="No space left") as caught:
            write(store, HALF, 100 * ALL)
        assert "Make room" in caught.value.remedy
        offset = store.offset
        assert offset > HALF
        store.close()
        (folder / "ballast").unlink()
        assert await look(folder) == offset


async def test_no_room_to_open_is_a_named_stop(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "6m") as folder:
        shutil.copytree(await written(tmp_path), folder / "rows-3.db")
        (folder / "ballast").write_bytes(bytes(_free(folder)))
        with pytest.raises(EnvironmentFault, match="No space left"):
            await look(folder)
        (folder / "ballast").unlink()
        assert await look(folder) == ALL - 1


async def test_a_folder_that_may_only_be_read_is_a_named_stop(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "6m") as folder:
        shutil.copytree(await written(tmp_path), folder / "rows-3.db")
        assert mount("-o", "remount,ro", str(folder))
        with pytest.raises(EnvironmentFault, match="Read-only file system") as caught:
            await look(folder)
        assert "rights" in caught.value.remedy
        with pytest.raises(EnvironmentFault, match="Read-only file system"):
            await shelf(folder / "absent").open("c", "t", 3)
        assert mount("-o", "remount,rw", str(folder))
        assert await look(folder) == ALL - 1


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


async def test_a_changelog_made_again_under_the_same_name_stops_the_worker(tmp_path: Path) -> None:
    store = await shelf(tmp_path).open("c", "t", 3, "first")
    write(store, 0, HALF)
    store.close()
    for _ in range(2):  # the store stays what it is
        with pytest.raises(StateError, match="deleted and made again") as caught:
            await shelf(tmp_path).open("c", "t", 3, "second")
        assert "fyke state rebuild --incomplete" in caught.value.remedy
    again = await shelf(tmp_path).open("c", "t", 3, "first")
    assert again.offset == HALF - 1
    again.close()


async def test_a_store_that_has_nothing_goes_on_with_the_new_changelog(tmp_path: Path) -> None:
    (await shelf(tmp_path).open("c", "t", 3, "first")).close()
    store = await shelf(tmp_path).open("c", "t", 3, "second")
    assert store.offset == -1
    assert store.identity is not None
    assert store.identity.topic_id == "second"
    store.close()


async def test_a_store_older_than_half_of_what_deletes_are_kept_is_rebuilt(tmp_path: Path) -> None:
    clock = Clock()
    store = await shelf(tmp_path, clock=clock).open("c", "t", 3)
    write(store, 0, HALF)
    store.close()
    clock.now += 3_600_001
    again = await shelf(tmp_path, clock=clock).open("c", "t", 3)
    assert again.offset == -1
    again.close()
