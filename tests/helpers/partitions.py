"""Small partition folders made by the real partitioner."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import PartitionOptions
from glt_lightning.graph import LocalPartition, manifest_checks
from glt_lightning.partition import open_source, partition_graph


def small_graph(nodes: int = 300, seed: int = 0) -> Data:
    """Skewed degrees, self loops, parallel edges; features that name their node; splits of a third each."""
    rng = np.random.default_rng(seed)
    ends = (rng.random((2, 8 * nodes)) ** 2 * nodes).astype(np.int64)
    order = torch.from_numpy(rng.permutation(nodes))
    data = Data(
        x=torch.arange(nodes * 3, dtype=torch.float32).reshape(nodes, 3),
        y=torch.from_numpy(rng.integers(0, 4, nodes)),
        edge_index=torch.from_numpy(ends),
        edge_attr=torch.arange(ends.shape[1] * 2, dtype=torch.float32).reshape(-1, 2),
    )
    for i, name in enumerate(("train", "val", "test")):
        mask = torch.zeros(nodes, dtype=torch.bool)
        mask[order[i * nodes // 3 : (i + 1) * nodes // 3]] = True
        data[f"{name}_mask"] = mask
    return data


def small_hetero(seed: int = 0) -> HeteroData:
    """Authors write papers, papers cite papers; authors have no features."""
    rng = np.random.default_rng(seed)
    data = HeteroData()
    data["author"].num_nodes = 80
    data["paper"].x = torch.arange(600, dtype=torch.float32).reshape(200, 3)
    data["paper"].y = torch.from_numpy(rng.integers(0, 4, 200))
    for name, begin in (("train", 0), ("val", 90), ("test", 140)):
        mask = torch.zeros(200, dtype=torch.bool)
        mask[begin : begin + 50] = True
        data["paper"][f"{name}_mask"] = mask
    writes = np.stack([rng.integers(0, 80, 500), (rng.random(500) ** 2 * 200).astype(np.int64)])
    cites = (rng.random((2, 900)) ** 2 * 200).astype(np.int64)
    data["author", "writes", "paper"].edge_index = torch.from_numpy(writes)
    data["paper", "cites", "paper"].edge_index = torch.from_numpy(cites)
    return data


def partitioned(
    data: Data | HeteroData,
    folder: Path,
    parts: int = 1,
    *,
    undirected: bool | None = None,
    storage: dict[str, str] | None = None,
    weights: list[str] | None = None,
    time_attr: str | None = None,
    algorithm: str = "random",
) -> LocalPartition:
    options = PartitionOptions(
        num_parts=parts, storage=storage or {}, weights=weights or [], time_attr=time_attr, algorithm=algorithm
    )
    target = folder / f"parts{parts}"
    kept = _kept_at(data, f"{options} {undirected}")
    if kept is not None and kept.exists() and not target.exists():
        shutil.copytree(kept, target)
        return LocalPartition.open(target)
    source = open_source(data, str(folder))
    partition_graph(source, target, options, undirected=undirected, normalize="none", progress=False)
    if kept is not None and not kept.exists():
        shutil.copytree(target, kept)
    return LocalPartition.open(target)


def keep_in(folder: Path) -> None:
    """Has `partitioned` make each partition once from now on, and copy it from ``folder`` later, in a tenth of the time."""
    global _kept_in
    _kept_in = folder


_kept_in: Path | None = None


def _kept_at(data: Data | HeteroData, options: str) -> Path | None:
    """The folder of a partition, by all that it is made of. None for data of other kinds than plain tensors and numbers."""
    if _kept_in is None or type(data) not in (Data, HeteroData):
        return None
    digest = hashlib.sha256(f"{type(data)} {options} {manifest_checks.CHUNK_BYTES}".encode())  # which tests change
    for store in data.stores:
        for name, value in store.items():
            digest.update(repr((store.__dict__.get("_key"), name)).encode())
            if type(value) is torch.Tensor and value.layout is torch.strided:
                digest.update(repr((value.dtype, value.shape)).encode())
                digest.update(value.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy())
            elif isinstance(value, (int, float, str)):
                digest.update(repr(value).encode())
            else:
                return None
    return _kept_in / digest.hexdigest()


def gids_of(whole: LocalPartition) -> list[np.ndarray]:
    """Per node type int64 [N]: the gid of each user id."""
    offsets, found = whole.view.type_offsets, []
    for t, n in enumerate(whole.manifest.num_nodes):
        found.append(offsets[t] + np.argsort(whole.node_shards(t, "n_id").gather(offsets[t] + np.arange(n))))
    return found
