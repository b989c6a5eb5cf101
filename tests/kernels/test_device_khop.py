"""Whole k-hop batches by the device's code on the host, queued at once and hop by hop, as the CPU's and the reference's."""

import re
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import pytest
import torch

from glt_lightning.base import MAX_FANOUT, DataError, DrawOptions, NativeError, PartitionError
from glt_lightning.kernels import CudaKHopOp, DeviceGraph, DeviceHops, Kernels, KHopOp
from glt_lightning.kernels.cuda import khop_batch as cuda_khop_batch, sample as cuda_sample, stream as cuda_stream
from glt_lightning.kernels.cuda.khop_batch import KHopRoom, NativeBatch
from glt_lightning.kernels.cuda.native import SPARE_FANOUT
from tests.helpers import device_cases as cases
from tests.helpers.device_cases import WAYS
from tests.helpers.graphs import HETERO, TypedGraph, cut

SCHEDULES = [(1, 0), (1, 3), (1, 60), (4, 0)]  # threads, bodies nested in one


@pytest.mark.diagonal(most=40)
@pytest.mark.parametrize("seed", range(80))
def test_khop(kernels, seed):
    threads, nested = SCHEDULES[seed % len(SCHEDULES)]
    kernels.schedule(seed, threads, nested)
    cases.check_khop(kernels, seed)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize("fanouts", [[[5], [4], [3]], [[-1], [3]], [[70], [2]]])
def test_larger_khop(kernels, fanouts, schedule, replace):
    kernels.schedule(1, *schedule)
    cases.check_larger_khop(kernels, replace, fanouts)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [1, 16, 17, 64, 65, 200, 5000])
@pytest.mark.parametrize("fanout", [1, 5, 16, 17, SPARE_FANOUT, SPARE_FANOUT + 1, 300])
def test_every_way_of_picking(kernels, degree, fanout, replace):
    cases.check_every_way_of_picking(kernels, degree, fanout, replace)


@pytest.mark.parametrize("first", [2**31 - 25, 2**31, 2**32 - 25, 2**40])
def test_far_ids(kernels, first):
    cases.check_far_ids(kernels, first)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_ids_in_a_hash_table(kernels, schedule):
    kernels.schedule(2, *schedule)
    cases.check_far_ids(kernels, 2**31, n=700, num_seeds=150)


# --- the hash table at its limits


def enter(library, ids: np.ndarray, num_slots: int) -> tuple[list[int], np.ndarray, np.ndarray]:
    """(slot of each id, (id, lowest order) of the slots) with positions for orders."""
    table, slots = np.zeros(num_slots, dtype=np.uint64), np.zeros(len(ids), dtype=np.uint32)
    library.emulate_enter(table.ctypes.data, num_slots, ids.ctypes.data, len(ids), slots.ctypes.data)
    return slots.tolist(), (table >> np.uint64(32)).astype(np.int64), (table & np.uint64(2**32 - 1)).astype(np.int64)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_full_table_of_ids_that_all_collide(kernels, emulated, schedule):
    """All ids want one slot, and there are as many slots as ids."""
    wanted = [i for i in range(40_000) if (i * 0x9E3779B97F4A7C15 % 2**64) >> 58 == 63][:64]
    rng = np.random.default_rng(0)
    for seed in range(20):
        kernels.schedule(seed, *schedule)
        ids = rng.permutation(wanted * 3)
        slots, keys, orders = enter(emulated, ids, 64)
        assert keys[slots].tolist() == ids.tolist()
        assert orders[slots].tolist() == [ids.tolist().index(i) for i in ids]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_full_table_is_said_and_does_not_spin(kernels, emulated, schedule):
    kernels.schedule(3, *schedule)
    slots, _, _ = enter(emulated, np.arange(100) + 2**32 - 200, 16)
    assert sorted(slots)[16:] == [2**32 - 1] * 84


# --- errors are those of the CPU


@pytest.mark.parametrize("max_picks", WAYS)
@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_a_seed_outside_the_graph_is_refused(kernels, bad, max_picks):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    graph = DeviceGraph.from_view(pieces.view, kernels)
    for fanouts in ([[2]], []):
        with pytest.raises(DataError, match=f"id {bad} at position 1"):
            CudaKHopOp(graph, fanouts, max_picks=max_picks)({0: torch.tensor([0, bad])}, 0)


