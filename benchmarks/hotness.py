"""How well a part's list of hot remote rows does, against the best list that there is.

    python benchmarks/hotness.py PARTITION [--num_neighbors 15,10,5] [--batch_size 1024] [--ratio 0.05,0.1,0.2]

Each part's training seeds are sampled for two epochs. The best static cache for the first epoch holds the rows that
this very epoch reads most: it knows the future, chance included. What a list can know at best is what the second epoch
shows: its counts are as good as any estimate from one epoch. ``remote`` is rows per batch that neither the part nor its
cache holds, mean over parts.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.graph import hot_path
from glt_lightning.kernels import KHopOp


def count(
    partition: LocalPartition, fanouts: list[int], size: int, seeds: np.ndarray, epoch: int
) -> tuple[np.ndarray, int]:
    """(accesses of each node, batches) of one epoch over the seeds (gids)."""
    edge_types = len(partition.schema.edge_types)
    sample = KHopOp(partition.view, [[k] * edge_types for k in fanouts])
    seed_type = partition.schema.node_index(partition.manifest.splits["train"].node_type)
    order = np.random.default_rng(epoch).permutation(seeds)
    accesses = np.zeros(partition.manifest.total_nodes, np.int32)
    batches = range(0, len(order), size)
    for begin in batches:
        for gid in sample({seed_type: order[begin : begin + size]}, (epoch << 32) + begin).gid:
            accesses[gid] += 1
    return accesses, len(batches)


def of_part(
    partition: LocalPartition, part: int, fanouts: list[int], size: int, ratios: list[float]
) -> list[list[float]]:
    """Remote rows per batch: without a cache, then for each ratio by the best list, by ours, by another epoch's counts."""
    manifest = partition.manifest
    owned = np.zeros(manifest.total_nodes, np.bool_)
    for bounds, offset in zip(manifest.bounds, manifest.offsets, strict=False):
        owned[offset + bounds[part] : offset + bounds[part + 1]] = True
    seeds = partition.split("train").gids
    seeds = seeds[owned[seeds]]
    now, batches = count(partition, fanouts, size, seeds, 0)
    other, _ = count(partition, fanouts, size, seeds, 1)
    now[owned], other[owned] = 0, 0
    policy = next(iter(manifest.hotness))
    folder = partition.directory
    ours = [np.load(folder / hot_path(part, policy, t, "gids"), mmap_mode="r") for t in range(len(manifest.num_nodes))]
    rows = [[now.sum() / batches]]
    for ratio in ratios:
        mine = np.concatenate([gids[: int(ratio * n)] for gids, n in zip(ours, manifest.num_nodes, strict=True)])
        best, later = (np.concatenate(_hottest(counts, manifest.offsets, ratio)) for counts in (now, other))
        rows.append([(now.sum() - now[cached].sum()) / batches for cached in (best, mine, later)])
    return rows


def _hottest(counts: np.ndarray, offsets: tuple[int, ...], ratio: float) -> list[np.ndarray]:
    """gids of the rows counted most often, of each type as many as the ratio allows."""
    pieces = [counts[a:b] for a, b in pairwise(offsets)]
    return [
        a + np.argsort(-piece, kind="stable")[: int(ratio * len(piece))]
        for a, piece in zip(offsets[:-1], pieces, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--num_neighbors", default="15,10,5")
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--ratio", default="0.05,0.1,0.2")
    given = parser.parse_args()
    partition = LocalPartition.open(given.partition)
    ratios = [float(r) for r in given.ratio.split(",")]
    fanouts = [int(k) for k in given.num_neighbors.split(",")]
    parts = [of_part(partition, p, fanouts, given.batch_size, ratios) for p in range(partition.manifest.num_parts)]
    common = {"bench": "hotness", "made_by": dict(partition.manifest.made_by), "hotness": [*partition.manifest.hotness]}
    report(**common, ratio=0.0, remote=float(np.mean([p[0] for p in parts])))
    for i, ratio in enumerate(ratios, start=1):
        best, ours, other = np.mean([p[i] for p in parts], axis=0).tolist()
        figures = {"best": best, "ours": ours, "other_epoch": other, "ours_over_best": ours / best}
        report(**common, ratio=ratio, **figures)


if __name__ == "__main__":
    main()
