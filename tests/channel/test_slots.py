"""Slots return when the last view is gone, never before."""

import gc
import os

import numpy as np
import pytest
import torch

from glt_lightning.channel import SharedSlot, Slot, SlotPool, SlotWriter


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
        assert (memory == nbytes % 251).all()
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
    assert (memory == 9).all()


def test_pinning_follows_the_memory():
    said = []

    def pin(address, nbytes):
        said.append(("pin", nbytes))
        return lambda: said.append(("unpin", nbytes))

    pool = SlotPool(Slot, 1, pin)
    _, memory = lend(pool, 100)
    del memory
    _, _memory = lend(pool, 3 << 20)
    pool.close()
    assert [s[0] for s in said] == ["pin", "unpin", "pin", "unpin"]
