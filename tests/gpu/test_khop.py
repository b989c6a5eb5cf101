"""Whole batches on a CUDA device equal those of the CPU and the reference."""

import numpy as np
import pytest
import torch

from glt_lightning.errors import DataError
from glt_lightning.ops import cuda_khop
from glt_lightning.ops.cuda_graph import DeviceGraph
from glt_lightning.ops.cuda_khop import CudaKHopOp
from glt_lightning.ops.khop import KHopOp
from tests.helpers import device_cases as cases
from tests.helpers.graphs import TypedGraph, cut

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(kernels, seed):
    cases.check_khop(kernels, seed)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[[5], [4], [3]], [[-1], [3]], [[70], [2]]])
def test_larger_batches(kernels, fanouts, replace):
    cases.check_larger_khop(kernels, replace, fanouts)


@pytest.mark.parametrize("first", [2**31 - 25, 2**31, 2**32 - 25, 2**40])
def test_far_ids(kernels, first):
    cases.check_far_ids(kernels, first)


def test_a_side_stream_serves_as_well(kernels):
    rng = np.random.default_rng(2)
    pieces = cut(TypedGraph.random(rng), 2, rng)
    op, cpu = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[3], [3]]), KHopOp(pieces.view, [[3], [3]])
    seeds = pieces.gid_of[0][:4]
    on_device = cases.to(kernels, seeds)
    stream = torch.cuda.Stream(kernels.device)
    stream.wait_stream(torch.cuda.current_stream(kernels.device))
    with torch.cuda.stream(stream):
        kept = [op(on_device, 0, key) for key in range(20)]
    stream.synchronize()
    for key, batch in enumerate(kept):
        cases.assert_same_batch(batch, cpu(seeds, 0, key))


def test_the_host_waits_only_to_read_sizes(kernels, monkeypatch):
    """torch raises at every other wait it makes; our kernels make none."""
    rng = np.random.default_rng(9)
    pieces = cut(TypedGraph.random(rng), 2, rng)
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[3], [3]], with_edge=True)
    seeds = cases.to(kernels, pieces.gid_of[0][:4])
    op(seeds, 0, 0)
    read = cuda_khop.read

    def allowed(*tensors):
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(*tensors)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(cuda_khop, "read", allowed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        op(seeds, 0, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_a_seed_outside_the_graph_is_refused(kernels, bad):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[2]])
    with pytest.raises(DataError, match=f"id {bad} at position 1"):
        op(cases.to(kernels, np.array([0, bad])), 0, 0)
