"""Which nodes' rows go to the training device: equals brute force over all nodes."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.graph import DeviceIndex, LocalPartition, node_path
from glt_lightning.graph.cache_choice import remote_hotness
from glt_lightning.graph.device_choice import node_bytes
from tests.helpers.partitions import partitioned, small_graph, small_hetero


def heat_by_hand(partition):
    """gid -> [expected accesses, node type], of nodes that batches may contain."""
    manifest, found = partition.manifest, {}
    (policy,) = manifest.hotness
    for t in range(len(manifest.num_nodes)):
        for part in partition.parts:
            first = manifest.offsets[t] + manifest.bounds[t][part]
            own = np.load(partition.directory / node_path(part, t, "hotness"))
            listed = zip(*remote_hotness(partition, policy, part, t), strict=True)
            for gid, heat in [*zip(range(first, first + len(own)), own, strict=True), *listed]:
                found.setdefault(int(gid), [0.0, t])[0] += float(heat)
    return found


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("parts", [[0, 1, 2], [1], [0, 2]])
def test_most_heat_for_each_byte(tmp_path, make, parts):
    partition = LocalPartition.open(partitioned(make(), tmp_path, 3).directory, parts=parts)
    sizes = [node_bytes(partition, t) for t in range(len(partition.schema.node_types))]
    assert sizes == ([28] if make is small_graph else [8, 28])
    heat = {gid: (h / sizes[t], sizes[t]) for gid, (h, t) in heat_by_hand(partition).items()}
    for budget in (1, 500, 3000, 1 << 20):
        chosen = np.concatenate(DeviceIndex.choose(partition, budget)[0]).tolist()
        assert chosen == sorted(set(chosen))
        taken = sum(heat[gid][1] for gid in chosen)
        left = [heat[gid][0] for gid in heat if gid not in set(chosen)]
        assert taken <= budget
        assert not left or taken > budget - max(sizes)
        assert not left or not chosen or min(heat[gid][0] for gid in chosen) >= max(left)


def test_by_edges_without_hotness(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    partition = LocalPartition.open(whole.directory, parts=[0])
    expected, nbytes = DeviceIndex.choose(partition, 1400)
    arrays = dict(partition.manifest.arrays)
    for path in [path for path in arrays if "hot" in path]:
        del arrays[path]
    object.__setattr__(partition.manifest, "arrays", arrays)
    (found,), same = DeviceIndex.choose(partition, 1400)
    assert len(found) == len(expected[0]) == 50
    assert nbytes == same == 1400
    counts = np.bincount(np.load(whole.directory / "part0/edges/0/indices.npy"), minlength=300)
    assert counts[found].min() >= np.delete(counts, found).max()
    own = partition.manifest.rows(0, 0)
    assert 0 < np.count_nonzero(found < own) < 50  # own nodes and others


def test_members_through_a_path(tmp_path):
    manifest = partitioned(small_hetero(), tmp_path).manifest
    gids = [np.empty(0, dtype=np.int64), np.array([80, 100, 279], dtype=np.int64)]
    made = DeviceIndex.create(manifest, gids)
    opened = DeviceIndex.open(made.path, manifest)
    made.close()
    made.close()
    assert opened.tables[0] is None
    assert opened.tables[1].find(np.array([279, 80, 81, 100])).tolist() == [2, 0, -1, 1]
    with pytest.raises(DataError):
        DeviceIndex.open(made.path, manifest)
