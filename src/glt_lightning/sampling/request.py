"""The requests of samplers: the configuration of a loader, one batch of it, and the keys of random draws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glt_lightning.base import (
    AGGREGATES,
    DataError,
    DrawOptions,
    Fanouts,
    GraphSchema,
    OptionError,
    SamplingOptions,
    WeightAttr,
    edge_type_str,
    parse_fanouts,
)
from glt_lightning.graph import Manifest
from glt_lightning.kernels import ExcludedEdges, Trees
from glt_lightning.sampling.drawn_by import drawn_from, ignored_times, ignored_weights
from glt_lightning.sampling.importance_task import ImportanceTask
from glt_lightning.sampling.link_task import LinkTask
from glt_lightning.sampling.subgraph_task import SubgraphTask


def _refuse_own_batches(given: Any, _num_edge_types: int | None = None) -> None:
    raise DataError(f"own_batches: {given!r:.100} makes batches in its own process alone.")


@dataclass(frozen=True)
class SamplerConfig(DrawOptions):
    """The configuration by which a loader's batches are sampled. Plain numbers, so that it can be sent to another process.

    The draw options, and further fields:

    seed_type: node type index of the seeds.  fanouts: ``[H][R]``, per hop and edge type; -1 all, 0 none.
    stored: attributes are not decoded (`Manifest.as_stored`).
    aggregate: ``mean`` or ``sum``: the batch has the aggregated ``x`` of each node's neighbours as ``x_neighbors`` in place of
    the nodes and edges of the last hop (`sampling.assemble`). None: the batch has all nodes and edges.
    pointers: batches have the column pointers of their edges.  by_source: they have the edges in the order of sources, too.
    with_row: batches have the number of each node in its type.
    node_attrs, edge_attrs: batches have ids and attributes of nodes, of edges; without them no rows are read or requested.
    disjoint: each seed is the root of a tree of its own (`kernels.trees.Trees`), and batches have the tree of each node.
    link: the edge type and negatives of batches of edges; `sampling.links` finds their seeds. None: batches of nodes.
    more_links: the tasks of further edge types.
    subgraph: the edges that batches have beside or in place of the sampled edges; None: the sampled edges alone.
    importance: the walks that find the neighbours; ``fanouts`` then belong to its edge types. None: neighbours are drawn
    along stored edges.
    own_batches: name of the user's `BatchSampler` that makes the batches, in this process; None: the k-hop sampler does.
    most_bytes: largest memory of one batch, or None for no limit.

    Raises:
        DataError: By `require_room`, for a batch larger than ``most_bytes``.

    Example:
        >>> config = SamplerConfig(seed_type=0, fanouts=((15,), (10,)), replace=True)  # two hops, one edge type
        >>> len(config.fanouts), config.replace
        (2, True)
    """

    seed_type: int = field(metadata={"range": (0, 2**31 - 1)})
    fanouts: tuple[tuple[int, ...], ...]
    stored: bool = False
    aggregate: str | None = field(default=None, metadata={"choices": AGGREGATES})
    pointers: bool = False
    by_source: bool = False
    with_row: bool = False
    node_attrs: bool = True
    edge_attrs: bool = True
    disjoint: bool = False
    link: LinkTask | None = field(default=None, metadata={"read": LinkTask.from_wire})
    more_links: tuple[LinkTask, ...] = field(default=(), metadata={"read": LinkTask.further})
    subgraph: SubgraphTask | None = field(default=None, metadata={"read": SubgraphTask.from_wire})
    importance: ImportanceTask | None = field(default=None, metadata={"read": ImportanceTask.from_wire})
    own_batches: str | None = field(default=None, metadata={"read": _refuse_own_batches})
    most_bytes: int | None = field(default=None, metadata={"range": (0, 2**62)})

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        draw: DrawOptions,
        *,
        weight_attr: WeightAttr = None,
        time_attr: str | None = None,
        **fields: Any,
    ) -> SamplerConfig:
        """Makes the configuration for a graph. draw, weight_attr, time_attr: as for `drawn_from`.  fields: those beside the draw
        options. Raises as `drawn_from`."""
        drawn = drawn_from(manifest, draw, weight_attr, fields.get("subgraph"), time_attr)
        return cls(**fields, **drawn.values)

    @property
    def links(self) -> tuple[LinkTask, ...]:
        """The tasks of all edge types; none for seeds that are nodes."""
        return () if self.link is None else (self.link, *self.more_links)

    @property
    def identity(self) -> dict[str, Any]:
        # None in place of False: a checkpoint of an earlier release lacks these fields, and has to compare as equal.
        task = self.subgraph
        edges = None if task is None else [task.kind, list(task.reverse)]
        own = {"disjoint": self.disjoint or None, "subgraph": edges, "batch_sampler": self.own_batches}
        own |= {"importance_neighbors": None if self.importance is None else self.importance.identity}
        return super().identity | own

    @property
    def has_edge_rows(self) -> bool:
        """True if batches have ids and attributes of edges."""
        return self.edge_attrs and (self.with_edge or self.subgraph is not None)

    def by_walks(self, task: ImportanceTask) -> SamplerConfig:
        """Returns the configuration with neighbours found by walks: edges then have numbers of visits in place of edge rows."""
        return replace(self, importance=task, with_edge=True, edge_attrs=False)

    def require_possible(self, on_gpu: bool, on_device: bool) -> None:
        """Raises `OptionError` for fields that do not go with a GPU that samples (``on_gpu``) or holds rows (``on_device``);
        `DataError` for fields that no loader combines."""
        if self.aggregate is not None and (on_gpu or on_device):
            raise OptionError(
                f"sampling.aggregate_first: {self.aggregate!r} needs a CPU that samples and reads all rows; here a GPU "
                "samples, or keeps rows. Set sampling.topology to cpu and remove cache.device, or remove aggregate_first."
            )
        if self.picker is not None and on_gpu:
            raise OptionError("sampling.picker: runs on CPUs, and here a GPU samples. Set sampling.topology to cpu.")
        if on_gpu and on_device:
            raise OptionError(
                "neighbor_source: on_device and store exclude each other: on_device lists rows that batches made "
                "by the CPU omit, and with store the GPU makes whole batches. Give one of them."
            )
        others = ("aggregate", "subgraph", "picker", "timed", "labor", "edge_attrs")
        if self.importance is not None and (given := [name for name in others if getattr(self, name)]):
            raise DataError(f"importance: {given[0]}: is not for batches whose neighbours walks find.")

    def ignored(self, manifest: Manifest, sampling: SamplingOptions) -> list[str]:
        """Returns lines for the log where batches ignore times or weights that edges have and that they could depend on: those of
        seeds alone do not, those of all neighbours not on weights, and those of a picker, which reads them itself, on neither."""
        fanouts = {k for hop in self.fanouts for k in hop if k}
        if not fanouts or self.picker is not None:
            return []
        found = [ignored_times(manifest, sampling.time_attr)]
        if fanouts != {-1} and not self.last:
            found.append(ignored_weights(manifest, sampling.weight_attr))
        return [line for line in found if line is not None]

    def require_room(self, nbytes: int) -> None:
        """Raises `DataError` for a batch that is larger than ``most_bytes``. To be called before its memory is taken."""
        if self.most_bytes is not None and nbytes > self.most_bytes:
            raise DataError(
                f"a batch with fan-outs {[max(hop, key=abs) for hop in self.fanouts]} takes {nbytes} bytes or more; this server "
                f"makes batches of at most {self.most_bytes} (cluster.limits.batch_size). Use smaller batches or fan-outs, or "
                "raise cluster.limits.batch_size there."
            )


@dataclass(frozen=True)
class BatchRequest:
    """The request for one batch, which is a pure function of the request, the config and the graph.

    Attributes:
        number: Position in the rank's epoch, from 0.
        key: 64-bit key of all draws.
        seeds: int64 [S] gids of the config's ``seed_type``.
        input_id: int64 [S] positions of the seeds in the loader's seed array.
        more_seeds: Node type -> int64 gids of seeds of further node types.
        extras: Name -> array [S, ...] that no sampler reads (labels, times, ids of edges); it travels untouched to
            `loader.collate`.
        link: For a loader of edges, whose sources are ``seeds``: ``dst`` int64 [S], gids of their destinations. Optional:
            ``negatives`` int64 [S, K] (given destinations, -1: to draw), ``trial_src`` and ``trial_dst`` int64 [N, T]
            (`sampling.negatives.GivenTrials`), in the user's ids, ``rejected`` int64 [n] (trials, or positions of the mask,
            that are edges of the loader), and ``look_up``, of any content, which requests ``stored``: int64 [1], the number
            of the edges that are stored. Arrays of further edge types are named by `of_type`, also ``src``, their
            sources.
        excluded: Edges that the batch is sampled without, beside those of ``exclude_target_edges``.
        trees: For a disjoint batch: the trees of all seeds, and their bounds in time. None: as ``Trees()``. In a request for
            edges it has bounds alone, one for each edge, edge type after edge type: all trees of an example share its bounds.
        neighbor_key: 64-bit key of the draws of neighbours, if several batches share it (``sampling.batch_dependency``).
            None: ``key``, by which all other draws are keyed in any case.

    Example:
        >>> request = BatchRequest(number=0, key=99, seeds=np.array([4, 2]), input_id=np.array([0, 1]))
        >>> request.nbytes
        32
    """

    number: int
    key: int
    seeds: np.ndarray
    input_id: np.ndarray
    more_seeds: Mapping[int, np.ndarray] = field(default_factory=dict)
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    link: Mapping[str, np.ndarray] = field(default_factory=dict)
    excluded: ExcludedEdges | None = None
    trees: Trees | None = None
    neighbor_key: int | None = None

    @staticmethod
    def of_type(index: int, name: str) -> str:
        """Returns the name of an array that belongs to the seeds of a further node type or edge type of a loader with several."""
        return f"{index}/{name}"

    @property
    def key_of_neighbors(self) -> int:
        return self.key if self.neighbor_key is None else self.neighbor_key

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self.seeds, self.input_id]
        for further in (self.more_seeds, self.extras, self.link):
            arrays += further.values()
        return sum(a.nbytes for a in arrays) + sum(a.nbytes for a in (self.excluded, self.trees) if a is not None)

    def typed_seeds(self, seed_type: int) -> dict[int, np.ndarray]:
        """Returns all seeds by node type. seed_type: the type of ``seeds``. Raises `DataError` if ``more_seeds`` has it, too."""
        if seed_type in self.more_seeds:
            raise DataError(
                f"batch {self.number}: more_seeds has seeds of node type {seed_type}, which those in seeds are of. Put all seeds "
                "of this type into seeds."
            )
        return {seed_type: self.seeds, **self.more_seeds}


def batch_key(seed: int, loader: str, epoch: int, position: int) -> int:
    """Returns the key of the batch that starts at ``position`` of an epoch plan: 64 bits of a BLAKE2b hash."""
    return _hash64("batch", seed, loader, epoch, position)


def shuffle_key(seed: int, loader: str, epoch: int) -> int:
    """Returns the key of the order of an epoch's seeds: 64 bits of a BLAKE2b hash."""
    return _hash64("shuffle", seed, loader, epoch)


