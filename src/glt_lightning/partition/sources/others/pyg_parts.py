"""The partition folders of `torch_geometric.distributed`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.partition.sources.others.pieces import ENDS, ForeignPartition, PartRows
from glt_lightning.partition.sources.others.pt_files import as_array, part_folders, read_tensor
from glt_lightning.partition.sources.saved import load_saved
from glt_lightning.types import EDGE, NODE, EdgeType, NodeType, edge_type_str


def read_pyg(folder: Path) -> ForeignPartition:
    """Raises `DataError` for a folder without ``META.json`` and the maps of nodes."""
    try:
        meta = json.loads((folder / "META.json").read_text())
        typed = bool(meta["is_hetero"])
        nodes: list[NodeType] = meta["node_types"] if typed else [NODE]
        edges: list[EdgeType] = [(e[0], e[1], e[2]) for e in meta["edge_types"]] if typed else [EDGE]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: expected META.json of a partition of PyG ({error}).") from None
    parts = part_folders(folder, "part_{}")
    found = ForeignPartition(folder.name, len(parts), not typed)
    for t in nodes:
        found.parts[t] = read_tensor(folder / (f"node_map/{t}.pt" if typed else "node_map.pt"))
    graphs = [load_saved(part / "graph.pt", "edges of a part of PyG") for part in parts]
    first = _first_ids(edges, graphs) if typed else {EDGE: 0}
    for part, graph in zip(parts, graphs, strict=True):
        for e in edges:
            of = _of(graph, e) if typed else graph
            ends = np.stack([as_array(f"{part}/graph.pt", of[name]) for name in ("row", "col")], axis=1)
            ids = as_array(f"{part}/graph.pt", of["edge_id"]) - first[e]
            found.edges.setdefault(e, []).append(PartRows(ids, {ENDS: ends}))
        values = load_saved(part / "node_feats.pt", "attributes of nodes of a part of PyG")
        for t in nodes:
            of = values.get(t, {}) if typed else values
            found.nodes.setdefault(t, []).extend(_pieces(of, "id" if typed else "global_id", f"{part}/node_feats.pt"))
        values = load_saved(part / "edge_feats.pt", "attributes of edges of a part of PyG")
        for e in edges:
            of = _of(values, e) if typed else values
            found.more.setdefault(e, []).extend(_pieces(of, "global_id", f"{part}/edge_feats.pt"))
    return found


def _first_ids(edges: list[EdgeType], graphs: list[Any]) -> dict[EdgeType, int]:
    """PyG numbers the edges of all types together, type after type."""
    first, total = {}, 0
    for e in edges:
        first[e] = total
        total += sum(len(_of(graph, e).get("row", ())) for graph in graphs)
    return first


def _of(values: Mapping[Any, Any], edge_type: EdgeType) -> Mapping[str, Any]:
    found = values.get(edge_type, values.get(edge_type_str(edge_type), {}))
    return found if isinstance(found, Mapping) else {}


def _pieces(values: Mapping[str, Any], ids: str, where: str) -> list[PartRows]:
    if not values or not values.get("feats"):
        return []
    arrays = {name: as_array(where, each) for name, each in values["feats"].items() if each is not None}
    return [PartRows(as_array(where, values[ids]), arrays)] if arrays else []
