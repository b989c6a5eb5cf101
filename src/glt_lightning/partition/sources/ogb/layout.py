"""The files of an OGB data set, of nodes or of links, on disk: the required files, and facts that are cheap to read from them.

OGB's loader asks on stdin when files are missing. So all files are checked here before the loader is called.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import re
import shutil
import zipfile
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema, NodeType
from glt_lightning.graph import open_regular
from glt_lightning.partition.folder import disk_full_speaks, exclusive, whole_file
from glt_lightning.partition.sources.base import ArraySource, Rows, Splits, near, width
from glt_lightning.partition.sources.files import FileEdges, NpyFile
from glt_lightning.partition.sources.npz import read_headers, stored_members

LINKS = "ogbl-"  # how names begin where links are to be predicted


# Width of x of the published data sets, so that a model can be sized before anything is downloaded.
PUBLISHED: dict[str, dict[NodeType, int | None]] = {
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
    """The folder of the data set ``name`` below ``root``, and OGB's description of it (its table ``master.csv``)."""

    def __init__(self, name: str, root: str | Path) -> None:
        self.links = name.startswith(LINKS)
        table = _master_table("linkproppred" if self.links else "nodeproppred")
        if name not in table:
            raise DataError(
                f"dataset: OGB has no {'link' if self.links else 'node'} data set {name!r}.{near(name, table, 3, 0.4)} It has: "
                f"{', '.join(sorted(table))}."
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
        """Number of classes of a single task, else the number of tasks; None if links are to be predicted."""
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
            return dict(PUBLISHED.get(self.name, {}))
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
    """Reads OGB's table of one kind of task, by data set, without importing ogb, which asks the network for newer versions."""
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
    """Converts class labels that are floats because some are missing (NaN) to integers, with -1 for "none"."""
    if y.dtype.kind != "f" or not np.isnan(y).any():
        return y
    return np.where(np.isnan(y), -1, y).astype(np.int64)


# OGB data sets that come as one large ``data.npz`` (ogbn-papers100M, ogbl-vessel), read piece by piece.


_LOCK_S = 6 * 3600.0
_COPY = 16 << 20
_COUNTS = ("num_nodes_list", "num_edges_list")


def read_binary(folder: Path, name: str, num_classes: int | None, splits: Splits) -> ArraySource:
    """Opens a homogeneous graph in ``raw/data.npz`` and, unless links are to be predicted, ``raw/node-label.npz``.

    num_classes, splits: those of the data set; without labels, num_classes is None.
    """
    raw = folder / "raw"
    members = _members(raw / "data.npz", folder)
    counts = members["num_nodes_list"]
    if len(counts) != 1:
        raise DataError(f"{raw / 'data.npz'}: expected one graph, found {len(counts)}.")
    names = {"node_feat": "x", "edge_feat": "edge_attr"}
    node: dict[str, Rows] = {names.get(k, k): file for k, file in members.items() if k.startswith("node_")}
    edge: dict[str, Rows] = {
        names.get(k, k): f for k, f in members.items() if k.startswith("edge_") and k != "edge_index"
    }
    return ArraySource(
        name=name,
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={NODE: int(counts[:1].reshape(-1)[0])},
        edge_index={EDGE: FileEdges(members["edge_index"])},
        node={NODE: node if num_classes is None else node | {"y": _labels(raw / "node-label.npz")}},
        edge={EDGE: edge},
        splits=splits,
        target_type=None if num_classes is None else NODE,
        num_classes=num_classes,
    )


def _labels(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
            y = file["node_label"]
    except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected an array node_label ({error}).") from None
    return nan_to_unlabelled(y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)


def _members(path: Path, folder: Path) -> dict[str, NpyFile]:
    """Opens the arrays of ``data.npz``; compressed ones are unpacked beside it once."""
    try:
        stored = stored_members(path)
        with zipfile.ZipFile(path) as archive:
            names = [m.removesuffix(".npy") for m in archive.namelist()]
        members = {n: NpyFile(path, *stored[n]) if n in stored else _unpacked(path, n) for n in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected an .npz file of plain arrays ({error}).") from None
    if missing := {"edge_index", *_COUNTS} - set(members):
        raise DataError(f"{path}: has no {', '.join(sorted(missing))}; remove {folder} to download it again.")
    return {name: f if name == "edge_index" else f.by_rows() for name, f in members.items()}


def _unpacked(path: Path, name: str) -> NpyFile:
    target = path.parent / "unpacked" / f"{name}.npy"
    if not target.exists():
        with exclusive(target, _LOCK_S):  # ranks that start together would unpack the same
            if not target.exists():
                with zipfile.ZipFile(path) as archive, whole_file(target) as temporary:
                    size = archive.getinfo(f"{name}.npy").file_size
                    with (
                        disk_full_speaks(target.parent, size),
                        archive.open(f"{name}.npy") as packed,
                        open(temporary, "wb") as out,
                    ):
                        shutil.copyfileobj(packed, out, _COPY)
    return NpyFile(target)


def read_split(folder: Path) -> dict[str, np.ndarray]:
    """``train``, ``valid``, ``test`` -> int64 ids, from files that hold one per line."""
    ids = {}
    for name in ("train", "valid", "test"):
        path = folder / f"{name}.csv.gz"
        try:
            with gzip.open(path, "rb") as stream:
                ids[name] = np.array(stream.read().split(), np.int64)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}: expected node ids, one per line ({error}).") from None
    return ids
