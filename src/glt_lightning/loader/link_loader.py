"""The loader of edges that a training loop iterates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph, Manifest
from glt_lightning.loader.collate import Batch, Collate, as_tensor
from glt_lightning.loader.link_plan import plan_links
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.plans import batch_manifest, plan_identity
from glt_lightning.loader.times import SEED_TIME
from glt_lightning.sampling import LinkTask, Sample
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
        stored = [int(values[0]) for _, name, values in sample.link_fields() if name == "stored"]
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


# From a Sample of a loader of edges to `Data` or `HeteroData`.


_NAMES = {"edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index", "src_neg_index", "neg_mask"}
_TIMES = {"edge_label_time", SEED_TIME}


class LinkCollate(Collate):
    """Turns samples into batches with the fields of PyG's `LinkNeighborLoader`: in a homogeneous graph they belong to the batch,
    in others to the edge type, and those of triplets to the node types. With several edge types in a loader, all fields belong
    to the edge type. manifest: of the graph.  batches: of what batches have.  timed: samples have the times of edges."""

    def __init__(self, manifest: Manifest, batches: Manifest, tasks: Sequence[LinkTask], timed: bool) -> None:
        self._tasks, self._timed, self._stored = tasks, timed, manifest.schema
        self._is_bfloat16 = partial(manifest.is_bfloat16, "edges")
        self._own = {name for task in tasks for name in manifest.edge_attrs(task.edge_type)}
        self._attrs = {task.edge_type: _target_names(manifest, task) for task in tasks}
        super().__init__(batches, [task.ends(manifest.schema)[0] for task in tasks])

    @property
    def _pair(self) -> tuple[int, int]:
        src, dst = self._tasks[0].ends(self._stored)
        return src, dst

    @property
    def names(self) -> set[str]:
        attrs = {name for names in self._attrs.values() for name in names}
        return super().names | self._own | _NAMES | attrs | (_TIMES if self._timed else set())

    def _add_seeds(self, data: Batch, sample: Sample) -> None:
        for i, task in enumerate(self._tasks):
            self._add_edges(data, task, task.edge_type if i else None, sample)

    def _add_edges(self, data: Batch, task: LinkTask, further: int | None, sample: Sample) -> None:
        edge_type = self._stored.edge_types[task.edge_type]
        edges = src = dst = data if self._schema.homogeneous else data[edge_type]
        if len(self._tasks) == 1 and not self._schema.homogeneous:
            src, dst = (data[self._stored.node_types[t]] for t in task.ends(self._stored))
        edges.input_id = as_tensor(sample.input_ids(further))
        for of, name, array in sample.link_fields():
            if of != further:
                continue
            values = as_tensor(array)
            if attr := self._attrs[task.edge_type].get(name):
                is_bfloat16 = attr != "e_id" and self._is_bfloat16(task.edge_type, attr)  # which numpy lacks
                edges[name] = values.view(torch.bfloat16) if is_bfloat16 else values
            if name not in _NAMES:  # what the loader alone has to know
                continue
            of_source = name in ("src_index", "src_neg_index")
            owner = src if of_source else edges if name == "edge_label_index" else dst
            owner[name] = values
        for of, name, array in sample.seed_fields():
            if of != further:
                continue
            values = as_tensor(array)
            if name == SEED_TIME and self._timed:
                if task.mode == "triplet":
                    src.seed_time = dst.seed_time = values
                else:
                    edges.edge_label_time = _of_all(values, edges.edge_label_index.shape[1])
            else:
                edges[name] = values
        if task.mode == "binary":
            edges.edge_label = _labels(edges.get("edge_label"), edges.edge_label_index, len(edges.input_id))


def _of_all(times: torch.Tensor, pairs: int) -> torch.Tensor:
    """[P + N]: times of the edges, then those of negatives: negative j has that of edge j mod P."""
    return times if len(times) == pairs else times[torch.arange(pairs, device=times.device) % len(times)]


def _target_names(manifest: Manifest, task: LinkTask) -> dict[str, str]:
    """Name in a batch -> attribute, of the edges to predict."""
    names = (*manifest.edge_attrs(task.edge_type), "e_id")
    return {task.target_name(name): name for name in names} if task.attrs else {}


def _labels(given: torch.Tensor | None, pairs: torch.Tensor, positives: int) -> torch.Tensor:
    """[P + N, ...]: labels of the edges, or ones, and zeros of the negatives."""
    if given is None:
        given = torch.ones(positives, device=pairs.device)
    return torch.cat([given, given.new_zeros(pairs.shape[1] - positives, *given.shape[1:])])
