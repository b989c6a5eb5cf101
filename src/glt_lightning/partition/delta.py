"""One version on disk: the rows that an append added, a folder of arrays and ``delta.json``."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EdgeType, NodeType, PartitionError, edge_type_str
from glt_lightning.graph import ArrayEntry, OverlayFacts, open_array, open_regular, parse_json
from glt_lightning.partition.additions import Additions, ChangedNodes, Deleted, DeletedEdges, NewEdges, NewNodes
from glt_lightning.partition.stored_tables import names_of, save_named, stored_names

DELTA = "delta.json"
_FORMAT = "glt_lightning.delta"
_ADDS, _DELETES, _HELD_OUT = 1, 2, 3  # versions of the format: releases refuse deletions that they do not know
_ARRAY_PATH = re.compile(r"[a-z_]+/(?!\.\.?/)[^/\0]+/[^/\0]+\.npy")


@dataclass(frozen=True)
class Delta:
    """A version. previous: the digest of the one before it, or the identity of the partition.  ids: of tables, as
    `versions.Appended` has them.  facts: of all rows up to this version; None in one of an earlier release."""

    previous: str
    digest: str
    additions: Additions
    ids: Mapping[NodeType, np.ndarray]
    facts: OverlayFacts | None

    @classmethod
    def load(cls, place: Path) -> Delta:
        raw = read_header(place)
        try:
            arrays: dict[tuple[str, str], dict[str, np.ndarray]] = defaultdict(dict)
            for path, entry in raw["arrays"].items():
                kind, of, name = path.split("/")
                arrays[kind, of][name.removesuffix(".npy")] = open_array(place, path, entry)
            nodes = {t: NewNodes(count, arrays["nodes", t]) for t, count in raw["nodes"].items()}
            edges = {_edge_type(e): NewEdges(arrays["edges", e].pop("ends"), arrays["edges", e]) for e in raw["edges"]}
            changed = {t: ChangedNodes(arrays["changed", t].pop("ids"), arrays["changed", t]) for t in raw["changed"]}
            gone = {t: arrays["deleted", t]["ids"] for t in raw["deleted"]["nodes"]}
            gone_edges = {_edge_type(e): DeletedEdges(**arrays["deleted_edges", e]) for e in raw["deleted"]["edges"]}
            rows = Additions(nodes, edges, changed, Deleted(gone, gone_edges))
            ids = {t: names_of(arrays["ids", t]) for t in raw["ids"]}
            facts = OverlayFacts.from_json(raw["overlay"]) if "overlay" in raw else None
            return cls(raw["previous"], raw["digest"], rows, ids, facts)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise PartitionError(
                f"{place / DELTA}: no description of rows that were appended ({error!r:.200})."
            ) from None


def _edge_type(name: str) -> EdgeType:
    src, rel, dst = name.split("__")
    return src, rel, dst


def read_header(place: Path) -> dict[str, Any]:
    """Reads and checks ``delta.json``. Raises `PartitionError`, naming it, for a damaged one."""
    path = place / DELTA
    try:
        with open_regular(path) as stream:
            return parse_header(stream.read(), str(path))
    except OSError as error:
        raise PartitionError(f"{path}: damaged, or not a version of a graph ({error}).") from None


def parse_header(text: bytes, path: str) -> dict[str, Any]:
    """Parses and checks ``delta.json``: ``arrays`` as entries, and types of ``deleted`` rows in each version of the
    format. Raises `PartitionError`, naming ``path``, for a damaged one."""
    try:
        raw: Any = parse_json(text)
        if raw["format"] != _FORMAT or raw["version"] not in (_ADDS, _DELETES, _HELD_OUT):
            raise ValueError(f"format {raw['format']!r}, version {raw['version']!r}")
        if raw["digest"] != digest_of(raw):
            raise ValueError("its digest does not match its content")
        if bad := [name for name in raw["arrays"] if not _ARRAY_PATH.fullmatch(name)]:
            raise ValueError(f"{bad[0]!r:.100} is not a path of this format")
        arrays = {name: ArrayEntry.from_json(entry) for name, entry in raw["arrays"].items()}
        return {"deleted": {"nodes": [], "edges": []}, **raw, "arrays": arrays}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PartitionError(f"{path}: damaged, or not a version of a graph ({error}).") from None


def digest_of(raw: Mapping[str, Any]) -> str:
    """Returns the hash of the content of ``delta.json``."""
    text = json.dumps({key: value for key, value in raw.items() if key != "digest"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_delta(
    folder: Path,
    number: int,
    previous: str,
    additions: Additions,
    ids: Mapping[NodeType, np.ndarray],
    facts: OverlayFacts,
) -> None:
    """Writes a version into a folder. number, facts: as of `Delta`."""
    arrays: dict[str, np.ndarray] = {}
    for t, nodes in additions.nodes.items():
        arrays |= {f"nodes/{t}/{name}.npy": values for name, values in nodes.attrs.items()}
    for e, edges in additions.edges.items():
        place = f"edges/{edge_type_str(e)}"
        arrays |= {f"{place}/{name}.npy": values for name, values in edges.attrs.items()}
        arrays[f"{place}/ends.npy"] = np.asarray(edges.edge_index, np.int64)
    for t, each in additions.changed.items():
        assert isinstance(each, ChangedNodes)  # `Appended.completed` refuses several
        arrays |= {f"changed/{t}/{name}.npy": values for name, values in each.attrs.items()}
        arrays[f"changed/{t}/ids.npy"] = np.asarray(each.ids, np.int64)
    for t, gone in additions.deleted.nodes.items():
        arrays[f"deleted/{t}/ids.npy"] = gone
    for e, some in additions.deleted.edges.items():
        place = f"deleted_edges/{edge_type_str(e)}"
        arrays |= {f"{place}/ids.npy": some.ids, f"{place}/ends.npy": some.ends}
    for t, names in ids.items():
        arrays |= {f"ids/{t}/{name}.npy": values for name, values in stored_names(names).items()}
    raw: dict[str, Any] = {
        "format": _FORMAT,
        "version": _ADDS,
        "number": number,
        "previous": previous,
        "nodes": {t: nodes.count for t, nodes in additions.nodes.items()},
        "edges": [edge_type_str(e) for e in additions.edges],
        "changed": list(additions.changed),
        "ids": list(ids),
        "overlay": facts.to_json(),
        "arrays": {path: save_named(folder, path, arrays[path])[1].to_json() for path in sorted(arrays)},
    }
    deleted = additions.deleted
    if deleted.nodes or deleted.edges:
        types = {"nodes": list(deleted.nodes), "edges": [edge_type_str(e) for e in deleted.edges]}
        held_out = any((some.ids == DeletedEdges.HELD_OUT).any() for some in deleted.edges.values())
        raw |= {"version": _HELD_OUT if held_out else _DELETES, "deleted": types}
    raw["digest"] = digest_of(json.loads(json.dumps(raw)))
    (folder / DELTA).write_text(json.dumps(raw, indent=1) + "\n", "utf-8")
