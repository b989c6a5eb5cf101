"""Folders of converted tables: what is in one, and the way from ``n_id`` of batches back to the user's ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.partition.sources.files import NpyFile

FACTS = "tables.json"
_FORMAT = "glt_lightning.tables"


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What was found in a table of nodes. ``classes``: names of the labels 0, 1, ..., None if they are no text."""

    num_nodes: int
    classes: list[str] | None


def node_folder(folder: Path, node_type: NodeType) -> Path:
    return folder / "nodes" / node_type


def edge_folder(folder: Path, edge_type: EdgeType) -> Path:
    return folder / "edges" / edge_type_str(edge_type)


def save_facts(folder: Path, nodes: Mapping[NodeType, NodeFacts]) -> None:
    facts = {"format": _FORMAT, "nodes": {t: asdict(each) for t, each in nodes.items()}}
    (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")


def load_facts(folder: Path) -> dict[NodeType, NodeFacts]:
    path = folder / FACTS
    try:
        with open_regular(path) as stream:
            facts: Any = parse_json(stream.read())
        if facts["format"] != _FORMAT:
            raise ValueError(f"format {facts['format']!r}")
        return {t: NodeFacts(**each) for t, each in facts["nodes"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a valid description of converted tables ({error}). Delete its folder; the next run "
            "creates it again."
        ) from None


def has_ids(folder: Path, node_type: NodeType) -> bool:
    """Whether there are converted tables whose nodes of a type have ids other than their rows."""
    return any((node_folder(folder, node_type) / name).exists() for name in ("ids.npy", "ids_bytes.npy"))


def user_ids(folder: str | Path, n_id: Any, node_type: NodeType | None = None) -> np.ndarray:
    """The ids that the user's table gives to nodes.

    folder: of the converted tables (``open_source(dataset, root).folder``).
    n_id: integers [K], as in batches and predictions; an array, a list or a tensor.
    node_type: needed when the graph has several.
    Returns int64 [K], or objects [K] that are text. It is ``n_id`` itself where nodes are named by their row.

    Raises:
        DataError: For a folder that holds no converted tables, or an id out of range.

    Example:
        >>> source = open_source(tables, "data")  # paper W-1 is row 0 of papers.csv
        >>> user_ids(source.folder, [2, 0])
        array(['W-3', 'W-1'], dtype=object)
    """
    nodes = load_facts(Path(folder))
    if node_type is None and len(nodes) == 1:
        node_type = next(iter(nodes))
    if node_type not in nodes:
        raise DataError(f"user_ids: node_type: expected one of {', '.join(nodes)}; got {node_type!r}.")
    rows = np.asarray(n_id)
    rows = rows.astype(np.int64) if rows.size == 0 else rows
    count = nodes[node_type].num_nodes
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or ((rows < 0) | (rows >= count)).any():
        raise DataError(
            f"user_ids: n_id: expected integers [K] of 0..{count - 1}, got {rows.dtype} {list(rows.shape)}."
        )
    place = node_folder(Path(folder), node_type)
    if (place / "ids.npy").exists():
        return NpyFile(place / "ids.npy")[rows]
    if (place / "ids_bytes.npy").exists():
        return _texts(NpyFile(place / "ids_offsets.npy"), NpyFile(place / "ids_bytes.npy"), rows)
    return rows.astype(np.int64)


def _texts(offsets: NpyFile, data: NpyFile, rows: np.ndarray) -> np.ndarray:
    if not len(rows):
        return np.empty(0, object)
    begin, end = offsets[rows], offsets[rows + 1]
    stored = np.load(data.path, mmap_mode="r", allow_pickle=False) if len(data) else np.zeros(0, np.uint8)
    found = np.empty(len(rows), object)
    found[:] = [stored[b:e].tobytes().decode() for b, e in zip(begin.tolist(), end.tolist(), strict=True)]
    return found
