"""Hit rates of caches: what of the sampled batches lies in the first entries of each part's list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import KHopOp
from glt_lightning.loader import TrafficOptions
from glt_lightning.loader.traffic.predict import TrafficPrediction, presampled_lists
from glt_lightning.sampling import EpochPlan, fanout_table
from tests.helpers.partitions import partitioned, small_graph, small_hetero

RATIOS = (0.05, 0.2, 1.0)
OPTIONS = TrafficOptions(num_neighbors=[4, 3], batch_size=8, batches=4, cache=RATIOS)


def without_lists(partition: LocalPartition) -> LocalPartition:
    """As a folder that has no rankings of remote rows."""
    arrays = {path: entry for path, entry in partition.manifest.arrays.items() if "/hot/" not in path}
    manifest = replace(partition.manifest, arrays=arrays, hotness={})
    return LocalPartition(partition.directory, manifest, partition.parts)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_stored_lists(tmp_path: Path, make: Callable[[], Any]) -> None:
    """Counted by hand from the very batches."""
    partition = partitioned(make(), tmp_path, 3, undirected=True)
    (policy,) = partition.manifest.remote_policies
    manifest, seeds = partition.manifest, partition.split("train")
    sample = KHopOp(partition.view, fanout_table([4, 3], partition.schema))
    (traffic,) = [t for t in TrafficPrediction(partition, OPTIONS).of_parts() if t.placement == "global"]
    for part in traffic.parts:
        plan = EpochPlan(
            seeds=seeds.gids, batch_size=8, seed=0, loader="train", rank=part.part, world_size=3, shuffle=True
        )
        remote, hits = 0, dict.fromkeys(RATIOS, 0)
        for request in list(plan.requests(0))[: OPTIONS.batches]:
            found = sample({seeds.node_type: request.seeds}, request.key)
            for t, gids in enumerate(found.gid):
                own = [manifest.offsets[t] + b for b in manifest.bounds[t][part.part : part.part + 2]]
                others = set(gids[(gids < own[0]) | (gids >= own[1])].tolist())
                hottest = np.load(partition.directory / f"part{part.part}/hot/{policy}/{t}/gids.npy").tolist()
                remote += len(others)
                for ratio in RATIOS:
                    hits[ratio] += len(others & set(hottest[: int(ratio * manifest.num_nodes[t])]))
        assert part.remote_nodes.mean * part.batches == remote
        assert [(c.policy, c.ratio) for c in part.caches] == [(policy, ratio) for ratio in RATIOS]
        for cache in part.caches:
            assert cache.hit_rate == pytest.approx(hits[cache.ratio] / remote)
            missed = part.remote_rows.mean - hits[cache.ratio] / part.batches
            assert cache.remote_rows.mean == pytest.approx(missed)
            assert cache.bytes.mean < part.bytes.mean


def test_presampled(tmp_path: Path) -> None:
    """Without lists in the folder, other batches say what is hot; a cache of everything hits always."""
    partition = without_lists(partitioned(small_graph(), tmp_path, 2, undirected=True))
    for traffic in TrafficPrediction(partition, OPTIONS).of_parts():
        for part in traffic.parts:
            assert {cache.policy for cache in part.caches} == {"presampled"}
            small, medium, whole = part.caches
            assert 0.05 < small.hit_rate < medium.hit_rate < whole.hit_rate == 1
            assert whole.bytes.mean < medium.bytes.mean < small.bytes.mean < part.bytes.mean
            row_bytes = 4 + 3 * 4 + 8  # n_id, x, y
            assert [cache.cache_bytes for cache in part.caches] == [15 * row_bytes, 60 * row_bytes, 150 * row_bytes]


def test_presampled_order(tmp_path: Path) -> None:
    """Most often seen first, then by row in the own part; never the part's own nodes."""
    manifest = partitioned(small_graph(12), tmp_path, 3).manifest
    (bounds,) = manifest.bounds
    assert bounds == (0, 4, 8, 12)
    seen = np.zeros(12, dtype=np.int32)
    seen[[9, 2, 5]] = (1, 3, 7)
    lists = presampled_lists(manifest, (1,), [seen], 0.5)
    assert lists.sizes(0.5) == [6]
    ranked = [gid for gid in range(12) if lists.cached(0, np.array([gid]), 0.5)[0]]
    assert ranked == [0, 1, 2, 8, 9, 10]  # after 2 and 9 the first rows of both parts: 0, 8, 1, 10
    assert [gid for gid in range(12) if lists.cached(0, np.array([gid]), 0.2)[0]] == [2, 9]


def test_no_cache_is_asked_for(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    traffic = TrafficPrediction(partition, replace(OPTIONS, cache=())).of_parts()
    assert all(part.caches == () for each in traffic for part in each.parts)
