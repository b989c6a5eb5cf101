"""GraphLearn-for-PyTorch's loaders over ours: batches with the fields of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from glt_lightning.base import SamplingOptions
from glt_lightning.compat.glt.distributed.client import seeds_of_split
from glt_lightning.compat.glt.distributed.dataset import DistDataset
from glt_lightning.compat.glt.distributed.options import AnyWorkerOptions, CollocatedDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.places import Place, place_of
from glt_lightning.compat.glt.distributed.session import current
from glt_lightning.compat.glt.fields import GLTFields
from glt_lightning.compat.glt.loading import (
    GLTLoader,
    every_epoch_anew,
    node_spec,
    output_device,
    own_edges,
    stored_edges,
)
from glt_lightning.compat.glt.one_batch import link_spec
from glt_lightning.loader import DistNeighborLoader as OurLoader, Session


class DistLoader(GLTLoader):
    """What GLT's loaders share. Iterating it again is the next epoch; an iteration may be left early.

    Args:
        data: A `DistDataset`; None with `RemoteDistSamplingWorkerOptions`.
        make: Makes the loader of ours.
        fields: What batches get.
        batch_size, drop_last: As the loaders say.
        to_device: Where batches go.
        random_seed: Of all draws; None: torch's, of the first process.
        with_edge: Batches have ``edge``.
        worker_options: Who samples; None: this process.

    Example:
        >>> issubclass(glt.distributed.DistSubGraphLoader, DistLoader)
        True
    """

    def __init__(
        self,
        data: DistDataset | None,
        make: Callable[[Session, str], tuple[OurLoader, GLTFields]],
        *,
        batch_size: int,
        drop_last: bool,
        to_device: Any,
        random_seed: int | None,
        with_edge: bool,
        worker_options: AnyWorkerOptions | None,
    ) -> None:
        self.data = data
        self.worker_options = worker_options or CollocatedDistSamplingWorkerOptions()
        self.batch_size, self.drop_last = batch_size, drop_last
        self.to_device = output_device(to_device)
        place = place_of(data, self.worker_options)
        seed = _agreed(place, torch.initial_seed() if random_seed is None else random_seed)
        self._session = Session(
            place.graph,
            SamplingOptions(with_edge=with_edge, **place.sampling),
            seed=seed,
            ranks=place.ranks,
            device=self.to_device,
        )
        if (member := current()) is not None:
            member.opened.append(self)
        try:
            owner = member or data
            assert owner is not None
            owner.loaders += 1  # which is the same on all ranks, as they make their loaders in one order
            self._loader, fields = make(self._session, f"loader {owner.loaders}")
        except BaseException:
            self.close()
            raise
        ours = {"labels": place.labels, "labelled": place.labelled, "edge_ids": place.edge_ids}
        self._fields = replace(fields, with_edge=with_edge, **ours)

    def shutdown(self) -> None:
        """Ends its iterations. Its sampler goes on where other processes may ask it for rows, until they have all ended, too."""
        self._loader.close()
        member = current()
        if member is None or member.group is None or member.context.is_client():
            self.close()


class DistNeighborLoader(DistLoader):
    """Batches around seed nodes.

    Args:
        data: A `DistDataset`; None with `RemoteDistSamplingWorkerOptions`.
        num_neighbors: Fan-outs, first hop first, or by edge type; -1 for all, and by edge type 0 for none.
        input_nodes: This process's seeds: ids or a mask, (node type, ids), a `Split`, or paths of tensors.
        batch_size, shuffle, drop_last: Of the seeds of this process. With ``shuffle`` all processes have equally many batches.
        with_edge: Batches have ``edge``, the user's ids of edges.
        with_weight: Draw by ``edge_weight``.
        edge_dir: ``out`` or ``in``, as the partition was made.
        collect_features: Batches have ``x`` and ``edge_attr``.
        to_device: Where batches go.
        random_seed: Of all draws; None: torch's.
        worker_options: Who samples; None: this process.

    Example:
        >>> data = glt.distributed.DistDataset()
        >>> data.load("parts")
        >>> loader = glt.distributed.DistNeighborLoader(data, [-1], torch.tensor([3, 5]), batch_size=2, edge_dir="in")
        >>> [(batch.batch.tolist(), batch.node.tolist()) for batch in loader]
        [([3, 5], [3, 5, 1, 2, 4])]
        >>> loader.shutdown()
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: str = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: AnyWorkerOptions | None = None,
    ) -> None:
        def make(context: Session, name: str) -> tuple[OurLoader, GLTFields]:
            stored = stored_edges(context, edge_dir)
            fanouts = stored.fanouts(num_neighbors)
            seeds = seeds_of_split(input_nodes, worker_options)
            spec = node_spec(context, name, seeds, fanouts, batch_size, shuffle, with_weight)
            return every_epoch_anew(context.make_loader(spec)), GLTFields(collect_features=collect_features)

        super().__init__(
            data,
            make,
            batch_size=batch_size,
            drop_last=drop_last,
            to_device=to_device,
            random_seed=random_seed,
            with_edge=with_edge,
            worker_options=worker_options,
        )


