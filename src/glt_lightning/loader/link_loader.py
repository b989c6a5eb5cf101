"""The loader of edges that a training loop iterates."""

from __future__ import annotations

import logging

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph
from glt_lightning.loader.link_collate import LinkCollate
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.planned_links import plan_links
from glt_lightning.loader.plans import batch_manifest, plan_identity
from glt_lightning.sampling import Sample, link_key
from glt_lightning.workers import Producer, Ranks

_log = logging.getLogger(__name__)


class DistLinkNeighborLoader(DistNeighborLoader):
    """Yields the batches of one rank around edges and their negatives, as PyG `Data` or `HeteroData` with the fields of PyG's
    `LinkNeighborLoader`.

    Made by `Session.make_loader`; it is a `DistNeighborLoader` whose seeds are edges. ``edge_label_index``,
    ``src_index``, ``dst_pos_index`` and ``dst_neg_index`` name nodes of the batch, and ``input_id`` the edges by their position
    in the spec. ``neg_mask`` is true where a shared negative is one. There is no ``batch_size``.

    Args:
        plan: The edges of each batch.
        config: How neighbours are drawn.
        producer: Makes the batches.
        collate: Turns a `Sample` into a PyG object.
        identity: Facts that a checkpoint is compared with when it is loaded.
        transform: What every batch goes through before it is given out, or None.

    Example:
        >>> edges = np.array([[0, 3, 4], [1, 4, 6]])
        >>> spec = LinkSpec(
        ...     name="train", edge_label_index=edges, num_neighbors=[2], batch_size=2, neg_sampling=("triplet", 2)
        ... )
        >>> with Session("parts") as session:
        ...     for batch in session.make_loader(spec):
        ...         print(batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index], batch.dst_neg_index.shape)
        tensor([0, 3]) tensor([1, 4]) torch.Size([2, 2])
        tensor([4]) tensor([6]) torch.Size([1, 2])
    """

    _warned = False

    def _count(self, sample: Sample) -> None:
        super()._count(sample)
        prefix, name = link_key(""), "stored"
        stored = [int(a[0]) for key, a in sample.arrays.items() if key.startswith(prefix) and key.endswith(name)]
        if self._warned or not any(stored) or self._plan.rank:
            return
        self._warned = True
        _log.warning(
            "loader %r: exclude_target_edges is none, and %d of the %d edges of batch %d are stored in the graph: messages are "
            "passed over the edges that are to be predicted, so a model can learn to look them up. Set exclude_target_edges to "
            "reverse, or leave these edges out of the partition.",
            self._plan.loader,
            sum(stored),
            sample.num_seeds,
            sample.number,
        )


def make_link_loader(
    spec: LinkSpec, graph: AnyGraph, sampling: SamplingOptions, seed: int, ranks: Ranks, producer: Producer
) -> tuple[DistLinkNeighborLoader, LinkCollate]:
    """Raises `OptionError` or `DataError` for a spec that does not fit the graph."""
    if sampling.batch_sampler is not None:
        raise OptionError(
            f"loader {spec.name!r}: sampling.batch_sampler: makes batches of nodes, not of edges. Remove it, or write a "
            "sampling.picker."
        )
    manifest, links = graph.manifest, plan_links(spec, graph, sampling, seed, ranks)
    plan, config = links.plan, links.config
    stored = manifest.as_stored if config.stored else manifest
    collate = LinkCollate(stored, batch_manifest(manifest, config), links.tasks, config.timed)
    identity = plan_identity(links.nodes, plan, links.seeds, manifest, ranks)
    identity |= plan.link_identity(shared=not spec.per_rank)
    return DistLinkNeighborLoader(plan, config, producer, collate, identity, spec.transform), collate
