"""All tables of a graph, read once and written as ``.npy`` files."""

from __future__ import annotations

from pathlib import Path

from glt_lightning.base import NodeType, Progress, edge_type_str
from glt_lightning.partition.sources.tables.columns import NodeFacts, edge_folder, node_folder, save_facts
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, TableEncoding
from glt_lightning.partition.sources.tables.mapping import Tables
from glt_lightning.partition.sources.tables.nodes import EdgeConverter, NodeIds, convert_matrix, convert_nodes


def convert_tables(tables: Tables, folder: Path, progress: Progress, fitted: GraphEncoding | None) -> GraphEncoding:
    """Writes all tables below ``folder``; only the ids, labels and splits of the nodes are held in memory.

    fitted: the encoding to apply; None: fit one. Returns the encoding that was used.
    """
    node_features: dict[str, TableEncoding] = {}
    edge_features: dict[str, TableEncoding] = {}
    facts: dict[NodeType, NodeFacts] = {}
    ids: dict[NodeType, NodeIds] = {}
    keys: dict[NodeType, str] = {}
    for t, nodes in tables.nodes.items():
        what = tables.key_of(t)
        stored = None if fitted is None else fitted.nodes.get(t, TableEncoding())
        facts[t], ids[t], node_features[t] = convert_nodes(nodes, what, node_folder(folder, t), progress, stored)
        named = f"column {nodes.id!r} of {nodes.path[0]}" if nodes.id else "which have no ids, but rows from 0"
        keys[t] = f"{what} ({named})"
    for e, edges in tables.edges.items():
        what = tables.key_of(e)
        if edges.is_matrix:
            convert_matrix(edges, what, edge_folder(folder, e), (ids[e[0]].count, ids[e[2]].count))
        else:
            name = edge_type_str(e)
            stored = None if fitted is None else fitted.edges.get(name, TableEncoding())
            converter = EdgeConverter(edges, what, e, ids, keys, stored)
            edge_features[name] = converter.run(edge_folder(folder, e), progress)
    save_facts(folder, facts)
    return GraphEncoding(nodes=node_features, edges=edge_features)