class DistSubGraphLoader(DistLoader):
    """Batches of all edges among seeds and their neighbours: ``node``, ``edge``, ``mapping``. Homogeneous graphs alone.

    num_neighbors: None: the seeds alone.  input_nodes, shuffle, with_weight, edge_dir, collect_features: as of
    `DistNeighborLoader`.

    >>> data = glt.distributed.DistDataset()
    >>> data.load("parts")
    >>> loader = glt.distributed.DistSubGraphLoader(data, torch.tensor([5, 3, 4]), batch_size=3, edge_dir="in")
    >>> [(batch.node.tolist(), batch.mapping.tolist(), batch.num_edges) for batch in loader]
    [([3, 4, 5], [2, 0, 1], 3)]
    >>> loader.shutdown()
    """

    def __init__(
        self,
        data: DistDataset | None,
        input_nodes: Any,
        num_neighbors: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: str = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: AnyWorkerOptions | None = None,
    ) -> None:
        def make(context: Session, name: str) -> tuple[OurLoader, GLTFields]:
            stored = stored_edges(context, edge_dir)
            fanouts = stored.fanouts([] if num_neighbors is None else num_neighbors)
            seeds = seeds_of_split(input_nodes, worker_options)
            spec = node_spec(context, name, seeds, fanouts, batch_size, shuffle, with_weight)
            return every_epoch_anew(context.make_subgraph_loader(spec)), GLTFields(collect_features=collect_features)

        super().__init__(
            data,
            make,
            batch_size=batch_size,
            drop_last=drop_last,
            to_device=to_device,
            random_seed=random_seed,
            with_edge=with_edge,
            worker_options=worker_options,
        )


class DistLinkNeighborLoader(DistLoader):
    """Batches around edges and negatives.

    edge_label_index: edges of this process, int [2, S], or (edge type, edges).  edge_label: [S].  neg_sampling: a
    `NegativeSampling`, ``binary`` or ``("triplet", 2)``.  num_neighbors, shuffle, with_weight, edge_dir, collect_features: as of
    `DistNeighborLoader`.

    >>> data, edges = glt.distributed.DistDataset(), torch.tensor([[3, 5], [4, 7]])
    >>> data.load("parts")
    >>> loader = glt.distributed.DistLinkNeighborLoader(
    ...     data, [1], 2, edge_label_index=edges, neg_sampling="binary", edge_dir="in"
    ... )
    >>> for batch in loader:
    ...     print(batch.node[batch.edge_label_index[:, :2]].tolist(), batch.edge_label.tolist())
    [[4, 7], [3, 5]] [1.0, 1.0, 0.0, 0.0]
    >>> loader.shutdown()
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: str = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: AnyWorkerOptions | None = None,
    ) -> None:
        def make(context: Session, name: str) -> tuple[OurLoader, GLTFields]:
            stored = stored_edges(context, edge_dir)
            spec, swap = link_spec(stored, name, edge_label_index, edge_label, neg_sampling)
            spec = own_edges(context, spec, stored.fanouts(num_neighbors), batch_size, shuffle, with_weight)
            loader = every_epoch_anew(context.make_loader(spec))
            return loader, GLTFields(collect_features=collect_features, swap=swap)

        super().__init__(
            data,
            make,
            batch_size=batch_size,
            drop_last=drop_last,
            to_device=to_device,
            random_seed=random_seed,
            with_edge=with_edge,
            worker_options=worker_options,
        )


def _agreed(place: Place, seed: int) -> int:
    """Rank 0's seed."""
    return int(place.ranks.exchange(str(seed))[0]) % (1 << 63)
