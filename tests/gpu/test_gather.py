"""Gathering and looking up on a CUDA device equal the CPU ops, from every memory that a device reads."""

from contextlib import contextmanager
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.kernels import ENCODINGS, CudaShards
from tests.helpers import device_cases as cases

pytestmark = pytest.mark.gpu

MEMORIES = ("device", "pinned", "registered")


@contextmanager
def places(kernels, memory):
    """A `Place` of this memory; what is registered is closed when the device is done."""
    registered = []
    try:
        if memory == "registered":
            yield cases.registered_place(kernels, registered.append)
        else:
            yield (
                (lambda values: values.to(kernels.device))
                if memory == "device"
                else (lambda values: values.pin_memory())
            )
    finally:  # also where a check failed: the next case may get the same pages, which are registered once
        torch.cuda.synchronize(kernels.device)
        for each in registered:
            each.close()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("seed", range(40))
def test_gather(kernels, seed, memory):
    with places(kernels, memory) as place:
        cases.check_gather(kernels, seed, place)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", sorted(ENCODINGS))
@pytest.mark.parametrize("seed", range(30))
def test_gather_decodes(kernels, seed, name, memory):
    with places(kernels, memory) as place:
        cases.check_gather_decode(kernels, seed, name, place)


@pytest.mark.parametrize("seed", range(40))
def test_rank_find(kernels, seed):
    cases.check_rank_find(kernels, seed)


def test_gather_does_not_wait_and_says_bad_ids_when_asked(kernels):
    shards = CudaShards([torch.ones(3, 2, device=kernels.device), torch.ones(3, 2).pin_memory()], kernels, start=5)
    ids = torch.tensor([5, 10, 11], device=kernels.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        shards.gather(ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(DataError, match="id 11 at position 2"):
        shards.check()


def test_streams_of_several_threads_gather_at_once(kernels):
    rows = torch.arange(400_000.0, device=kernels.device).view(100_000, 4)
    shards, told = CudaShards([rows], kernels), {}
    torch.cuda.synchronize(kernels.device)

    def work(bad: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(kernels.device)):
            error = kernels.new_error()
            ids = cases.to(kernels, np.random.default_rng(bad).integers(0, 100_000, 50_000))
            same = [torch.equal(shards.gather(ids, error=error), rows[ids]) for _ in range(20)]
            shards.gather(cases.to(kernels, np.array([bad])), error=error)
            told[bad] = (all(same), error.tolist()[2])

    threads = [Thread(target=partial(work, 100_000 + t)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {bad: (True, bad) for bad in range(100_000, 100_004)}
