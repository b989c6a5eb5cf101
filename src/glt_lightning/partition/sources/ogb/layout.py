"""The files of an OGB data set, of nodes or of links, on disk: which there must be, and what can be read off them cheaply.

OGB's loader asks on stdin when files are missing; whoever has found them all here is never asked.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import importlib.util
import re
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import NODE, DataError, NodeType
from glt_lightning.partition.sources.base import width
from glt_lightning.partition.sources.npz import read_headers

LINKS = "ogbl-"  # how names begin where links are to be predicted

# Width of x of the published data sets, so that a model can be sized before anything is downloaded.
_PUBLISHED: dict[str, dict[NodeType, int | None]] = {
    "ogbl-biokg": dict.fromkeys(("disease", "drug", "function", "protein", "sideeffect")),
    "ogbl-citation2": {NODE: 128},
    "ogbl-collab": {NODE: 128},
    "ogbl-ddi": {NODE: None},
    "ogbl-ppa": {NODE: 58},
    "ogbl-vessel": {NODE: 3},
    "ogbl-wikikg2": {NODE: None},
    "ogbn-arxiv": {NODE: 128},
    "ogbn-mag": {"author": None, "field_of_study": None, "institution": None, "paper": 128},
    "ogbn-papers100M": {NODE: 128},
    "ogbn-products": {NODE: 100},
    "ogbn-proteins": {NODE: None},
}


class OgbLayout:
    """Where the data set ``name`` lies below ``root``, and OGB's own description of it (its table ``master.csv``)."""

    def __init__(self, name: str, root: str | Path) -> None:
        self.links = name.startswith(LINKS)
        table = _master_table("linkproppred" if self.links else "nodeproppred")
        if name not in table:
            near = difflib.get_close_matches(name, table, n=3, cutoff=0.4)
            raise DataError(
                f"dataset: OGB has no {'link' if self.links else 'node'} data set {name!r}"
                + (f"; did you mean {' or '.join(near)}?" if near else ".")
                + f" It has: {', '.join(sorted(table))}."
            )
        self.name, self.meta = name, table[name]
        plain = Path(root) / name.replace("-", "_")
        converted = plain.with_name(plain.name + "_pyg")  # OGB prefers this folder where it exists
        self.folder = converted if converted.exists() else plain

    @property
    def hetero(self) -> bool:
        return self.meta["is hetero"] == "True"

    @property
    def num_outputs(self) -> int | None:
        """Classes of a single task, else the number of tasks; None where links are to be predicted."""
        if self.links:
            return None
        tasks = int(self.meta["num tasks"])
        return int(self.meta["num classes"]) if tasks == 1 else tasks

    @property
    def split_folder(self) -> Path:
        return self.folder / "split" / self.meta["split"]

    def files(self) -> list[Path]:
        """All files of the data set that are read. Raises `DataError` for the first that is missing."""
        release = self.folder / f"RELEASE_v{self.meta['version']}.txt"
        self._need(release)
        found = [self._need(self.folder / "raw" / name) for name in self._raw()]
        if self.hetero:
            found += [self._need(self.folder / "raw" / name) for name in self._hetero_raw()]
        split = self.split_folder
        if (saved := split / "split_dict.pt").exists():
            return [*found, saved]
        if self.links:
            return found + [self._need(split / f"{s}.pt") for s in ("train", "valid", "test")]
        if self.hetero:
            self._need(split / "nodetype-has-split.csv.gz")
            typed = _flagged(split / "nodetype-has-split.csv.gz")
            return found + [self._need(split / t / f"{s}.csv.gz") for t in typed for s in ("train", "valid", "test")]
        return found + [self._need(split / f"{s}.csv.gz") for s in ("train", "valid", "test")]

    @cached_property
    def num_features(self) -> dict[NodeType, int | None]:
        """Width of ``x`` per node type: from the files, or as published when there are none yet."""
        if not self.folder.exists():
            return dict(_PUBLISHED.get(self.name, {}))
        if self.hetero:
            types = _header(self._need(self.folder / "raw" / "num-node-dict.csv.gz"))
            return {t: _columns(self.folder / "raw" / "node-feat" / t / "node-feat.csv.gz") for t in types}
        if self.meta["binary"] == "True":
            headers = read_headers(self._need(self.folder / "raw" / "data.npz"))
            return {NODE: width(headers["node_feat"][0]) if "node_feat" in headers else None}
        return {NODE: _columns(self.folder / "raw" / "node-feat.csv.gz")}

    def _raw(self) -> list[str]:
        if self.meta["binary"] == "True":
            names = ["edge_index_dict", "num_nodes_dict", "num_edges_dict"] if self.hetero else ["data"]
            return [f"{name}.npz" for name in names + ([] if self.links else ["node-label"])]
        if self.hetero:
            names = ["num-node-dict", "triplet-type-list", *([] if self.links else ["nodetype-has-label"])]
            return [f"{name}.csv.gz" for name in names]
        names = ["edge", "num-node-list", "num-edge-list", *([] if self.links else ["node-label"])]
        names += ["node-feat"] if self.meta["has_node_attr"] == "True" else []
        names += ["edge-feat"] if self.meta["has_edge_attr"] == "True" else []
        for key in ("additional node files", "additional edge files"):
            names += [] if self.meta[key] == "None" else self.meta[key].split(",")
        if "node_species" in names and (self.folder / "raw" / "species.csv.gz").exists():
            names[names.index("node_species")] = "species"  # OGB renames it when it reads it first
        return [f"{name}.csv.gz" for name in names]

    def _hetero_raw(self) -> list[str]:
        if self.meta["binary"] == "True":
            return []
        raw = self.folder / "raw"
        with gzip.open(raw / "triplet-type-list.csv.gz", "rt") as stream:
            relations = ["___".join(row) for row in csv.reader(stream)]
        names = [f"relations/{r}/{name}.csv.gz" for r in relations for name in ("edge", "num-edge-list")]
        if self.links:
            return names
        return names + [f"node-label/{t}/node-label.csv.gz" for t in _flagged(raw / "nodetype-has-label.csv.gz")]

    def _need(self, path: Path) -> Path:
        if not path.is_file():
            raise DataError(
                f"dataset: {path} is missing, so {self.name} is not complete. Put it there, or remove {self.folder} "
                "to have it downloaded again."
            )
        return path