@pytest.mark.parametrize("fanout", [-1, 5])  # hop by hop, at once
def test_a_damaged_row_is_refused(kernels, fanout):
    rng = np.random.default_rng(3)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [4], [np.array([[0, 1, 2, 3], [1, 2, 3, 0]])]
    pieces = cut(graph, 1, rng)
    edge_type = pieces.view._keep[0][0]
    edge_type.indices[0] = 77
    with pytest.raises(PartitionError, match="names neighbour 77"):
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[fanout], [2]])({0: torch.arange(4)}, 0)
    edge_type.indices[0] = 0
    edge_type.indptr[1] = 1000
    with pytest.raises(PartitionError, match="1000"):
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[fanout]])({0: torch.from_numpy(pieces.gid_of[0])}, 0)


@pytest.mark.parametrize("fanout", [-1, 500])
def test_a_part_that_is_not_here_is_refused(kernels, fanout):
    rng = np.random.default_rng(4)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [20], [rng.integers(0, 20, (2, 200))]
    view = cut(graph, 2, rng).view
    view._keep[0][1] = view._keep[1][1] = None
    here, away = 0, int(view.bounds[1])
    op = CudaKHopOp(DeviceGraph.from_view(view, kernels), [[fanout]])
    for seeds, message in (([here, away], f"id {away} at position 1"), ([here], "part is not mapped by this process")):
        with pytest.raises(DataError, match=message):
            op({0: torch.tensor(seeds)}, 0)


@pytest.mark.parametrize(
    "seeds", [torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)]
)
def test_seeds_of_another_kind_are_refused(kernels, seeds):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    with pytest.raises(DataError, match=re.escape("seeds: expected int64 [n] on cpu, got")):
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[2]])({0: seeds}, 0)


@pytest.mark.parametrize("wrong", [{"workspace": 0}, {"num_hops": 17}, {"max_picks": 2}])
def test_a_call_that_cannot_be_is_refused(kernels, wrong):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    room = room_of(DeviceGraph.from_view(pieces.view, kernels), [[2]], 3)
    for name, value in wrong.items():
        setattr(room if name == "workspace" else room._shape, name, value)
    with pytest.raises(NativeError, match="glt_cuda_khop"):
        NativeBatch(room, [torch.arange(3)], 0)


# --- room


def room_of(graph: DeviceGraph, fanouts: list[list[int]], *num_seeds: int, **options) -> KHopRoom:
    return KHopRoom(graph, fanouts, num_seeds, DrawOptions(), **{"max_picks": 1 << 24} | options)


def sized(kernels, sizes: list[int], edge_types) -> DeviceGraph:
    graph = TypedGraph.random(np.random.default_rng(0), edge_types)
    graph.num_nodes, graph.edges = sizes, [np.zeros((2, 0), dtype=np.int64) for _ in edge_types]
    return DeviceGraph.from_view(cut(graph, 1, np.random.default_rng(0)).view, kernels)


def test_no_more_room_than_fan_outs_and_types_can_fill(kernels):
    graph = sized(kernels, [100], cases.SINGLE)
    room = room_of(graph, [[3], [4]], 5)
    assert (room.nodes, room.edges) == ([5 + 15 + 60], [15 + 60])
    room = room_of(graph, [[3], [50]], 40)
    assert (room.nodes, room.edges) == ([40 + 100], [120 + 100 * 50])  # 100 nodes at most can be new
    assert (room_of(graph, [], 40).nodes, room_of(graph, [[0]], 40).edges) == ([40], [0])


def test_what_is_not_bounded_gets_no_room(kernels):
    graph = sized(kernels, [100], cases.SINGLE)
    assert room_of(graph, [[3], [4]], 5, max_picks=75).workspace > 0
    assert room_of(graph, [[3], [4]], 5, max_picks=74).workspace == -1
    assert room_of(graph, [[3], [-1]], 5).workspace == -1
    assert room_of(graph, [[-1]], 0).workspace >= 0  # of no rows
    assert room_of(graph, [[MAX_FANOUT]] * 16, 2**40).workspace == -1


