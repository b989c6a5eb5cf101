"""OGB data sets of nodes and of links, read by OGB's own loader, without its questions and without trusting pickles."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, GraphSchema, NodeType
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.sources.base import ArraySource, DelegatingSource, Splits, file_fingerprint
from glt_lightning.partition.sources.files import UNREADABLE, fetch_zip, known_classes, load_saved
from glt_lightning.partition.sources.ogb.layout import LINKS, OgbLayout, nan_to_unlabelled, read_binary, read_split

_log = logging.getLogger(__name__)
_LOCK_S = 6 * 3600.0


class OgbSource(DelegatingSource):
    """A data set ``ogbn-*`` or ``ogbl-*`` below ``root``.

    It is downloaded when its folder does not exist at all and its content is needed. Links to predict are no splits of nodes:
    `read_edge_splits` reads them.
    """

    def __init__(self, name: str, root: str | Path) -> None:
        self.name, self._root = name, Path(root)
        self._layout = OgbLayout(name, root)

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint of the release and its files. Large files count by their size, since a release does not change."""
        return f"v{self._layout.meta['version']}-{file_fingerprint(*self._files, times=False)}"

    @property
    def schema(self) -> GraphSchema:
        return super().schema if self._layout.hetero else GraphSchema.single()

    @property
    def edge_splits(self) -> dict[EdgeType, dict[str, dict[str, np.ndarray]]]:
        """The edges to predict, by edge type: split -> ``edge`` and the negatives that OGB gives.

        Of a typed graph (biokg), in which a relation is an edge type, those of validation and test; the graph has the others.
        """
        if not self._layout.links:
            return {}
        splits = read_edge_splits(self.name, self._root)
        if not self._layout.hetero:
            return {EDGE: {name: _links(given) for name, given in splits.items()}}
        found: dict[EdgeType, dict[str, dict[str, np.ndarray]]] = {}
        for edge_type in self.schema.edge_types:
            number = int(self.edge_attrs(edge_type)["edge_reltype"][:1].ravel()[0])
            for name in ("val", "test"):
                links = {key: np.asarray(values) for key, values in splits[name].items()}
                of_it = {key: values[links["relation"] == number] for key, values in links.items()}
                own = _links(of_it)
                found.setdefault(edge_type, {})[name] = {key: own[key] for key in own if key != "relation"}
        return found

    @property
    def edge_splits_may_overlap(self) -> bool:
        """True if a pair of nodes may be in several splits; in ogbl-collab, authors write together in several years."""
        return self._layout.links

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        return self._layout.num_features

    @property
    def num_classes(self) -> int | None:
        return self._layout.num_outputs

    @property
    def class_names(self) -> list[str] | None:
        return None

    @property
    def label_form(self) -> tuple[str, tuple[int, ...]] | None:
        """Kind and shape of a node's labels, known before the download; integers, because NaN becomes -1."""
        tasks = 1 if self._layout.links else int(self._layout.meta["num tasks"])
        return None if self._layout.links else ("int", () if tasks == 1 else (tasks,))

    @cached_property
    def _files(self) -> list[Path]:
        self._layout = fetched(self._layout, self._root)
        return self._layout.files()

    def _load(self) -> ArraySource:
        _ = self._files  # complete, so that OGB has nothing to ask
        if self._layout.meta["binary"] == "True" and not self._layout.hetero:
            return read_binary(self._layout.folder, self.name, self.num_classes, self._binary_splits())
        from glt_lightning.partition.sources.pyg import convert

        data, splits = self._read()
        graph = convert(_to_hetero(data) if self._layout.hetero else data, self.name)
        if self._layout.links:
            return graph
        if "classification" in self._layout.meta["task type"]:
            node = {
                t: {k: nan_to_unlabelled(v[:]) if k == "y" else v for k, v in a.items()} for t, a in graph.node.items()
            }
            graph = replace(graph, node=node)
        named = {("val" if s == "valid" else s): _typed(ids, graph) for s, ids in splits.items()}
        types = {t for t, _ in named.values()}
        return replace(graph, splits=named, target_type=types.pop() if len(types) == 1 else graph.target_type)

    def _binary_splits(self) -> Splits:
        if self._layout.links:
            return {}
        split = self._layout.split_folder
        saved = split / "split_dict.pt"
        ids = load_saved(saved, "a dictionary of node ids") if saved.exists() else read_split(split)
        return {("val" if s == "valid" else s): (NODE, np.asarray(v)) for s, v in ids.items()}

    def _read(self) -> tuple[Any, dict[str, Any]]:
        processed = self._layout.folder / "processed"
        try:
            with exclusive(processed, _LOCK_S), known_classes():  # two runs would write the same processed file
                if self._layout.links:
                    from ogb.linkproppred import PygLinkPropPredDataset

                    return PygLinkPropPredDataset(self.name, root=str(self._root))[0], {}
                from ogb.nodeproppred import PygNodePropPredDataset

                dataset = PygNodePropPredDataset(self.name, root=str(self._root))
                return dataset[0], dataset.get_idx_split()
        except UNREADABLE as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DataError(
                f"dataset: OGB cannot read {self._layout.folder} ({type(error).__name__}: {reason}). "
                f"If {processed} was made by another version of PyG, remove it; "
                "if a file is damaged, remove the whole folder to download again."
            ) from error


