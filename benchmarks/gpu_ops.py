"""What the device ops do in a second: sampling batches, gathering rows. Each is compared with the CPU before it is timed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_measure import Clock, Rounds, Spread
from glt_lightning.graph import DeviceStore, LocalPartition, edge_path, open_array
from glt_lightning.kernels import CudaKHopOp, CudaShards, DeviceSubgraph, Kernels, KHopOp, Subgraph

FANOUTS = [15, 10, 5]
BATCH = 1024
QUEUED = 8  # gathers a round: queueing one takes up to a third of the time that the device needs for it


def stored(partition: LocalPartition, path: str) -> np.ndarray:
    """An array of the folder, mapped."""
    return open_array(partition.directory, path, partition.manifest.arrays[path])


class Different(Exception):
    """The device's result is not the CPU's: no time of it is worth anything."""


def require_same(what: str, got: Tensor, want: np.ndarray) -> None:
    if not np.array_equal(got.cpu().numpy(), want):
        raise Different(f"{what}: the device's differ from the CPU's.")


def sampling(
    store: DeviceStore,
    partition: LocalPartition,
    clock: Clock,
    rounds: Rounds,
    *,
    batches: int,
    batch_size: int = BATCH,
) -> Spread:
    """Sampled edges per second: k-hop batches one after the other, with user ids and local ids."""
    seeds = partition.split("train").gids
    rng, kernels = np.random.default_rng(0), store.kernels
    drawn = [rng.choice(seeds, min(batch_size, len(seeds)), replace=False) for _ in range(batches)]
    fanouts = [[k] for k in FANOUTS]
    op, cpu = CudaKHopOp(store.graph, fanouts), KHopOp(partition.view, fanouts)
    on_device = [torch.from_numpy(s).to(kernels.device) for s in drawn]
    for key in range(2):
        _require_same_batch(op({0: on_device[key % batches]}, key), cpu({0: drawn[key % batches]}, key))

    def work() -> float:
        return sum(float(op({0: s}, key).edges_per_hop.sum()) for key, s in enumerate(on_device))

    return rounds.rate(clock, work)


def _require_same_batch(got: DeviceSubgraph, want: Subgraph) -> None:
    for name in ("gid", "uid", "src", "dst"):
        for mine, theirs in zip(getattr(got, name), getattr(want, name), strict=True):
            require_same(f"sampling, {name}", mine, theirs)


def gather(
    shards: CudaShards, rows: np.ndarray, kernels: Kernels, clock: Clock, rounds: Rounds, *, count: int
) -> Spread:
    """Bytes per second of random rows, each counted once. rows: the same array on the host, [N, ...]."""
    ids = torch.randint(len(rows), (count,), device=kernels.device)
    out = shards.gather(ids)
    few = ids[: 1 << 14]
    require_same("gather", out[: len(few)], rows[few.cpu().numpy()])

    def work() -> float:
        for _ in range(QUEUED):
            shards.gather(ids, out)
        return QUEUED * out.nbytes

    found = rounds.rate(clock, work)
    shards.check()
    return found


class TorchSampler:
    """A peer that is always here: the same fan-outs in plain torch, with replacement, without keyed draws and order."""

    def __init__(self, partition: LocalPartition, device: torch.device) -> None:
        self._indptr, self._indices = (
            torch.from_numpy(np.array(stored(partition, edge_path(0, 0, name)))).to(device)
            for name in ("indptr", "indices")
        )

    def batches(self, seeds: Tensor, count: int) -> Iterator[int]:
        """The numbers of edges of some batches of these seeds."""
        for _ in range(count):
            yield self._batch(seeds)

    def _batch(self, seeds: Tensor) -> int:
        nodes, frontier, edges = seeds, seeds, 0
        for fanout in FANOUTS:
            first = self._indptr[frontier]
            degree = self._indptr[frontier + 1] - first
            share = torch.rand(len(frontier), fanout, device=seeds.device)
            picks = first[:, None] + (share * degree[:, None]).long()
            source = self._indices[picks[degree > 0].reshape(-1)].long()
            found, place = torch.cat([nodes, source]).unique(return_inverse=True)
            known = torch.zeros(len(found), dtype=torch.bool, device=seeds.device)
            known[place[: len(nodes)]] = True
            frontier = found[~known]
            nodes, edges = torch.cat([nodes, frontier]), edges + len(source)
        return edges
