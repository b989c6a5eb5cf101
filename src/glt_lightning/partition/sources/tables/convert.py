"""All tables of a graph, read once and written as ``.npy`` files."""

from __future__ import annotations

from pathlib import Path

from glt_lightning.partition.sources.tables.edges import EdgeConverter, convert_matrix
from glt_lightning.partition.sources.tables.ids import NodeIds
from glt_lightning.partition.sources.tables.lookup import NodeFacts, edge_folder, node_folder, save_facts
from glt_lightning.partition.sources.tables.mapping import Tables
from glt_lightning.partition.sources.tables.nodes import convert_nodes
from glt_lightning.progress import Progress
from glt_lightning.types import NodeType, edge_type_str


def convert_tables(tables: Tables, folder: Path, progress: Progress) -> None:
    """Writes all tables below ``folder``; in memory are the ids, labels and splits of the nodes."""
    facts: dict[NodeType, NodeFacts] = {}
    ids: dict[NodeType, NodeIds] = {}
    keys: dict[NodeType, str] = {}
    for t, nodes in tables.nodes.items():
        what = "nodes" if tables.homogeneous else f"nodes: {t}"
        facts[t], ids[t] = convert_nodes(nodes, what, node_folder(folder, t), progress)
        named = f"column {nodes.id!r} of {nodes.path[0]}" if nodes.id else "which have no ids, but rows from 0"
        keys[t] = f"{what} ({named})"
    for e, edges in tables.edges.items():
        what = "edges" if tables.homogeneous else f"edges: {edge_type_str(e)}"
        if edges.is_matrix:
            convert_matrix(edges, what, edge_folder(folder, e), (ids[e[0]].count, ids[e[2]].count))
        else:
            EdgeConverter(edges, what, e, ids, keys).run(edge_folder(folder, e), progress)
    save_facts(folder, facts)
