"""How many of the hottest rows go to the device: within the budget, and none that is colder than one left out."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.graph import BatchArrays, LocalPartition, cache_choice as choose, node_path
from glt_lightning.graph.device_choice import choose_attributes, choose_lists
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.wide import wide_graph

SHARES = [0, 0.001, 0.05, 0.3, 0.7, 0.99, 1, 2]


def hotness(partition, part, node_type):
    return np.load(partition.directory / node_path(part, node_type, "hotness"))


def list_bytes(partition, found):
    view, total = partition.view, 0
    for p in partition.parts:
        for r, t in enumerate(view.dst_types):
            arrays, k = view.arrays(r, p), int(found.rows[t, p])
            pointers = len(arrays.indptr) if found.all_pointers else (k + 1) * (k > 0)
            total += 8 * pointers + int(arrays.indptr[k]) * arrays.indices.itemsize
    nodes = sum(partition.manifest.rows(p, t) for p in partition.parts for t in range(len(found.rows)))
    return total + view.id_bytes * (nodes if found.all_ids else int(found.rows.sum()))


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("parts", [None, [1, 2]])
def test_lists_within_a_budget(tmp_path, make, parts):
    partition = LocalPartition.open(partitioned(make(), tmp_path, 3).directory, parts=parts)
    view, need = partition.view, BatchArrays(partition).need.topology
    longest = max(
        16 + 4 * int(np.diff(view.arrays(r, p).indptr).max()) for r in range(len(view.keys)) for p in partition.parts
    )
    before = np.zeros_like(choose_lists(BatchArrays(partition), 0).rows)
    for share in SHARES:
        budget = int(share * need)
        found = choose_lists(BatchArrays(partition), budget)
        assert list_bytes(partition, found) <= budget
        assert list_bytes(partition, found) > min(budget, need) - 2 * longest
        assert found.rows[:, [p for p in range(3) if p not in partition.parts]].sum() == 0
        if found.all_pointers:
            assert found.all_ids
            assert np.all(found.rows >= before)
            before = found.rows
    assert found.all_pointers
    assert [found.rows[:, p].tolist() for p in partition.parts] == [
        [partition.manifest.rows(p, t) for t in range(len(found.rows))] for p in partition.parts
    ]


def test_attributes_by_heat_for_each_byte(tmp_path):
    partition = partitioned(small_hetero(), tmp_path, 3)
    need, (_, paper) = BatchArrays(partition, False).need.features, (0, partition.schema.node_index("paper"))
    for share in SHARES:
        found = choose_attributes(BatchArrays(partition, False), int(share * need))
        assert found.edges.sum() == 0
        taken = found.nodes[paper]
        assert need * min(share, 1) - 20 < 20 * taken.sum() <= need * share
        heat = [hotness(partition, p, paper) for p in range(3)]
        kept = [h[k - 1] for h, k in zip(heat, taken, strict=True) if k]
        left = [h[k] for h, k in zip(heat, taken, strict=True) if k < len(h)]
        assert not kept or not left or min(kept) >= max(left)


def test_edges_lie_with_their_destinations(tmp_path):
    """They are as many bytes as nodes here, and both get a share."""
    partition = partitioned(wide_graph(), tmp_path, 2)
    need = BatchArrays(partition).need.features
    for share in SHARES:
        found = choose_attributes(BatchArrays(partition), int(share * need))
        widths = (700 * 4 + 8 + 2 + 3 * 400 * 4, 300 * 4 + 4 + partition.edge_shards(0, "edge_ids").row_bytes)
        nbytes = int(found.nodes.sum()) * widths[0] + int(found.edges.sum()) * widths[1]
        assert min(share, 1) * need - sum(widths) < nbytes <= share * need
        assert not 0.05 < share < 1 or (found.nodes.sum() and found.edges.sum())


def test_few_blocks_cut_as_fine(tmp_path, monkeypatch):
    """Large parts are cut by blocks and then within one of them."""
    monkeypatch.setattr(choose, "_BLOCKS", 2)
    partition = partitioned(small_graph(), tmp_path, 1)
    need = BatchArrays(partition, False).need.features
    for share in SHARES:
        found = choose_attributes(BatchArrays(partition, False), int(share * need))
        assert min(share, 1) * need - 20 < 20 * found.nodes.sum() <= share * need


def test_without_hotness_all_parts_fill_up_together(tmp_path):
    partition = partitioned(small_graph(), tmp_path, 3)
    arrays = {path: entry for path, entry in partition.manifest.arrays.items() if "hot" not in path}
    object.__setattr__(partition.manifest, "arrays", arrays)
    found = choose_attributes(BatchArrays(partition, False), BatchArrays(partition, False).need.features // 2)
    assert found.nodes.tolist() == [[50, 50, 50]]
