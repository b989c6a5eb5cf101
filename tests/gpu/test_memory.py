"""A CUDA device reads registered memory of the host in place."""

import mmap

import numpy as np
import pytest
import torch

from glt_lightning.base import NativeError
from glt_lightning.kernels import CudaShards, Registered, RowsAt

pytestmark = pytest.mark.gpu


def test_it_is_the_memory_itself_until_closed(kernels):
    memory = np.frombuffer(
        mmap.mmap(-1, 4 * mmap.PAGESIZE), dtype=np.uint8
    )  # shared, as all ranks of a host share theirs
    rows = memory[1024 : 1024 + 4000].view(np.float32).reshape(-1, 4)
    ids = torch.arange(len(rows), device=kernels.device)
    with Registered(kernels, memory) as registered:
        at = RowsAt(
            address=registered.address_of(rows), rows=len(rows), dtype=torch.float32, row_shape=(4,), keep=memory
        )
        shards = CudaShards([at], kernels)
        for value in (1.0, 2.0):
            rows[:] = value  # the device was done with it
            assert (shards.gather(ids) == value).all()
        with pytest.raises(NativeError, match="could not be page-locked"):
            Registered(kernels, memory)
        assert (shards.gather(ids) == 2).all()  # a refusal is not said again by what comes next
        torch.cuda.synchronize(kernels.device)
    Registered(kernels, memory).close()


def test_what_is_no_memory_is_refused(kernels):
    closed = Registered(kernels, np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=np.uint8))
    closed.close()
    with pytest.raises(NativeError, match=r"glt_cuda_host_unregister: .* \(CUDA error \d+\)"):
        kernels.ask("glt_cuda_host_unregister", closed._first)
    kernels.require_built_for_device()
