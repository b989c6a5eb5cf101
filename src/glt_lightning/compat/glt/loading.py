"""What all loaders with GLT's names share: a loader of ours, whose batches get GLT's fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glt_lightning.base import EDGE, OptionError
from glt_lightning.compat.glt.fields import GLTFields
from glt_lightning.compat.glt.folders import StoredEdges
from glt_lightning.compat.glt.given import read_seeds
from glt_lightning.loader import DistNeighborLoader, LinkSpec, LoaderSpec, Session, layers

WEIGHTS = "edge_weight"


class EdgeIndex(NamedTuple):
    """A layer as PyG's first loaders gave it. e_id: ids of the edges.  size: (number of sources, number of destinations)."""

    edge_index: Tensor
    e_id: Tensor
    size: tuple[int, int]


def as_pyg_v1(batch: Any, edge_ids: Any = None) -> tuple[int, Tensor, list[EdgeIndex]]:
    """(batch_size, n_id, layers, the widest first). edge_ids: as of `GLTFields`."""
    adjs = []
    for layer in layers(batch):
        ids = layer.edata["_ID"]
        sources, destinations = layer.size
        adjs.append(
            EdgeIndex(
                layer.edge_index, ids if edge_ids is None else edge_ids(EDGE, ids), (int(sources), int(destinations))
            )
        )
    return batch.batch_size, batch.n_id, adjs


class GLTLoader:
    """Yields batches with GLT's fields. Iterating it again is the next epoch; an iteration may be left early."""

    _session: Session
    _loader: DistNeighborLoader
    _fields: GLTFields
    batch_size: int
    drop_last: bool

    def __len__(self) -> int:
        """Batches of this process in an epoch."""
        plan = self._loader.plan
        if self.drop_last and plan.steps is None:
            return len(plan.seeds) // self.batch_size
        return len(plan)

    def __iter__(self) -> Iterator[Any]:
        for batch in islice(iter(self._loader), len(self)):
            yield self._fields(self._session.to_device(batch))

    def close(self) -> None:
        """Stops what samples. Safe to call twice."""
        self._session.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def node_spec(
    session: Session, name: str, input_nodes: Any, fanouts: Any, batch_size: int, shuffle: bool, with_weight: bool
) -> LoaderSpec:
    """A loader of this process's own seeds."""
    given = read_seeds(input_nodes, session.graph.schema)
    return LoaderSpec(
        name=name,
        num_neighbors=fanouts,
        batch_size=batch_size,
        seeds=given.seeds,
        split=given.split,
        node_type=None if given.split else given.node_type,
        per_rank=session.ranks.world_size > 1 and given.seeds is not None,
        shuffle=shuffle,
        exact=not shuffle,
        weight_attr=WEIGHTS if with_weight else None,
    )


def own_edges(
    session: Session, spec: LinkSpec, fanouts: Any, batch_size: int, shuffle: bool, with_weight: bool
) -> LinkSpec:
    """The same of edges."""
    return replace(
        spec,
        num_neighbors=fanouts,
        batch_size=batch_size,
        shuffle=shuffle,
        exact=not shuffle,
        per_rank=session.ranks.world_size > 1,
        weight_attr=WEIGHTS if with_weight else None,
    )


def every_epoch_anew(loader: DistNeighborLoader) -> DistNeighborLoader:
    """Without ``shuffle`` every seed comes once, as in an evaluation, but with new draws in each epoch, as in training."""
    plan = loader.plan
    if plan.exact and plan.world_size == 1:
        loader.follow(replace(plan, exact=False))
    return loader


def output_device(given: Any) -> torch.device:
    """Where batches go. Raises `OptionError` for a GPU that there is not."""
    device = torch.device("cpu" if given is None else given)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"to_device: {device}: this host has no CUDA device. Give torch.device('cpu').")
    return device


def stored_edges(session: Session, edge_dir: str) -> StoredEdges:
    return StoredEdges(session.graph.manifest, edge_dir)