def _master_table(task: str) -> dict[str, dict[str, str]]:
    """OGB's table of one kind of task, by data set. Read without importing ogb, which asks the network for newer versions."""
    spec = importlib.util.find_spec("ogb")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("dataset: OGB data sets need the package ogb; install it with `pip install ogb`.")
    with open(Path(spec.submodule_search_locations[0]) / task / "master.csv", newline="") as stream:
        rows = list(csv.reader(stream))
    return {name: {row[0]: row[i] for row in rows[1:]} for i, name in enumerate(rows[0]) if i}


def _columns(path: Path) -> int | None:
    if not path.exists():
        return None
    with gzip.open(path, "rt") as stream:
        return stream.readline().count(",") + 1


def _header(path: Path) -> list[str]:
    with gzip.open(path, "rt") as stream:
        return stream.readline().strip().split(",")


def _flagged(path: Path) -> list[str]:
    """Columns of a one-row table that hold a true value."""
    with gzip.open(path, "rt", newline="") as stream:
        names, values = list(csv.reader(stream))[:2]
    return [n for n, v in zip(names, values, strict=True) if re.fullmatch("(?i)true|1", v.strip())]


def nan_to_unlabelled(y: np.ndarray) -> np.ndarray:
    """Class labels that became floats because some are missing (NaN): integers again, -1 for "none"."""
    if y.dtype.kind != "f" or not np.isnan(y).any():
        return y
    return np.where(np.isnan(y), -1, y).astype(np.int64)
