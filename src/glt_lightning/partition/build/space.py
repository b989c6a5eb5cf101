"""Lower bounds on the disk space of a partition and its working files, checked before hours of work rather than after.

They add up the files of `topology`, `rows` and `edges` at the moment when most of them exist. Sizes that are known only
afterwards are not counted: the edges that remain after merging, and the rankings of remote rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glt_lightning.base import NodeType, PartitionError
from glt_lightning.kernels import row_bytes
from glt_lightning.partition.assign.assigners import built_in
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.hotness.rank import _policy
from glt_lightning.partition.sources.base import LazyArray, Rows, in_memory


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raises `PartitionError` unless the file system of ``folder`` has ``needed`` bytes free. what: subject of the error."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PartitionError(
            f"{folder.parent}: {what} needs at least {needed:,} bytes of disk, working files included, but {free:,} are free. "
            "Free some space or choose another folder."
        )


def row_width(attrs: Mapping[str, Rows]) -> int:
    """Bytes of all attributes of one node or edge."""
    return sum(row_bytes(rows.dtype, rows.shape[1:]) for rows in attrs.values())


def bytes_to_assign(graph: StoredGraph, assigner: Assigner) -> int:
    """Bytes while nodes are assigned: rows that the assigner reads, the records they are sorted from, and probabilities."""
    reads = _reads(graph, assigner)
    if reads == "neighbors":
        return _worst_of(_neighbor_files(graph), graph)[1]
    if reads == "sampled":
        return _matrix(graph) + _worst_of(_sampled_files(graph), graph)[1]
    return 0


def bytes_to_number(graph: StoredGraph, assigner: Assigner) -> int:
    """Bytes while nodes are assigned and hotness is computed."""
    _, train = graph.splits.get("train", ("", np.zeros(0)))
    brings_hotness = type(assigner).hotness is not Assigner.hotness
    if brings_hotness or not len(train) or _policy(graph.options) == "degree":
        return bytes_to_assign(graph, assigner)
    if _reads(graph, assigner) == "neighbors":
        # If the graph is symmetric, hotness reads the same files.
        remaining, worst = _worst_of(_neighbor_files(graph), graph)
        return max(worst, remaining + _matrix(graph))
    return _matrix(graph) + _worst_of(_sampled_files(graph), graph)[1]


def bytes_to_write(
    graph: StoredGraph,
    nodes: Mapping[NodeType, int],
    edges: Sequence[int],
    id_dtype: np.dtype,
    edge_id_dtype: np.dtype,
) -> int:
    """Bytes while ``nodes`` of each type and ``edges`` of each stored edge type (before merging) are written."""
    remaining = worst = 0
    memory = graph.options.memory_bytes
    for node_type, count in nodes.items():
        remaining += count * id_dtype.itemsize
        for name, rows in graph.source.node_attrs(node_type).items():
            size = count * row_bytes(rows.dtype, rows.shape[1:])
            remaining += count * graph.storage.nodes[node_type][name].bytes_per_row
            worst = max(worst, remaining + (size if _goes_through_a_file(rows, memory) else 0))
    record = 12 if id_dtype.itemsize == edge_id_dtype.itemsize == 4 else 24
    files = []
    for stored_type, count in zip(graph.stored_types, edges, strict=True):
        width = id_dtype.itemsize + edge_id_dtype.itemsize
        width += sum(rows.bytes_per_row for rows in graph.storage.edges[stored_type.source].values())
        width += 4 * len(graph.storage.weights[stored_type.source])
        width += 8 if graph.storage.time_attr is not None and graph.storage.time_attr.orders(stored_type) else 0
        files.append(_EdgeFiles(count, nodes[stored_type.edge_type[2]], 0 if stored_type.both else width, record))
    kept, peak = _worst_of(files, graph)
    gids = (
        sum(graph.num_nodes.values()) * id_dtype.itemsize
    )  # of all nodes, whichever parts are written: the last files
    return max(worst, remaining + peak, remaining + kept + gids)


def _reads(graph: StoredGraph, assigner: Assigner) -> str:
    """The rows that the assigner is sure to read: a class of the user's may read any rows or none."""
    known = built_in(assigner)
    return "nothing" if known is None or graph.is_trivial(assigner) else known.reads


class _EdgeFiles(NamedTuple):
    """The files of edges that are sorted into rows.

    edges: their number before merging.  width: bytes of an edge as written; 0 if merging may remove any number of them.
    record: bytes of an edge while it is sorted.
    """

    edges: int
    rows: int
    width: int
    record: int


def _worst_of(files: Iterable[_EdgeFiles], graph: StoredGraph) -> tuple[int, int]:
    """(bytes that remain, bytes at the peak) of files of edges that are sorted one after the other."""
    remaining = worst = 0
    for each in files:
        remaining += 8 * each.rows + each.edges * each.width
        records = each.edges * each.record
        worst = max(worst, remaining + (records if records > graph.options.memory_bytes // 4 * 3 else 0))
    return remaining, worst


def _sampled_files(graph: StoredGraph) -> Iterator[_EdgeFiles]:
    id_bytes = _id_bytes(graph)
    for stored_type in graph.stored_types:
        count = graph.edges[stored_type.source].num_edges * (2 if stored_type.both else 1)
        yield _EdgeFiles(
            count, graph.num_nodes[stored_type.edge_type[2]], 0 if stored_type.both else id_bytes, 12 * id_bytes // 4
        )


def _neighbor_files(graph: StoredGraph) -> Iterator[_EdgeFiles]:
    id_bytes = _id_bytes(graph)
    for (src, _, dst), edges in graph.edges.items():
        if src == dst:
            yield _EdgeFiles(2 * edges.num_edges, graph.num_nodes[dst], 0, 12 * id_bytes // 4)
            continue
        for end in (src, dst):
            yield _EdgeFiles(edges.num_edges, graph.num_nodes[end], id_bytes, 12 * id_bytes // 4)


def _id_bytes(graph: StoredGraph) -> int:
    return 4 if graph.total_nodes < 2**31 else 8


def _matrix(graph: StoredGraph) -> int:
    """Bytes of the file with the access probabilities of all parts; 0 if they are held in memory."""
    size = 4 * graph.options.num_parts * graph.total_nodes
    return size if size > graph.options.memory_bytes // 4 else 0


def _goes_through_a_file(rows: Rows, memory_bytes: int) -> bool:
    if isinstance(rows, LazyArray) or in_memory(rows) is not None:
        return False
    return len(rows) * row_bytes(rows.dtype, rows.shape[1:]) > memory_bytes // 2
