"""The graph of the GPU benchmark: the model of make_graph.py, drawn on the device in seconds, as a partition folder.

One part, its rows ordered by degree as the partitioner would; the user's ids are random. `--scale 1` of benchmarks/gpu.py
has the size of ogbn-products: 2.4 M nodes, 124 M directed edges, 100 float32 features. The same seed gives the same graph
on the same kind of device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.make_graph import CLASSES, EDGES, NODES, TRAIN, WIDTH
from glt_lightning.base import GraphSchema
from glt_lightning.graph import ArrayEntry, LocalPartition, Manifest, SplitEntry, edge_path, node_path, split_path
from glt_lightning.partition.arrays import ArrayWriter

_CHUNK = 1 << 24  # edges that are drawn at a time
_INSIDE = 0.8  # of the edges, the share within a community
_SCHEMA = GraphSchema(("node",), (("node", "to", "node"),), homogeneous=True)


@dataclass(frozen=True)
class Drawn:
    """In the order of rows and on the device: indptr int64 [N + 1]; indices int32 [E], rows of the sources, ascending by
    their user's ids; n_id int32 [N], the user's ids; label int64 [N]."""

    indptr: Tensor
    indices: Tensor
    n_id: Tensor
    label: Tensor


class _Model:
    """Degree-corrected stochastic block model: who may be an end of an edge, and how likely."""

    def __init__(self, nodes: int, random: torch.Generator) -> None:
        self._nodes, self._random, device = nodes, random, random.device
        share = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(CLASSES, 2.0))).to(device)
        self.label = torch.bucketize(self._uniform(nodes), share.cumsum(0)).clamp(max=CLASSES - 1)
        weight = (1 - self._uniform(nodes)).pow(-1 / 1.5).clamp(max=400.0)
        self._order = self.label.argsort(stable=True)
        self._heavy = weight[self._order].cumsum(0)
        ends = torch.searchsorted(self.label[self._order].contiguous(), torch.arange(CLASSES + 1, device=device))
        self._edge = torch.cat([self._heavy.new_zeros(1), self._heavy])[ends]

    def edges(self, count: int) -> Tensor:
        """int64: keys min * N + max of at most ``count`` edges, without self loops; repeats occur."""
        total = self._heavy[-1]
        first = self._at(self._uniform(count) * total)
        low, high = self._edge[self.label[first]], self._edge[self.label[first] + 1]
        same = self._uniform(count) < _INSIDE
        place = self._uniform(count) * torch.where(same, high - low, total) + torch.where(same, low, 0.0)
        second = self._at(place)
        keep = first != second
        return (torch.minimum(first, second) * self._nodes + torch.maximum(first, second))[keep]

    def _uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, device=self._random.device, generator=self._random)

    def _at(self, place: Tensor) -> Tensor:
        return self._order[torch.searchsorted(self._heavy, place).clamp(max=self._nodes - 1)]


def draw(scale: float, device: torch.device, seed: int = 0) -> Drawn:
    """The graph without features, both directions of each edge. Takes some 7 GB of the device for scale 1."""
    nodes, edges = int(NODES * scale), int(EDGES * scale)
    random = torch.Generator(device).manual_seed(seed)
    model = _Model(nodes, random)
    keys = torch.empty(0, dtype=torch.int64, device=device)
    while len(keys) < edges:
        missing = edges - len(keys)
        more = [model.edges(min(_CHUNK, missing + missing // 8 + 64)) for _ in range(-(-missing // _CHUNK))]
        keys = torch.cat([keys, *more]).unique()
    # which of the surplus go is drawn, too, since the keys are in order
    drop = torch.randperm(len(keys), device=device, generator=random)[edges:]
    kept = torch.ones(len(keys), dtype=torch.bool, device=device)
    kept[drop] = False
    keys = keys[kept]
    return _stored(torch.cat([keys, keys % nodes * nodes + keys // nodes]), model.label)


def _stored(edges: Tensor, label: Tensor) -> Drawn:
    """edges: int64 [E], destination * N + source; label: [N]; both by the user's ids."""
    nodes, device = len(label), label.device
    degrees = torch.bincount(edges // nodes, minlength=nodes)
    n_id = degrees.argsort(descending=True, stable=True)
    row = torch.empty_like(n_id)
    row[n_id] = torch.arange(nodes, device=device)
    edges = (row[edges // nodes] * nodes + edges % nodes).sort().values
    indptr = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
    torch.cumsum(degrees[n_id], 0, out=indptr[1:])
    return Drawn(indptr, row[edges % nodes].to(torch.int32), n_id.to(torch.int32), label[n_id])


def write(folder: Path, drawn: Drawn, seed: int = 0) -> LocalPartition:
    """The drawn graph with features that follow the labels and a training split, as a partition folder of one part."""
    nodes, edges = len(drawn.label), len(drawn.indices)
    random = torch.Generator(drawn.label.device).manual_seed(seed + 1)
    arrays: dict[str, ArrayEntry] = {}

    def put(path: str, values: Tensor) -> None:
        rows = values.cpu().numpy()
        with ArrayWriter(folder, path, rows.dtype, rows.shape[1:]) as writer:
            writer.write(rows)
        assert writer.entry is not None
        arrays[path] = writer.entry

    put(edge_path(0, 0, "indptr"), drawn.indptr)
    put(edge_path(0, 0, "indices"), drawn.indices)
    put(edge_path(0, 0, "edge_ids"), torch.arange(edges, dtype=torch.int32))
    put(node_path(0, 0, "n_id"), drawn.n_id)
    put(node_path(0, 0, "hotness"), drawn.indptr.diff().to(torch.float32))
    put(node_path(0, 0, "y"), drawn.label)
    center = torch.randn(CLASSES, WIDTH, device=random.device, generator=random)
    noise = torch.randn(nodes, WIDTH, device=random.device, generator=random)
    put(node_path(0, 0, "x"), noise.mul_(2).add_(center[drawn.label]))
    train = torch.randperm(nodes, device=random.device, generator=random)[: max(1, TRAIN * nodes // NODES)]
    put(split_path("train"), train.sort().values)
    Manifest(
        schema=_SCHEMA,
        num_parts=1,
        num_nodes=(nodes,),
        num_edges=(edges,),
        bounds=((0, nodes),),
        id_dtype="int32",
        edge_id_dtype="int32",
        num_classes=CLASSES,
        target_type="node",
        splits={"train": SplitEntry("node", len(train))},
        arrays=arrays,
        made_by={"source": "benchmarks/gpu_graph.py", "nodes": nodes, "edges": edges, "seed": seed},
        hotness={"degree": {}},
    ).save(folder)
    return LocalPartition.open(folder)


def make(folder: Path, scale: float, device: torch.device) -> LocalPartition:
    return write(folder, draw(scale, device))