def test_memory_that_stays_empty_is_given_back(kernels, monkeypatch):
    """Most rows have one neighbour where ten are asked for."""
    n = 64
    graph = TypedGraph.random(np.random.default_rng(0))
    graph.num_nodes, graph.edges = [n], [np.stack([np.arange(n), (np.arange(n) + 1) % n])]
    pieces = cut(graph, 1, np.random.default_rng(0))
    op, cpu = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[10], [10]]), KHopOp(pieces.view, [[10], [10]])
    seeds = pieces.gid_of[0][:4]
    for worth, bound in ((1 << 17, 4 * 10 + 4 * 10 * 10), (0, None)):
        monkeypatch.setattr(cuda_khop_batch, "_WORTH_A_COPY", worth)
        found = op({0: torch.from_numpy(seeds)}, 1)
        cases.assert_same_batch(found, cpu({0: seeds}, 1))
        memory = found.edge_index[0].untyped_storage().nbytes()
        assert memory == 16 * (bound or found.edge_index[0].shape[1])


# --- the host


@pytest.mark.parametrize("max_picks", WAYS)
def test_when_the_host_waits(kernels, monkeypatch, max_picks):
    """Once, when the result is asked for; hop by hop once a hop."""
    waits: list[str] = []
    read, wait = Kernels.read, cuda_stream.HostCopy.wait
    monkeypatch.setattr(Kernels, "read", staticmethod(lambda *tensors: waits.append("read") or read(*tensors)))
    monkeypatch.setattr(cuda_stream.HostCopy, "wait", lambda self: waits.append("wait") or wait(self))
    rng = np.random.default_rng(9)
    pieces = cut(TypedGraph.random(rng, HETERO), 2, rng)
    graph = DeviceGraph.from_view(pieces.view, kernels)
    seeds = torch.from_numpy(pieces.gid_of[1][:1])
    for fanouts, reads in (([[2, 2, 2]] * 3, 3), ([[2, 2, 2], [-1, -1, -1]], 3)):
        whole = max_picks and fanouts[-1][0] > 0
        batch = CudaKHopOp(graph, fanouts, max_picks=max_picks).start({1: seeds}, 0)
        assert isinstance(batch, NativeBatch if whole else DeviceHops)
        assert len(waits) == (0 if whole else reads)
        waits.clear()
        batch.result()
        assert waits == (["wait"] if whole else [])
        waits.clear()


def test_fan_outs_that_promise_too_much_are_counted_first(kernels, monkeypatch):
    monkeypatch.setattr(cuda_sample, "MODEST_ROOM", 4)
    for seed in range(20):
        cases.check_khop(kernels, seed)


@pytest.mark.parametrize("max_picks", WAYS)
def test_batches_do_not_share_memory(kernels, max_picks):
    """Many in flight, of two threads."""
    rng = np.random.default_rng(2)
    pieces = cut(TypedGraph.random(rng), 1, rng)
    graph, cpu = DeviceGraph.from_view(pieces.view, kernels), KHopOp(pieces.view, [[3], [3]])
    op = CudaKHopOp(graph, [[3], [3]], max_picks=max_picks)
    seeds = torch.from_numpy(pieces.gid_of[0])
    with ThreadPoolExecutor(2) as threads:
        kept = list(threads.map(lambda key: op.start({0: seeds[: 1 + key % 4]}, key), range(16)))
    for key, batch in enumerate(kept):
        cases.assert_same_batch(batch.result(), cpu({0: seeds[: 1 + key % 4].numpy()}, key))


def test_the_shape_is_that_of_the_header():
    header = (cases.ROOT / "cuda" / "include" / "glt" / "cuda.h").read_text()
    body = re.search(r"typedef struct {([^}]*)} glt_khop_shape;", header).group(1)
    types = {"int32_t": c_int32, "int64_t": c_int64}
    fields = []
    for declared in re.sub(r"//[^\n]*", "", body).split(";")[:-1]:
        names = declared.replace("const", "").split()
        for name in "".join(names[1:]).split(","):
            fields.append((name.lstrip("*"), c_void_p if "*" in name or "*" in names[0] else types[names[0]]))
    assert cuda_khop_batch._Shape._fields_ == fields
