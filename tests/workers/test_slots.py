"""Slots return when the last view is gone, never before."""

import gc
import os

import numpy as np
import pytest
import torch

from glt_lightning.workers import Slot
from glt_lightning.workers.slots import SharedSlot, SlotPool, SlotWriter


def lend(pool: SlotPool, nbytes: int = 4096) -> tuple[Slot, np.ndarray]:
    slot = pool.take()
    assert slot is not None
    slot.reserve(nbytes)
    return slot, pool.lend(slot, nbytes)


def test_a_slot_returns_with_its_last_view():
    pool = SlotPool(Slot, 1)
    slot, memory = lend(pool)
    tensors = [torch.from_numpy(memory[:64].view(np.int64)), torch.from_numpy(memory[64:])]
    row = tensors[0].view(2, 4)[1:]
    del memory
    tensors.clear()
    assert pool.take() is None
    row += 1  # still ours
    del row
    assert pool.take() is slot
    pool.close()


def test_a_slot_without_memory_is_free_again():
    pool = SlotPool(Slot, 1)
    slot = pool.take()
    with pytest.raises((OSError, OverflowError)):
        pool.lend_room(slot, 1 << 60)
    assert pool.take() is slot
    assert len(pool.lend_room(slot, 8)) == 8
    pool.close()


def test_a_slot_with_room_is_taken_first():
    """Else batches of the loader with the largest would, one after the other, make all slots as large."""
    pool = SlotPool(Slot, 3)
    batches = [lend(pool, nbytes) for nbytes in (5 << 20, 3 << 20, 100)]
    large, middle, small = (slot for slot, _ in batches)
    assert pool.take(1) is None
    while batches:
        batches.pop(0)  # the smallest returns last
    assert pool.take(5 << 20) is large
    assert pool.take(5 << 20) is small  # no other has room: the one that was used last
    assert pool.take() is middle
    pool.close()


def test_a_slot_takes_the_memory_of_its_largest_batch():
    """In huge pages, not as much as is mapped."""
    pool = SlotPool(Slot, 2)
    first, second = (lend(pool, nbytes) for nbytes in (1, 4 << 20))
    assert (first[0].capacity, second[0].capacity) == (2 << 20, 6 << 20)
    assert pool.nbytes == (2 << 20) + (4 << 20)
    del second
    _, again = lend(pool, 1)
    assert pool.nbytes == (2 << 20) + (4 << 20)
    del first, again
    pool.close()


def test_a_slot_grows_and_keeps_its_memory():
    pool = SlotPool(Slot, 1)
    _, memory = lend(pool, 100)
    first = memory.ctypes.data
    del memory
    _, memory = lend(pool, 200)
    assert memory.ctypes.data == first
    old = memory
    del memory
    assert pool.take() is None
    kept = old.copy()
    del old
    _slot, memory = lend(pool, 64 << 20)
    assert len(memory) == 64 << 20
    assert len(kept) == 200
    del memory
    pool.close()


def test_fresh_slots_are_counted_warned_once_and_not_recycled():
    pool = SlotPool(Slot, 1)
    _slot, _memory = lend(pool)
    with pytest.warns(UserWarning, match="all 1 batch slots"):
        fresh = pool.take_fresh()
    fresh.reserve(10)
    memory = pool.lend(fresh, 10)
    pool.take_fresh()
    assert pool.fresh_slots == 2
    del memory
    assert pool.take() is None


def test_many_kept_shared_batches_use_no_descriptors():
    pool = SlotPool(SharedSlot, 0)
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    with pytest.warns(UserWarning, match="batch slots"):
        for i in range(50):
            slot = pool.take_fresh()
            assert isinstance(slot, SharedSlot)
            writer = SlotWriter(os.dup(slot.fd))
            writer.memory(100)[:100] = i
            writer.close()
            slot.attach()
            kept.append(pool.lend(slot, 100))
    del slot
    assert len(os.listdir("/proc/self/fd")) == before
    assert [int(m[7]) for m in kept] == list(range(50))


def test_a_writer_grows_what_the_reader_maps():
    pool = SlotPool(SharedSlot, 1)
    slot = pool.take()
    assert isinstance(slot, SharedSlot)
    writer = SlotWriter(os.dup(slot.fd))
    for nbytes in (10, 5 << 20, 100):
        writer.memory(nbytes)[:nbytes] = nbytes % 251
        slot.attach()
        memory = pool.lend(slot, nbytes)
        np.testing.assert_array_equal(memory, nbytes % 251)
        del memory
        assert pool.take() is slot
    writer.close()
    pool.close()


def test_batches_outlive_their_pool():
    pool = SlotPool(Slot, 1)
    _, memory = lend(pool)
    memory[:] = 9
    pool.close()
    gc.collect()
    np.testing.assert_array_equal(memory, 9)


class Driver:
    """Page-locks as CUDA does: memory that is registered must not be registered again."""

    def __init__(self):
        self.registered: dict[int, int] = {}
        self.total = 0

    def pin(self, address, nbytes):
        end = address + nbytes
        assert not any(address < a + n and a < end for a, n in self.registered.items()), "already registered"
        self.registered[address] = nbytes
        self.total += 1
        return lambda: self.registered.pop(address)


@pytest.mark.parametrize("kind", [Slot, SharedSlot])
def test_memory_is_pinned_until_its_last_view_is_gone(kind):
    driver = Driver()
    pool = SlotPool(kind, 1, driver.pin)

    def take(nbytes: int) -> np.ndarray:
        slot = pool.take()
        assert slot is not None
        if kind is SharedSlot:
            writer = SlotWriter(os.dup(slot.fd))
            writer.memory(nbytes)
            writer.close()
            slot.attach()
        else:
            slot.reserve(nbytes)
        return pool.lend(slot, nbytes)

    memory = take(100)
    small = sum(driver.registered.values())
    del memory
    memory = take(3 << 20)
    assert sum(driver.registered.values()) > small
    assert (len(driver.registered), driver.total) == (1, 2)
    address = memory.ctypes.data
    pool.close()
    assert list(driver.registered) == [address]  # a copy may still read it
    del memory
    assert not driver.registered


@pytest.mark.filterwarnings("ignore:all 1 batch slots")
def test_one_off_memory_is_not_pinned_and_retired_memory_is_let_go():
    driver = Driver()
    pool = SlotPool(Slot, 1, driver.pin)
    slot, memory = lend(pool)
    for _ in range(3):  # the next one-off slot is often mapped where the last one was
        fresh = pool.take_fresh()
        fresh.reserve(4096)
        kept = pool.lend(fresh, 4096)
        del fresh, kept
    assert driver.total == 1
    pool.retire(slot)
    del slot, memory
    assert not driver.registered


def test_a_retired_slot_keeps_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    pool = SlotPool(SharedSlot, 1)
    slot = pool.take()
    assert slot is not None
    pool.retire(slot)
    assert len(os.listdir("/proc/self/fd")) == before
