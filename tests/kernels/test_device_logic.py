"""The device's code on the host: the bodies of its kernels run in random orders of threads, and the Python above them.

What this cannot show is what only a device has: launches, barriers between lanes, its atomics, its memory. tests/gpu does.
"""

import ctypes

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import DeviceGraph, Kernels, NeighborRows
from glt_lightning.kernels.cuda import relabel as cuda_relabel, stream as cuda
from glt_lightning.kernels.cuda.rows import CudaNeighborSums
from tests.helpers import device_cases as cases
from tests.helpers.graphs import HETERO, TypedGraph, cut
from tests.reference import ops as reference

SCHEDULES = [(1, 0), (1, 3), (1, 60), (4, 0)]  # threads, bodies nested in one


# --- picks


def lanes_picks(library: ctypes.CDLL, stream: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Picks of the lanes, which must be those of the host."""
    host, lanes = np.zeros(fanout, dtype=np.uint32), np.zeros(fanout, dtype=np.uint32)
    library.emulate_picks(stream, degree, fanout, replace, host.ctypes.data, lanes.ctypes.data)
    assert lanes.tolist() == host.tolist()
    return lanes.tolist()


@pytest.mark.parametrize("degree", range(1, 13))
def test_lanes_pick_what_the_host_picks_in_small_rows(emulated, degree):
    """Small rows collide all the time, in chains of any length."""
    for replace in (False, True):
        for fanout in range(1, degree if not replace else 20):
            for stream in range(300):
                picks = lanes_picks(emulated, stream * 0x9E3779B97F4A7C15 % 2**64, degree, fanout, replace)
                assert replace or len(set(picks)) == fanout


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("degree", "fanout"),
    [(64, 63), (65, 64), (100, 99), (500, 499), (200, 100), (5000, 65), (40000, 15), (2**31 - 1, 64)],
)
def test_lanes_pick_what_the_host_picks(emulated, degree, fanout, replace):
    for stream in range(40):
        lanes_picks(emulated, (stream * 0xD1342543DE82EF95 + 1) % 2**64, degree, fanout, replace)


def test_lanes_pick_what_the_reference_picks(emulated):
    streams = torch.arange(50) * 1234567891234567
    for degree, fanout, replace in ((9, 4, False), (9, 8, False), (70, 69, False), (9, 20, True)):
        want = reference.pick_positions(streams, torch.full((50,), degree), fanout, replace)
        for stream, picks in zip(streams.tolist(), want, strict=True):
            assert lanes_picks(emulated, stream, degree, fanout, replace) == picks.tolist()


# --- whole ops


@pytest.mark.parametrize("seed", range(40))
def test_windows_of_time(kernels, seed):
    cases.check_windows(kernels, seed)


@pytest.mark.parametrize("seed", range(40))
def test_edges_among_nodes(kernels, seed):
    kernels.schedule(seed, *SCHEDULES[seed % len(SCHEDULES)])
    cases.check_induce(kernels, seed)


def test_edges_among_nodes_that_are_refused(kernels):
    cases.check_induce_refuses(kernels)


@pytest.mark.parametrize("seed", range(24))
def test_walks(kernels, seed):
    kernels.schedule(seed, *SCHEDULES[seed % len(SCHEDULES)])
    cases.check_walks(kernels, seed)


def test_walks_that_are_refused(kernels):
    cases.check_walks_refuse(kernels)


@pytest.mark.parametrize("seed", range(40))
def test_neighbor_sums(kernels, seed):
    kernels.schedule(seed, *SCHEDULES[seed % len(SCHEDULES)])
    cases.check_neighbor_sums(kernels, seed)


def test_neighbor_sums_name_a_bad_neighbor(kernels):
    sums = CudaNeighborSums(3, 1, kernels)
    sums.add(NeighborRows(0, np.array([0, 1, 2]), np.array([2, 3]), 3), np.ones((2, 1), np.int64))
    with pytest.raises(DataError, match="id 3 at position 1"):
        sums.result()


@pytest.mark.parametrize("seed", range(40))
def test_sample_rows(kernels, seed):
    kernels.schedule(seed)
    cases.check_sample_rows(kernels, seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(15))
def test_relabel(kernels, seed, schedule):
    kernels.schedule(seed, *schedule)
    cases.check_relabel(kernels, seed)


def test_relabel_of_nothing(kernels):
    for known in (None, torch.empty(0, dtype=torch.int64)):
        unique, lids = cuda_relabel.relabel(torch.empty(0, dtype=torch.int64), known, kernels=kernels)
        assert unique.tolist() == lids.tolist() == []


# --- the relabel table at its limits


def relabel_in(kernels: Kernels, slots: int, ids: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    """(error, unique, lids) of ids in a table of so many slots."""
    error, num_unique = kernels.new_error(), kernels.zeros(1)
    lids = cuda_relabel.DeviceLids(kernels, error)
    lids._slots, lids._table = slots, kernels.empty(2 * slots)
    lids.enter(None, 0, True)
    unique = kernels.empty(len(ids))
    found = lids.number(ids, kernels.zeros(1).fill_(len(ids)), unique, num_unique)
    return error.tolist(), unique[: int(num_unique)].tolist(), found.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_full_table_of_ids_that_all_collide(kernels, schedule):
    """All ids want one slot, and there are as many slots as ids."""
    slots = 64
    wanted = [i for i in range(40_000) if (i * 0x9E3779B97F4A7C15 % 2**64) >> 58 == 63][:slots]
    rng = np.random.default_rng(0)
    for seed in range(20):
        kernels.schedule(seed, *schedule)
        ids = torch.from_numpy(rng.permutation(wanted * 3))
        error, unique, lids = relabel_in(kernels, slots, ids)
        want_unique, want_lids = reference.relabel(ids, torch.empty(0, dtype=torch.int64))
        assert (error[0], unique, lids) == (0, want_unique.tolist(), want_lids.tolist())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_table_too_small_is_said_and_does_not_spin(kernels, schedule):
    kernels.schedule(3, *schedule)
    error, _, lids = relabel_in(kernels, 16, torch.arange(100))
    assert error == [1, 0, 0, 32, 0]
    assert sorted(lids)[:84] == [-1] * 84


def test_the_table_is_a_power_of_two(kernels):
    with pytest.raises(NativeError, match="relabel_known"):
        relabel_in(kernels, 48, torch.arange(4))


# --- errors are those of the CPU


def test_sample_rows_refuses_other_types(kernels):
    rng = np.random.default_rng(1)
    graph = TypedGraph.random(rng, HETERO)
    pieces = cut(graph, 1, rng)
    other = torch.from_numpy(pieces.gid_of[1 - int(pieces.view.dst_types[0])][:1])
    with pytest.raises(DataError, match="position 0"):
        cases.sample_rows_on(DeviceGraph.from_view(pieces.view, kernels), 0, other, 2, batch_key=0, hop=0)


def test_relabel_refuses_negative_ids(kernels):
    with pytest.raises(DataError, match="id -3 at position 1"):
        cuda_relabel.relabel(torch.tensor([1, -3]), kernels=kernels)


# --- the loop


def test_mapped_arrays_go_over_in_pieces(kernels, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_COPY_BYTES", 64)
    np.save(tmp_path / "a.npy", np.arange(101, dtype=np.int32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert kernels.copy(mapped).tolist() == list(range(101))
    assert kernels.copy(mapped[:0]).tolist() == []
