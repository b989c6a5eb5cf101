"""Batches as subgraphs: GraphLearn-for-PyTorch's form of one, and PyG's of one subgraph for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import OptionError
from glt_lightning.graph import Manifest
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.sampling import Sample


class DistSubGraphLoader(DistNeighborLoader):
    """Yields the subgraphs of one rank: nodes around seeds, and all edges among them.

    Made by `Session.make_subgraph_loader`. A batch has each node once, in the order of ``n_id``, as ``node`` (``n_id``) and
    ``edge`` (``e_id``); ``mapping``, int64 [S], are the positions of the seeds, as in GraphLearn-for-PyTorch's loader of this
    name. Edges are in the order of destinations and stored rows, on any rank. Without hops (``num_neighbors=[]``) the nodes are
    the seeds.

    With ``disjoint`` it has a subgraph for each seed, one after the other, as PyG's ``ShaDowKHopSampler``: ``batch`` tells of
    each node in which it is, ``ptr``, int64 [S + 1], where the nodes of each begin, and ``root_n_id``, int64 [S], the positions
    of the seeds.

    Args:
        plan: The seeds of each batch.
        config: How neighbours are drawn.
        producer: Makes the batches.
        collate: Turns a `Sample` into a PyG object.
        identity: Facts that a checkpoint is compared with when it is loaded.
        transform: What every batch goes through before it is given out, or None.

    Example:
        >>> spec = LoaderSpec(name="own", seeds=np.array([7, 3, 7]), num_neighbors=[2], batch_size=3)
        >>> with Session("parts") as session:
        ...     batch = next(iter(session.make_subgraph_loader(spec)))
        >>> batch.node[batch.mapping]
        tensor([7, 3, 7])
    """


def check_subgraphs(spec: LoaderSpec, manifest: Manifest) -> None:
    """Raises `OptionError` for a spec that subgraphs cannot have."""
    where = f"loader {spec.name!r}: make_subgraph_loader"
    if not manifest.schema.homogeneous:
        raise OptionError(
            f"{where}: expected a graph with one node type and one edge type. Use make_loader with induced."
        )
    if spec.edge_format != "tensor":
        raise OptionError(
            f"{where}: edge_format: expected tensor, got {spec.edge_format}: nodes get another order. Remove it."
        )
    if spec.subgraph_type == "bidirectional":
        raise OptionError(f"{where}: subgraph_type: expected induced, got bidirectional. Remove it.")


class SubgraphCollate(Collate):
    """Turns samples into the batches of `DistSubGraphLoader`."""

    def __init__(self, manifest: Manifest, seed_types: Sequence[int]) -> None:
        super().__init__(manifest, seed_types)
        self._of_nodes = {*manifest.node_attrs(0), "n_id", "row", Sample.TREE_OF}
        self._of_edges = {*manifest.edge_attrs(0), "e_id"}

    @property
    def names(self) -> set[str]:
        return super().names | {"node", "edge", "mapping", "ptr", "root_n_id"}

    def __call__(self, sample: Sample) -> Batch:
        batch = super().__call__(sample)
        seeds = torch.arange(batch.batch_size)
        if Sample.TREE_OF in batch:
            tree = batch[Sample.TREE_OF]
            order = torch.argsort(tree, stable=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order))
            batch.root_n_id = place[seeds]
            batch.ptr = torch.cat([seeds.new_zeros(1), torch.bincount(tree, minlength=len(seeds)).cumsum(0)])
            kept = torch.arange(batch.edge_index.size(1))
        else:
            order, place = _distinct(batch.n_id)
            batch.mapping = place[seeds]
            kept = torch.nonzero(order[place[batch.edge_index[1]]] == batch.edge_index[1]).flatten()
        self._reorder(batch, order, place, kept)
        if "mapping" in batch:
            batch.node, batch.edge = batch.n_id, batch.e_id
        return batch

    def _reorder(self, batch: Any, order: Tensor, place: Tensor, kept: Tensor) -> None:
        """Puts nodes in another order. order: [n] lids.  place: [N] of each lid.  kept: edges."""
        del batch.num_sampled_nodes
        edges = place[batch.edge_index[:, kept]]
        by_destination = torch.argsort(edges[1], stable=True)
        batch.edge_index, kept = edges[:, by_destination], kept[by_destination]
        for names, rows in ((self._of_nodes, order), (self._of_edges, kept)):
            for name in names & set(batch.keys()):
                batch[name] = batch[name][rows]
        if "num_nodes" in batch._store:
            batch.num_nodes = len(order)


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """(the first position of each distinct id, ascending by id; which of these each id is)"""
    distinct, place = torch.unique(ids, return_inverse=True)
    order = torch.full((len(distinct),), len(ids)).scatter_reduce(0, place, torch.arange(len(ids)), "amin")
    return order, place