def fetched(layout: OgbLayout, root: Path) -> OgbLayout:
    """Downloads a data set whose folder does not exist. Returns its layout."""
    if layout.folder.exists():
        return layout
    url = layout.meta["url"].replace("http://", "https://")
    hint = f"Where there is a network, unpack that archive and put its folder at {layout.folder}."
    _log.info("%s is not at %s: downloading it.", layout.name, layout.folder)
    fetch_zip(url, layout.meta["download_name"], layout.folder, hint)
    return OgbLayout(layout.name, root)


def _links(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the arrays of a split to our names."""
    if "relation" in given:
        links = {"edge": np.stack([given["head"], given["tail"]]), "relation": given["relation"]}
        named = {"tail_neg": "negatives", "head_neg": "source_negatives"}
        return links | {ours: given[theirs] for theirs, ours in named.items() if theirs in given}
    if "source_node" in given:
        links = {"edge": np.stack([given["source_node"], given["target_node"]])}
        return links | ({"negatives": given["target_node_neg"]} if "target_node_neg" in given else {})
    links = {"edge": np.ascontiguousarray(given["edge"].T)}
    return links | ({"negative_edges": np.ascontiguousarray(given["edge_neg"].T)} if "edge_neg" in given else {})


def _to_hetero(data: Any) -> Any:
    """Converts OGB's form of a typed graph, a `Data` of dictionaries by node type or (source, relation, destination), to
    `HeteroData`."""
    from torch_geometric.data import HeteroData

    hetero = HeteroData()
    for node_type, count in data.num_nodes_dict.items():
        hetero[node_type].num_nodes = int(count)
    for key, values in data.to_dict().items():
        if key in ("num_nodes_dict", "__num_nodes__") or not isinstance(values, dict):
            continue
        for type_, value in values.items():
            hetero[type_][key.removesuffix("_dict")] = value
    return hetero


def _typed(ids: Any, graph: ArraySource) -> tuple[NodeType, np.ndarray]:
    """Reads one split in OGB's form: ids, or a dictionary with the ids of one node type."""
    if isinstance(ids, dict):
        if len(ids) != 1:
            raise DataError(
                f"dataset: {graph.name} splits nodes of several types ({sorted(ids)}); give the splits yourself."
            )
        return next((t, np.asarray(v)) for t, v in ids.items())
    return graph.schema.node_types[0], np.asarray(ids)


# The links that an OGB data set asks to predict: what its evaluation is made of.


_EXPECTED = "a dictionary of arrays"
_PARTS = {"train": "train", "val": "valid", "test": "test"}


def read_edge_splits(name: str, root: str | Path) -> dict[str, dict[str, np.ndarray]]:
    """Reads the edges to predict of a data set: ``train``, ``val``, ``test`` -> OGB's arrays; node ids are user ids, as in
    ``n_id``.

    name: ``ogbl-...``.  root: as in `open_source`; the data set is downloaded if its folder does not exist.

    The keys are OGB's: ``edge`` int64 [M, 2] and ``edge_neg`` (collab, ddi, ppa, vessel), ``source_node`` and
    ``target_node`` (citation2), ``head``, ``relation`` and ``tail`` (wikikg2, biokg), and others of M rows. Node types
    (``head_type``) are arrays of text.

    Raises:
        DataError: For a data set without links, or with missing or damaged files.

    Example:
        >>> splits = read_edge_splits("ogbl-collab", "ogb")
        >>> {name: links["edge"].shape for name, links in splits.items()}
        {'train': (12, 2), 'val': (5, 2), 'test': (4, 2)}
    """
    if not name.startswith(LINKS):
        raise DataError(f"dataset: {name!r} has no links to predict; expected an OGB data set {LINKS}*.")
    root = Path(root).expanduser()
    layout = fetched(OgbLayout(name, root), root)
    layout.files()  # complete
    folder = layout.split_folder
    if (saved := folder / "split_dict.pt").exists():
        stored = _dictionary(saved, load_saved(saved, _EXPECTED))
        if missing := set(_PARTS.values()) - set(stored):
            raise DataError(f"{saved}: has no {', '.join(sorted(missing))}.")
        return {split: _arrays(saved, stored[part]) for split, part in _PARTS.items()}
    files = {split: folder / f"{part}.pt" for split, part in _PARTS.items()}
    return {split: _arrays(path, load_saved(path, _EXPECTED)) for split, path in files.items()}


def _dictionary(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(f"{path}: expected {_EXPECTED}, found {type(value).__name__}.")
    return value


def _arrays(path: Path, value: Any) -> dict[str, np.ndarray]:
    arrays = {}
    for key, each in _dictionary(path, value).items():
        arrays[key] = array = each.numpy() if hasattr(each, "numpy") else np.asarray(each)
        if array.dtype.kind not in "biufU":
            raise DataError(f"{path}: {key}: expected numbers or text, got {array.dtype}.")
    return arrays
