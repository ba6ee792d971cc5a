"""Changelog and stores under owners that pause, lose the partition, and whose batches land late.

Named after the schedules they come from. What must hold: what an owner was told is written stays written; a rebuilt
store equals the owner's; index and counters equal what the rows give.
"""

from __future__ import annotations

import asyncio

import pytest

from streams.errors import OwnershipLost
from streams.state.fencing import MARKER
from tests.simulation.owners import World, folder, no_fence, paused_put, world, world_in

__all__ = ["folder", "world"]  # fixtures


async def late_batch(world: World) -> None:
    a = await world.take_over("a")
    await a.ledger.put([(b"url", b"w\x01")])
    late = await paused_put(a, [(b"url", b"d\x00"), (b"other", b"d\x00")])
    b = await world.take_over("b")
    await b.ledger.put([(b"url", b"f\x02")])
    world.changelog.land()
    with pytest.raises(OwnershipLost):
        await late
    await b.ledger.settle()
    world.changelog.compact(world.changelog.end)
    world.check(b, {b"url": b"f\x02"})
    c = await world.take_over("c")
    world.check(c, {b"url": b"f\x02"})


async def test_late_batch_of_old_owner(world):
    await late_batch(world)


async def test_late_batch_of_old_owner_overwrites_the_row_without_fencing(folder):
    with world_in(folder, no_fence) as unfenced, pytest.raises(AssertionError):
        await late_batch(unfenced)


async def test_a_late_delete_of_the_old_owner_does_not_count_either(world):
    a = await world.take_over("a")
    await a.ledger.put([(b"url", b"w\x01")])
    late = await paused_put(a, [(b"url", None)])
    b = await world.take_over("b")
    world.changelog.land()
    with pytest.raises(OwnershipLost):
        await late
    await b.ledger.settle()
    world.changelog.compact(world.changelog.end, drop_tombstones=True)
    world.check(b, {b"url": b"w\x01"})


async def test_the_owner_notices_a_late_batch_at_its_next_put(world):
    a = await world.take_over("a")
    late = await paused_put(a, [(b"x", b"d\x00"), (b"y", b"d\x00")])
    b = await world.take_over("b")
    await b.ledger.put([(b"x", b"w\x01")])
    world.changelog.land()
    await b.ledger.put([(b"z", b"w\x02")])
    assert b.store.stale == set()
    world.changelog.compact(world.changelog.end)
    world.check(b, {b"x": b"w\x01", b"z": b"w\x02"})
    with pytest.raises(OwnershipLost):
        await late


async def test_old_owner_returns(world):
    a = await world.take_over("a")
    late = await paused_put(a, [(b"x", b"d\x00")])
    b = await world.take_over("b")
    await b.ledger.put([(b"x", b"w\x01"), (b"y", b"w\x01")])
    world.changelog.land()
    with pytest.raises(OwnershipLost):
        await late
    assert await world.take_over("a") is a
    await a.ledger.put([(b"z", b"w\x03")])
    assert a.store.offset == world.changelog.end - 1
    world.check(a, {b"x": b"w\x01", b"y": b"w\x01", b"z": b"w\x03"})


async def test_an_owner_that_did_not_notice_cannot_write(world):
    a = await world.take_over("a")
    await a.ledger.put([(b"x", b"w\x01")])
    b = await world.take_over("b")
    with pytest.raises(OwnershipLost):
        await a.ledger.put([(b"x", b"d\x00")])
    with pytest.raises(OwnershipLost):
        await a.ledger.put([(b"x", b"d\x00")])
    assert a.store.get(b"x") == b"w\x01"
    await b.ledger.settle()
    world.check(b, {b"x": b"w\x01"})


async def test_a_late_marker_makes_the_owner_claim_again(world):
    a = world.worker("a")
    a.generation = 1
    a.hold = 1
    late = asyncio.create_task(a.ledger.claim())
    await asyncio.sleep(0)
    b = await world.take_over("b")
    await b.ledger.put([(b"x", b"w\x01")])
    world.changelog.land()
    a.generation = None
    with pytest.raises(OwnershipLost):
        await late
    with pytest.raises(OwnershipLost):
        await b.ledger.put([(b"x", b"w\x02")])
    assert b.store.get(b"x") == b"w\x01"
    await b.ledger.claim()
    await b.ledger.put([(b"x", b"w\x03")])
    world.check(b, {b"x": b"w\x03"})


async def test_batch_hole(world):
    a = await world.take_over("a")
    a.pack = 1
    broken = await paused_put(a, [(b"x", b"w\x01"), (b"y", b"w\x01")])
    a.broken = True  # the first pack is on its way, the second is never sent
    world.changelog.land()
    with pytest.raises(ConnectionError):
        await broken
    assert a.store.get_many([b"x", b"y"]) == [None, None]
    a.broken = False
    with pytest.raises(OwnershipLost):
        await a.ledger.put([(b"z", b"w\x01")])
    await a.ledger.claim()
    await a.ledger.put([(b"z", b"w\x01")])
    world.check(a, {b"x": b"w\x01", b"z": b"w\x01"})


async def test_a_cancelled_put_may_still_land_and_is_found_by_the_next_claim(world):
    a = await world.take_over("a")
    cancelled = await paused_put(a, [(b"x", b"w\x01")])
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    world.changelog.land()
    await a.ledger.claim()
    world.check(a, {b"x": b"w\x01"})


async def test_counter_drift(world):
    a = await world.take_over("a")
    await a.ledger.put([(b"x", b"w\x01"), (b"y", b"w\x01"), (b"z", b"w\x01")])
    a.pack = 2
    half = await paused_put(a, [(b"x", b"d\x00"), (b"y", b"d\x00"), (b"z", b"d\x00")], packs=2)
    world.changelog.land()
    b = await world.take_over("b")  # one pack of two is in the changelog
    assert half.cancel()
    world.check(b, {b"x": b"d\x00", b"y": b"d\x00", b"z": b"w\x01"})


async def test_marker_at_tail(world):
    a = await world.take_over("a")
    await a.ledger.put([(b"x", b"w\x01")])
    world.changelog.control_record()
    b = await world.take_over("b")
    world.changelog.control_record()
    await b.ledger.put([(b"y", b"w\x01")])
    world.changelog.control_record()
    await b.ledger.settle()
    assert b.store.offset == world.changelog.end - 1
    world.check(b, {b"x": b"w\x01", b"y": b"w\x01"})


async def test_a_crash_between_recovery_and_writing_again_forgets_no_stale_key(world):
    a = await world.take_over("a")
    await a.ledger.put([(b"x", b"w\x01")])
    late = await paused_put(a, [(b"x", b"d\x00")])
    await world.take_over("b")
    world.changelog.land()
    b = world.worker("b")
    await b.recover()
    world.restart("b")
    assert world.worker("b").store.stale == {b"x"}
    b = await world.take_over("b")
    world.changelog.compact(world.changelog.end)
    world.check(b, {b"x": b"w\x01"})
    late.cancel()


async def test_a_claim_is_made_once_per_assignment(world):
    a = await world.take_over("a")
    end = world.changelog.end
    assert await a.ledger.claim() == a.ledger.epoch
    assert world.changelog.end == end
    a.generation = None
    with pytest.raises(OwnershipLost):
        await a.ledger.claim()
    with pytest.raises(OwnershipLost):
        _ = a.ledger.epoch


async def test_the_key_of_markers_is_refused(world):
    a = await world.take_over("a")
    with pytest.raises(ValueError, match="markers"):
        await a.ledger.put([(MARKER, b"w\x01")])
    await a.ledger.put([(b"x", b"w\x01")])
