"""Loaders over ranges of rows, with all neighbours of one hop: what layer-wise inference reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import SamplingOptions, WeightAttr
from glt_lightning.graph import Manifest
from glt_lightning.loader.collate import Collate
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.sampling import BatchRequest, EpochPlan, SamplerConfig, batch_key
from glt_lightning.workers import Producer


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """A loader of this rank's own ranges of rows, one after the other. Batches have ``row`` and, as PyG's, ``batch_size``.

    Attributes:
        name: Of the loader.
        node_type: Node type index of the rows.
        chunks: int64 [C, 2], begin and end of each batch's rows; none: one batch without seeds, so that every rank has one.
        hops: Number of hops, each with all neighbours.
        node_attrs: Batches have ids and attributes of nodes.
        edge_attrs: Batches have those of edges.
        weight_attr: Edges of which this attribute is 0 are left out; as of `LoaderSpec`.

    Example:
        >>> spec = RowSpec(name="rows", node_type=0, chunks=np.array([[0, 4], [4, 10]]), hops=1, node_attrs=False)
        >>> with Session("parts") as session:
        ...     [batch.row[: batch.batch_size].tolist() for batch in session.make_loader(spec)]
        [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    """

    name: str
    node_type: int
    chunks: np.ndarray
    hops: int = 1
    node_attrs: bool = True
    edge_attrs: bool = True
    weight_attr: WeightAttr = None

    def config(self, manifest: Manifest, sampling: SamplingOptions) -> SamplerConfig:
        """How its batches are sampled: all edges but those of weight 0, with values as floats."""
        types = len(manifest.schema.edge_types)
        return SamplerConfig.of(
            manifest,
            sampling.draw,
            weight_attr=self.weight_attr or sampling.weight_attr,
            seed_type=self.node_type,
            fanouts=((-1,) * types,) * self.hops or ((0,) * types,),
            with_row=True,
            node_attrs=self.node_attrs,
            edge_attrs=self.edge_attrs,
        )

    def make(
        self, manifest: Manifest, sampling: SamplingOptions, seed: int, rank: int, producer: Producer
    ) -> DistNeighborLoader:
        chunks = self.chunks if len(self.chunks) else np.zeros((1, 2), dtype=np.int64)
        plan = ChunkPlan(
            seeds=np.empty(0, dtype=np.int64),
            batch_size=1,
            seed=seed,
            loader=f"{self.name}/{rank}",
            exact=True,
            chunks=chunks,
            first=manifest.offsets[self.node_type],
        )
        config = self.config(manifest, sampling)
        return DistNeighborLoader(plan, config, producer, Collate(manifest, [self.node_type]), {})


@dataclass(frozen=True, kw_only=True)
class ChunkPlan(EpochPlan):
    """An `EpochPlan` of ranges of rows. chunks: int64 [C, 2].  first: gid of row 0."""

    chunks: np.ndarray
    first: int

    def __len__(self) -> int:
        return len(self.chunks)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[int, int, np.ndarray]]:
        for number in range(start, len(self.chunks)):
            begin, end = self.chunks[number].tolist()
            yield number, batch_key(self.seed, self.loader, 0, begin), np.arange(begin, end)

    def request(self, number: int, key: int, positions: np.ndarray) -> BatchRequest:
        return BatchRequest(number, key, positions + self.first, positions)