def _hash64(*what: object) -> int:
    text = "\x1f".join(str(w) for w in what)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


# Fan-outs as users write them, and as the sampler reads them.


def fanout_table(
    num_neighbors: Fanouts, schema: GraphSchema, name: str = "num_neighbors"
) -> tuple[tuple[int, ...], ...]:
    """Returns the fan-outs [H][R] of each hop and edge type. Raises `OptionError` for unknown edge types or unequal lengths.
    name: the option, in errors."""
    if not isinstance(num_neighbors, dict):
        return tuple((k,) * len(schema.edge_types) for k in parse_fanouts(num_neighbors, name))
    names = [edge_type_str(e) for e in schema.edge_types]
    given = {k if isinstance(k, str) else edge_type_str(k): v for k, v in num_neighbors.items()}
    if set(given) != set(names):
        missing, unknown = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        raise OptionError(
            f"{name}: expected a list of fan-outs for each edge type; missing {missing}, unknown {unknown}."
        )
    per_type = [parse_fanouts(given[n], f"{name}[{n}]", least=0) for n in names]
    if len({len(p) for p in per_type}) > 1:
        raise OptionError(f"{name}: expected equally many hops for every edge type; got {num_neighbors}.")
    hops = tuple(zip(*per_type, strict=True))
    if empty := [hop for hop, fanouts in enumerate(hops) if not any(fanouts)]:
        raise OptionError(f"{name}: hop {empty[0]} draws 0 neighbours of every edge type. Drop the hop.")
    return hops
