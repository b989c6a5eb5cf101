"""The partition folders of `torch_geometric.distributed`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.compat.others.glt_parts import as_array, ends_of, entry_of, part_folders, read_tensor
from glt_lightning.compat.others.pieces import ENDS, ForeignPartition, PartRows
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.partition import load_saved


def read_pyg(folder: Path) -> ForeignPartition:
    """Raises `DataError` for a folder without ``META.json`` and the maps of nodes."""
    try:
        with open_regular(folder / "META.json") as stream:
            meta = parse_json(stream.read())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: expected META.json of a partition of PyG ({error}).") from None
    typed = bool(entry_of(f"{folder}/META.json", meta, "is_hetero"))
    nodes: list[NodeType] = _names(folder, meta, "node_types") if typed else [NODE]
    edges: list[EdgeType] = _names(folder, meta, "edge_types") if typed else [EDGE]
    parts = part_folders(folder, "part_{}")
    found = ForeignPartition(folder.name, len(parts), not typed)
    for t in nodes:
        found.parts[t] = read_tensor(folder / (f"node_map/{t}.pt" if typed else "node_map.pt"))
    graphs = [load_saved(part / "graph.pt", "edges of a part of PyG") for part in parts]
    first = _first_ids(folder, edges, graphs) if typed else {EDGE: 0}
    for part, graph in zip(parts, graphs, strict=True):
        for e in edges:
            where = f"{part}/graph.pt"
            of = _of(where, graph, e) if typed else graph
            row, col, ids = (as_array(where, entry_of(where, of, name)) for name in ("row", "col", "edge_id"))
            found.edges.setdefault(e, []).append(PartRows(ids - first[e], {ENDS: ends_of(where, row, col)}))
        values = load_saved(part / "node_feats.pt", "attributes of nodes of a part of PyG")
        for t in nodes:
            of = _of(f"{part}/node_feats.pt", values, t) if typed else values
            found.nodes.setdefault(t, []).extend(_pieces(of, "id" if typed else "global_id", f"{part}/node_feats.pt"))
        values = load_saved(part / "edge_feats.pt", "attributes of edges of a part of PyG")
        for e in edges:
            of = _of(f"{part}/edge_feats.pt", values, e) if typed else values
            found.more.setdefault(e, []).extend(_pieces(of, "global_id", f"{part}/edge_feats.pt"))
    return found


def _names(folder: Path, meta: Mapping[str, Any], key: str) -> list[Any]:
    """Node types, texts, or edge types, of three texts each."""
    where = f"{folder}/META.json"
    given = entry_of(where, meta, key)
    listed: list[Any] = given if isinstance(given, list) else [None]
    groups = (
        [each if isinstance(each, list) else [] for each in listed] if key == "edge_types" else [[e] for e in listed]
    )
    length = 3 if key == "edge_types" else 1
    if not all(len(g) == length and all(isinstance(n, str) and n and "/" not in n for n in g) for g in groups):
        raise DataError(f"{where}: {key}: expected a list of names of types, found {given!r:.80}.")
    return [tuple(group) if length == 3 else group[0] for group in groups]


def _first_ids(folder: Path, edges: list[EdgeType], graphs: list[Any]) -> dict[EdgeType, int]:
    """PyG numbers the edges of all types together, type after type."""
    first, total = {}, 0
    for e in edges:
        first[e] = total
        for part, graph in enumerate(graphs):
            where = f"{folder}/part_{part}/graph.pt"
            total += as_array(where, entry_of(where, _of(where, graph, e), "row")).size
    return first


def _of(where: str, values: Any, name: NodeType | EdgeType) -> Mapping[str, Any]:
    """What a file has of a type; empty where it has nothing."""
    if not isinstance(values, Mapping):
        raise DataError(f"{where}: expected a dictionary by type, found {type(values).__name__}.")
    found = values.get(name, {} if isinstance(name, str) else values.get(edge_type_str(name), {}))
    if not isinstance(found, Mapping):
        raise DataError(f"{where}: expected a dictionary for {name!r}, found {type(found).__name__}.")
    return found


def _pieces(values: Any, ids: str, where: str) -> list[PartRows]:
    if not values:
        return []
    feats = entry_of(where, values, "feats") or {}
    if not isinstance(feats, Mapping):
        raise DataError(f"{where}: expected a dictionary of attributes, found {type(feats).__name__}.")
    arrays = {name: as_array(where, each) for name, each in feats.items() if each is not None}
    return [PartRows(as_array(where, entry_of(where, values, ids)), arrays)] if arrays else []
