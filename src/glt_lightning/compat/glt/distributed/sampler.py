"""GraphLearn-for-PyTorch's `DistNeighborSampler`: seeds in, a batch out, of a partitioned graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.compat.glt.distributed.dataset import DistDataset
from glt_lightning.compat.glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.places import place_of
from glt_lightning.compat.glt.distributed.session import current
from glt_lightning.compat.glt.fields import GLTFields
from glt_lightning.compat.glt.loading import node_spec, output_device, stored_edges
from glt_lightning.compat.glt.sampled import NodeSamplerInput
from glt_lightning.loader import Session


class DistNeighborSampler:
    """Batches of whatever seeds a worker asks for. All workers make it, a collective call; each then asks on its own.

    Args:
        data: A `DistDataset`.
        num_neighbors: Fan-outs, first hop first, or by edge type.
        with_edge: Batches have ``edge``.
        with_neg: No effect: the edges that are given say it.
        with_weight: Draw by ``edge_weight``.
        edge_dir: As the partition was made.
        collect_features: Batches have ``x`` and ``edge_attr``.
        channel: None: batches are returned.
        use_all2all, concurrency: No effect.
        device: Where batches go.
        seed: Of all draws; None: torch's. Each call draws anew.

    Example:
        >>> data = glt.distributed.DistDataset()
        >>> data.load("parts")
        >>> sampler = glt.distributed.DistNeighborSampler(data, [-1], edge_dir="in")
        >>> sampler.sample_from_nodes(torch.tensor([3])).node
        tensor([3, 1, 2])
        >>> sampler.shutdown_loop()
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        edge_dir: str = "out",
        collect_features: bool = False,
        channel: Any = None,
        use_all2all: bool = False,
        concurrency: int = 1,
        device: Any = None,
        seed: int | None = None,
    ) -> None:
        if channel is not None:
            raise OptionError(
                "DistNeighborSampler: channel: batches are returned, not sent. Send them with channel.send, or take a "
                "DistNeighborLoader, which has sampler processes."
            )
        place = place_of(data, CollocatedDistSamplingWorkerOptions())
        world = place.ranks.world_size
        # each worker asks on its own, and so nobody compares the number of batches
        ranks = replace(place.ranks, gather_counts=lambda count: [count] * world)
        self._session = Session(
            place.graph,
            SamplingOptions(with_edge=with_edge, **place.sampling),
            seed=(torch.initial_seed() if seed is None else seed) % (1 << 63),
            ranks=ranks,
            device=output_device(device),
        )
        if (member := current()) is not None:
            member.opened.append(self)
        self._num_neighbors, self._edge_dir, self._weighted, self._calls = num_neighbors, edge_dir, with_weight, 0
        self._fields = GLTFields(
            with_edge=with_edge,
            collect_features=collect_features,
            labels=place.labels,
            labelled=place.labelled,
            edge_ids=place.edge_ids,
        )

    def sample_from_nodes(self, inputs: Any) -> Any:
        """inputs: a `NodeSamplerInput`, ids [S], or (node type, ids)."""
        (batch,) = self._session.make_loader(self._spec(inputs))
        return self._fields(self._session.to_device(batch))

    def start_loop(self) -> None:
        """Nothing is left to do."""

    def shutdown_loop(self) -> None:
        """Ends the sampler; where other workers may ask it for rows, with them. Safe to call twice."""
        member = current()
        if member is None or member.group is None:
            self.close()

    def close(self) -> None:
        self._session.close()

    def _spec(self, inputs: Any) -> Any:
        given = NodeSamplerInput.of(inputs)
        fanouts = stored_edges(self._session, self._edge_dir).fanouts(self._num_neighbors or [])
        seeds = given.node if given.input_type is None else (given.input_type, given.node)
        return node_spec(self._session, self._name(), seeds, fanouts, max(1, len(given)), False, self._weighted)

    def _name(self) -> str:
        self._calls += 1
        return f"call {self._calls}"
