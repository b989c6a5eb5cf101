"""Lower bounds on the disk space of a partition and its working files, checked before hours of work rather than after.

They add up the files of `topology`, `rows` and `edges` at the moment when most of them exist. Sizes that are known only
afterwards are not counted: the edges that remain after merging, and the rankings of remote rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from glt_lightning.base import EdgeType
from glt_lightning.partition.assign.assigners import is_trivial, require_memory
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.edge_types import StoredEdgeType, in_both_directions
from glt_lightning.partition.build.edges import entry_bytes, record_bytes
from glt_lightning.partition.build.hotness import policy_of
from glt_lightning.partition.build.rows import is_picked
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.folder import require_space
from glt_lightning.partition.sources.base import rows_bytes
from glt_lightning.partition.tasks.job import Job, narrowest


def require_room(job: Job, assigner: Assigner) -> None:
    """Raises `PartitionError` for a partition that cannot be made: for want of disk, or of memory for METIS."""
    require_memory(assigner, job.graph)
    require_space(job.folder.parent, bytes_needed(job, assigner), "a partition of this graph")


def bytes_needed(job: Job, assigner: Assigner) -> int:
    """Bytes of disk while a partition is made."""
    return max(bytes_to_number(job.graph, assigner), bytes_to_write(job))


def bytes_to_assign(graph: StoredGraph, assigner: Assigner) -> int:
    """Bytes while nodes are assigned: degrees, rows that the assigner reads, the records they are sorted from, probabilities."""
    degrees = sum(4 * (graph.num_nodes[src] + graph.num_nodes[dst]) for src, _, dst in graph.edges)
    probabilities = matrix_bytes(graph) if reads_of(graph, assigner) == "sampled" else 0
    return degrees + probabilities + _worst_of(sorts_of(graph, assigner)[0])[1]


def bytes_to_number(graph: StoredGraph, assigner: Assigner) -> int:
    """Bytes while nodes are assigned and hotness is computed."""
    needed, (first, more) = bytes_to_assign(graph, assigner), sorts_of(graph, assigner)
    if not _is_ranked_by_batches(graph, assigner):
        return needed
    # If the graph is symmetric, hotness reads the files that the assigner has read.
    return max(needed, matrix_bytes(graph) + (_worst_of(first)[0] if first else _worst_of(more)[1]))


def _is_ranked_by_batches(graph: StoredGraph, assigner: Assigner) -> bool:
    _, train = graph.splits.get("train", ("", np.zeros(0)))
    brings_hotness = type(assigner).hotness is not Assigner.hotness
    return not brings_hotness and len(train) > 0 and policy_of(graph.options) != "degree"


def is_ranked_by_vip(graph: StoredGraph, assigner: Assigner) -> bool:
    return _is_ranked_by_batches(graph, assigner) and policy_of(graph.options) == "vip"


def sorts_of(graph: StoredGraph, assigner: Assigner) -> tuple[list[EdgeFiles], list[EdgeFiles]]:
    """Returns the files of edges that the assigner is sure to read, and the further ones that hotness reads."""
    reads, width = reads_of(graph, assigner), narrowest(graph.total_nodes).itemsize
    sampled = [EdgeFiles.of(graph, own, width, 3 * width) for own in graph.stored_types]
    if reads == "sampled":
        return sampled, []
    more = sampled if _is_ranked_by_batches(graph, assigner) else []
    if reads == "nothing":
        return [], more
    first = [EdgeFiles.of(graph, own, width, 3 * width) for own in in_both_directions(graph.edges)]
    return first, [] if graph.undirected else more


def bytes_to_write(job: Job) -> int:
    """Bytes while all arrays are written, before edges are merged."""
    graph, id_bytes = job.graph, job.id_dtype.itemsize
    gids = sum(graph.num_nodes.values()) * id_bytes
    remaining = worst = 2 * gids  # the new numbers of all nodes, and which node has each
    for node_type, count in graph.num_nodes.items():
        remaining += count * id_bytes
        for name, rows in graph.source.node_attrs(node_type).items():
            remaining += count * graph.storage.nodes[node_type][name].bytes_per_row
            worst = max(worst, remaining + (0 if is_picked(rows, graph.options) else rows_bytes(rows)))
    files = []
    for own in graph.stored_types:
        width = entry_bytes(graph, own, job.id_dtype, job.edge_id_dtype)
        files.append(EdgeFiles.of(graph, own, width, record_bytes(job.id_dtype, job.edge_id_dtype)))
    kept, peak = _worst_of(files)
    return max(worst, remaining + peak, remaining + kept + gids)  # gids are the last files


def reads_of(graph: StoredGraph, assigner: Assigner) -> str:
    """The rows that the assigner is sure to read of a graph."""
    return "nothing" if is_trivial(assigner, graph.options) else assigner.reads or "nothing"


class EdgeFiles(NamedTuple):
    """The files of edges that are sorted into rows.

    source: the user's type.  edges: their number before merging.
    width: bytes of an edge as written; 0 if merging may remove any number of them.
    record: bytes of an edge while it is sorted.
    """

    source: EdgeType
    edges: int
    rows: int
    width: int
    record: int

    @classmethod
    def of(cls, graph: StoredGraph, own: StoredEdgeType, width: int, record: int) -> EdgeFiles:
        rows = graph.num_nodes[own.edge_type[2]]
        return cls(own.source, graph.num_edges(own), rows, 0 if own.both else width, record)


def _worst_of(files: Iterable[EdgeFiles]) -> tuple[int, int]:
    """(bytes that remain, bytes at the peak) of files of edges that are sorted one after the other."""
    remaining = worst = 0
    for each in files:
        remaining += 8 * each.rows + each.edges * each.width
        worst = max(worst, remaining + each.edges * each.record)
    return remaining, worst


def matrix_bytes(graph: StoredGraph) -> int:
    """Bytes of the file with the access probabilities of all parts; 0 if they are held in memory."""
    size = 4 * graph.options.num_parts * graph.total_nodes
    return size if size > graph.options.memory_bytes // 4 else 0
