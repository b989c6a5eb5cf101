"""The built-in assigners: frequency, METIS, random and streaming; and their limits, which are known before they run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import DataError, NodeType, OptionError, PartitionError, PartitionOptions, size
from glt_lightning.graph import available_memory
from glt_lightning.kernels import LabelPairs, Labels, MetisGraph, NeighborRows, keyed, metis_parts
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition, checked
from glt_lightning.partition.sources.base import array_fingerprint

if TYPE_CHECKING:
    from glt_lightning.partition.build.hotness import Hotness
    from glt_lightning.partition.build.stored_graph import StoredGraph
    from glt_lightning.partition.build.topology import GraphTopology

# Parts by expected accesses: each node goes to the part that reads it most; edges between parts are not considered.


_BLOCK = 10_000  # ids per part; GLT's default chunk_size


class FrequencyAssigner(Assigner):
    """Gives each part the nodes that its batches access most in comparison with those of other parts (`inclusion`). Parts have
    equal sizes."""

    reads = "sampled"

    def assign(self, graph: GraphToPartition) -> Assignment:
        if "train" not in graph.splits or not len(graph.splits["train"][1]):
            raise DataError(
                "partition.algorithm: frequency counts accesses by training seeds, but the data has none. "
                "Give a training split, or use random, metis or streaming."
            )
        node_type, seeds = graph.splits["train"]
        shares = [(node_type, share) for share in np.array_split(seeds, graph.num_parts)]
        from glt_lightning.partition.build.hotness import inclusion_of_each

        wanted = inclusion_of_each(graph.topology, shares, graph.options, graph.progress)
        return {t: frequency_parts(p) for t, p in graph.topology.split(wanted.T).items()}


class GivenAccesses(Assigner):
    """Gives each part the nodes that its batches access most, by given numbers; these are also the hotness of the nodes.

    wanted: node type -> for each part floats [N], expected accesses of each node by its batches.  block: ids per part that are
    dealt out at a time.
    """

    def __init__(self, wanted: Mapping[NodeType, Sequence[np.ndarray]], block: int = _BLOCK) -> None:
        self._wanted, self._block = wanted, block

    @property
    def made_by(self) -> dict[str, Any]:
        arrays = ((t, each) for t, parts in sorted(self._wanted.items()) for each in parts)
        return {"probs": array_fingerprint(arrays), "chunk_size": self._block}

    def assign(self, graph: GraphToPartition) -> Assignment:
        return {t: frequency_parts(np.stack(parts, axis=1), self._block) for t, parts in self._wanted.items()}

    def hotness(self, topology: GraphTopology) -> Hotness:
        from glt_lightning.partition.build.hotness import Hotness

        by_part = zip(*(self._wanted[t] for t in topology.num_nodes), strict=True)
        return Hotness("given", {}, [np.concatenate(each) for each in by_part])


def frequency_parts(wanted: np.ndarray, block: int = _BLOCK) -> np.ndarray:
    """Returns int32 [N]: a part for each node. wanted: float [N, P], expected accesses of each node by each part's seeds."""
    num_nodes, num_parts = wanted.shape
    parts = np.empty(num_nodes, np.int32)
    for number, begin in enumerate(range(0, num_nodes, block * num_parts)):
        piece = np.ascontiguousarray(wanted[begin : begin + block * num_parts])
        gain = piece * np.float32(num_parts + 1) - piece.sum(axis=1, keepdims=True)
        free = np.arange(len(piece))
        for turn in range(num_parts):  # in each block another part chooses first, so that none gets all hot nodes
            part = (turn + number) % num_parts
            count = -(-len(free) // (num_parts - turn))
            order = np.argsort(-gain[free, part], kind="stable")
            parts[begin + free[order[:count]]] = part
            free = np.sort(free[order[count:]])
    return parts


# Few edges between parts, by METIS (Karypis and Kumar 1998), with the whole graph in memory.


class MetisAssigner(Assigner):
    """Partitions by METIS. All edge types count the same, in both directions; the balance constraints are those of DGL's
    ``partition_graph``."""

    deterministic = False
    reads = "neighbors"

    def assign(self, graph: GraphToPartition) -> Assignment:
        weights = graph.weights()
        parts = _cut(graph, weights)
        return graph.topology.split(refine(graph, parts, weights))


def _cut(graph: GraphToPartition, weights: np.ndarray) -> np.ndarray:
    """Returns int32 [N]: the parts by METIS. The graph is freed when this returns."""
    topology, options = graph.topology, graph.options
    structure = graph.weights(without="seeds")
    entries = topology.count_neighbors()
    _require_memory_for_metis(entries)
    with MetisGraph(structure if structure.size else weights, entries) as metis:
        fill(metis, graph)
        with graph.progress.phase("METIS", topology.total, "nodes") as done:
            parts = metis.cut(graph.num_parts, imbalance=options.imbalance, seed=options.seed)
            done(topology.total)
    return parts


METIS_BYTES = 134  # for each edge in each direction: its graph, and what it makes of it (measured)
_METIS_LEAST = 100  # what is refused would not fit, however the graph is


def require_memory(assigner: Assigner, graph: StoredGraph) -> None:
    """Raises `PartitionError` if METIS cannot fit, as far as that is known before edges are read."""
    if isinstance(assigner, MetisAssigner) and not is_trivial(assigner, graph.options):
        # Each edge is in the rows of both its ends. Half of that may be listed twice, and half may be loops or parallel.
        _require_memory_for_metis(sum(edges.num_edges for edges in graph.edges.values()) // 2)


def _require_memory_for_metis(entries: int) -> None:
    available = available_memory()
    if entries * _METIS_LEAST > available:
        raise PartitionError(
            f"partition.algorithm: metis takes about {size(entries * METIS_BYTES)} of memory for {entries:,} entries of "
            f"rows, and {size(available)} are available. Use streaming, or assign the nodes on a host with more "
            "(partition --assign_only)."
        )


def fill(metis: MetisGraph, graph: GraphToPartition) -> None:
    """Adds each edge in both directions; self-loops are left out."""
    filled = 0
    for rows in graph.topology.neighbors():
        sizes, neighbors = np.diff(rows.indptr), rows.neighbors
        node = np.repeat(np.arange(rows.first, rows.first + len(rows), dtype=neighbors.dtype), sizes)
        if (loops := neighbors == node).any():
            sizes, neighbors = sizes - np.bincount(node[loops] - rows.first, minlength=len(rows)), neighbors[~loops]
        metis.neighbors[filled : filled + len(neighbors)] = neighbors
        metis.indptr[rows.first + 1 : rows.first + 1 + len(rows)] = sizes
        filled += len(neighbors)
    np.cumsum(metis.indptr, out=metis.indptr)


# Random parts of equal size.


class RandomAssigner(Assigner):
    """Assigns each node type separately; sizes of parts differ by at most one."""

    reads = "nothing"

    def assign(self, graph: GraphToPartition) -> Assignment:
        parts, seed = graph.num_parts, graph.options.seed
        return {t: random_parts(n, parts, seed, t) for t, n in graph.num_nodes.items()}


_NODES = 1 << 20  # hashed at once


def random_parts(num_nodes: int, num_parts: int, seed: int, node_type: NodeType) -> np.ndarray:
    """Returns int32 [N]: a random part for each node; the parts' sizes differ by at most one.

    Nodes are ranked by a keyed 64-bit hash of their id, so that the result does not depend on a library's random generator. It is
    a bijection, so no two nodes tie.
    """
    key = np.frombuffer(hashlib.blake2b(f"{seed}\x1f{node_type}".encode(), digest_size=8).digest(), "<u8")[0]
    parts, hashes = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.uint64)

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        for begin in range(0, num_nodes, _NODES):
            block = slice(begin, min(begin + _NODES, num_nodes))
            yield block, keyed(np.arange(block.start, block.stop, dtype=np.uint64) ^ key, np.zeros(1))

    for block, found in blocks():
        hashes[block] = found
    ranks = np.array([num_nodes * part // num_parts for part in range(1, num_parts)], np.int64)
    ranks = ranks[ranks < num_nodes]
    hashes.partition(ranks)
    first = hashes[ranks]  # the hash of each part's first node
    for block, found in blocks():
        parts[block] = np.searchsorted(first, found, side="right")
    return parts


# Few edges between parts in bounded memory: edges are streamed from disk, only nodes are held in memory.


_CLUSTERS_PER_PART = 64  # if all were of full size; most stay smaller
_BYTES_PER_PAIR = 512  # bytes that METIS needs, about, for each pair of clusters
_LEAST_PAIRS = 1 << 16  # 32 MiB by that estimate, however little memory is allowed


class StreamingAssigner(Assigner):
    """Groups nodes into clusters and clusters into parts while it streams over the edges. Takes memory of a few integers per
    node, and ``partition.memory_bytes`` for the graph of clusters."""

    deterministic = False  # because METIS is not, across machines and versions
    reads = "neighbors"
    most_nodes = 2**31 - 1  # a group is named by a node, as int32

    def assign(self, graph: GraphToPartition) -> Assignment:
        weights = graph.weights()
        clusters, count = _numbered(self._cluster(graph, weights))
        parts = self._join(graph, clusters, count, weights)
        return graph.topology.split(refine(graph, parts[clusters], weights))

    def _cluster(self, graph: GraphToPartition, weights: np.ndarray) -> np.ndarray:
        """Returns int32 [N]: the cluster of each node, named by one of its nodes."""
        topology = graph.topology
        capacity = graph.capacity(weights, graph.num_parts * _CLUSTERS_PER_PART, 0.0)
        labels = Labels(np.arange(topology.total, dtype=np.int32), weights, topology.total)
        pass_over(graph, labels, capacity, "grouping nodes", everywhere=False)
        return labels.labels

    def _join(self, graph: GraphToPartition, clusters: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
        """Returns int32 [clusters]: the part of each cluster."""
        most, topology = max(_LEAST_PAIRS, graph.options.memory_bytes // _BYTES_PER_PAIR), graph.topology
        entries = topology.num_neighbors
        with graph.progress.phase("joining groups", entries, "edges") as done:

            def rows() -> Iterator[NeighborRows]:
                for each in topology.neighbors():
                    yield each
                    done(len(each.neighbors))

            found = cluster_graph(rows(), entries, clusters, count, most, topology.folder, topology.threads)
        indptr, neighbors, edge_weights = found
        loads = np.stack(
            [np.bincount(clusters, weights=weights[:, c], minlength=count) for c in range(weights.shape[1])], axis=1
        )
        return metis_parts(
            indptr,
            neighbors,
            graph.num_parts,
            weights=loads.astype(np.int64),
            edge_weights=edge_weights,
            imbalance=graph.options.imbalance,
            seed=graph.options.seed,
        )


def _numbered(labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Labels renumbered from 0 without gaps, and the number of different labels."""
    used = np.zeros(int(labels.max(initial=-1)) + 1, np.int32)
    used[labels] = 1
    rank = np.cumsum(used, dtype=np.int32)
    return rank[labels] - 1, int(rank[-1]) if len(rank) else 0


def require_countable(assigner: Assigner, num_nodes: int, options: PartitionOptions) -> None:
    """Checks that an algorithm supports the number of nodes of a graph.

    Args:
        assigner: The assigner.
        num_nodes: Number of nodes of all types.
        options: Options of the partition.

    Raises:
        OptionError: If the graph has more nodes than the algorithm supports.

    Example:
        >>> options = PartitionOptions(num_parts=2, algorithm="streaming")
        >>> require_countable(assigner_of(options), 10**9, options)
        >>> require_countable(assigner_of(options), 2**31, options)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: partition.algorithm: ...
    """
    most = assigner.most_nodes
    if most is not None and num_nodes > most and not is_trivial(assigner, options):
        raise OptionError(
            f"partition.algorithm: {options.algorithm_name} supports at most {most:,} nodes, but the graph has {num_nodes:,}. "
            "Use random, frequency or metis, or a file of part numbers."
        )


def is_trivial(assigner: Assigner, options: PartitionOptions) -> bool:
    """Tells whether there is one part and a built-in assigner, so that all nodes belong to part 0."""
    return options.num_parts == 1 and assigner.reads is not None


def assign(assigner: Assigner, graph: StoredGraph, topology: GraphTopology) -> dict[NodeType, np.ndarray]:
    """Returns node type -> int32 [N], the part of each node.

    A user's array or class is run for one part as well, so that its mistakes show before there are several parts.
    """
    if is_trivial(assigner, graph.options):
        return {t: np.zeros(n, np.int32) for t, n in graph.num_nodes.items()}
    given = GraphToPartition(graph.source, topology, graph.splits, graph.options, graph.progress)
    return checked(assigner.assign(given), given, graph.options.algorithm_name)


# Improves given parts: nodes move to the part of most of their neighbours, if it has room.


def refine(graph: GraphToPartition, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns int32 [N]: parts with fewer edges between them that are better balanced in each column of weights (int32 [N, C]).

    An overfull part gives nodes to parts with room, even if that adds edges between parts. It stays overfull if a single node
    weighs more than ``partition.imbalance`` allows, or if no move improves all columns.
    """
    labels = Labels(parts, weights, graph.num_parts)
    capacity = graph.capacity(weights, graph.num_parts, graph.options.imbalance)
    pass_over(graph, labels, capacity, "refining parts", everywhere=True)
    return labels.labels


def pass_over(graph: GraphToPartition, labels: Labels, capacity: np.ndarray, what: str, *, everywhere: bool) -> None:
    """Propagates labels over all rows, ``partition.passes`` times or until no node moves."""
    passes = graph.options.passes
    with graph.progress.phase(what, passes * graph.topology.num_neighbors, "edges") as done:
        for _ in range(passes):
            moved = 0
            for rows in graph.topology.neighbors():
                moved += labels.propagate(rows, capacity, everywhere=everywhere, threads=graph.topology.threads)
                done(len(rows.neighbors))
            if moved == 0:
                return


# The graph of clusters: the number of edges between each two, in bounded memory.
#
# Edges between clusters are dealt out over buckets of a file, each pair of clusters to one of them. A bucket fits the cache of a
# core while its edges are counted, so that an edge takes little longer in a large graph than in a small one.


_BUCKET_EDGES = 1 << 15
_MOST_BITS = 12  # of the number of a bucket: edges are written to that many places at a time
_AT_ONCE = 1 << 20  # edges that are read before they are counted
_RECORD_BITS = 32  # of an edge in its bucket, where that is possible

CsrGraph = tuple[np.ndarray, np.ndarray, np.ndarray]


def cluster_graph(
    all_rows: Iterable[NeighborRows],
    entries: int,
    clusters: np.ndarray,
    count: int,
    most: int,
    folder: Path,
    threads: int,
) -> CsrGraph:
    """Returns the clusters and the pairs of them with the most edges: indptr [clusters + 1], neighbours, numbers of edges.

    all_rows: of all nodes, each edge in the rows of both its ends.  entries: of these, or more.
    clusters: int32 [N], the cluster of each node.  count: of clusters.  most: of pairs; of more, those with fewer edges are
    dropped, at a tie those of higher numbers.  folder: of the file.
    """
    from glt_lightning.partition.build.edges import ranges_within
    from glt_lightning.partition.tasks.exchange import RunWriter, read_buckets

    fitting = 2 * (count - 1).bit_length() - _RECORD_BITS
    bits = min(_MOST_BITS, max((entries // 2 // _BUCKET_EDGES).bit_length(), fitting))
    pairs = LabelPairs(clusters, bits, max(1, min(most, count * (count - 1) // 2, entries // 2)), threads)
    file, width = folder / "pairs", pairs.dtype.itemsize
    with RunWriter(file, width, 1 << bits) as writer:
        for rows in all_rows:
            writer.add(*pairs.records(rows))
    buckets = np.concatenate([[0], np.cumsum(np.diff(writer.runs.table, axis=1).sum(axis=0))])
    groups = ranges_within(buckets, min(_AT_ONCE, 4 * most))
    memory = np.empty(max((int(buckets[high] - buckets[low]) for low, high in groups), default=0), pairs.dtype)
    for low, high in groups:
        data, first = read_buckets([writer.runs], low, high, width, memory.view(np.uint8))
        pairs.add(data.view(pairs.dtype), low, first)
    file.unlink()
    return pairs.graph(count)
