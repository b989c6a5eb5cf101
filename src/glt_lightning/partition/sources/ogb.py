"""OGB node-property data sets, read by OGB's own loader, without its questions and without trusting pickles."""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.sources.base import ArraySource, DelegatingSource, GraphSource, Splits
from glt_lightning.partition.sources.download import fetch_zip
from glt_lightning.partition.sources.fingerprint import file_fingerprint
from glt_lightning.partition.sources.ogb_binary import OgbBinary, read_split
from glt_lightning.partition.sources.ogb_layout import OgbLayout, nan_to_unlabelled
from glt_lightning.types import NODE, NodeType

_log = logging.getLogger(__name__)

_LOCK_S = 6 * 3600.0
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    AssertionError,
    LookupError,
    zlib.error,
    pickle.UnpicklingError,
)


class OgbSource(DelegatingSource):
    """``ogbn-*`` below ``root``. It is downloaded when its folder does not exist at all and its content is needed."""

    def __init__(self, name: str, root: str | Path) -> None:
        self.name, self._root = name, Path(root)
        self._layout = OgbLayout(name, root)

    @cached_property
    def fingerprint(self) -> str:
        """Of the release and its files; large ones count by size, since a release does not change."""
        return f"v{self._layout.meta['version']}-{file_fingerprint(*self._files, times=False)}"

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        return self._layout.num_features

    @property
    def num_classes(self) -> int | None:
        return self._layout.num_outputs

    @cached_property
    def _files(self) -> list[Path]:
        folder, url = self._layout.folder, self._layout.meta["url"].replace("http://", "https://")
        if not folder.exists():
            hint = f"Where there is a network, unpack that archive and put its folder at {folder}."
            _log.info("%s is not at %s: downloading it.", self.name, folder)
            fetch_zip(url, self._layout.meta["download_name"], folder, hint)
            self._layout = OgbLayout(self.name, self._root)
        return self._layout.files()

    def _load(self) -> GraphSource:
        if self._layout.meta["binary"] == "True" and not self._layout.hetero:
            _ = self._files
            folder = self._layout.folder
            return OgbBinary(folder, self.name, self.fingerprint, self.num_classes, self._binary_splits(folder))
        from glt_lightning.partition.sources.pyg import convert

        _ = self._files  # complete, so that OGB has nothing to ask
        data, splits = self._read()
        graph = convert(_to_hetero(data) if self._layout.hetero else data, self.name)
        if "classification" in self._layout.meta["task type"]:
            node = {
                t: {k: nan_to_unlabelled(v[:]) if k == "y" else v for k, v in a.items()} for t, a in graph.node.items()
            }
            graph = replace(graph, node=node)
        named = {("val" if s == "valid" else s): _typed(ids, graph) for s, ids in splits.items()}
        types = {t for t, _ in named.values()}
        return replace(graph, splits=named, target_type=types.pop() if len(types) == 1 else graph.target_type)

    def _binary_splits(self, folder: Path) -> Splits:
        import torch

        split = folder / "split" / self._layout.meta["split"]
        if not (saved := split / "split_dict.pt").exists():
            ids = read_split(split)
        else:
            try:
                with _known_classes():
                    ids = torch.load(saved, weights_only=True)
            except _UNREADABLE as error:
                raise DataError(f"{saved}: expected a dictionary of node ids ({error}).") from None
        return {("val" if s == "valid" else s): (NODE, np.asarray(v)) for s, v in ids.items()}

    def _read(self) -> tuple[Any, dict[str, Any]]:
        processed = self._layout.folder / "processed"
        try:
            with exclusive(processed, _LOCK_S), _known_classes():  # two runs would write the same processed file
                from ogb.nodeproppred import PygNodePropPredDataset

                dataset = PygNodePropPredDataset(self.name, root=str(self._root))
                return dataset[0], dataset.get_idx_split()
        except _UNREADABLE as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DataError(
                f"dataset: OGB cannot read {self._layout.folder} ({type(error).__name__}: {reason}). "
                f"If {processed} was made by another version of PyG, remove it; "
                "if a file is damaged, remove the whole folder to download again."
            ) from error


@contextmanager
def _known_classes() -> Iterator[None]:
    """Lets torch read exactly the classes that OGB's processed files hold (torch >= 2.6 refuses them by default)."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    rebuild = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    arrays = [np.ndarray, np.dtype, type(np.dtype(np.int64)), rebuild, (rebuild, "numpy.core.multiarray._reconstruct")]
    needed = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage, *arrays]
    # On leaving, torch forgets all that it was given, whether it knew it before or not.
    known = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in needed if each not in known]):
        yield


def _to_hetero(data: Any) -> Any:
    """OGB keeps a typed graph in a `Data` full of dictionaries, by node type or by (source, relation, destination)."""
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
    """One split as OGB gives it: ids, or a dictionary with the ids of one node type."""
    if isinstance(ids, dict):
        if len(ids) != 1:
            raise DataError(
                f"dataset: {graph.name} splits nodes of several types ({sorted(ids)}); give the splits yourself."
            )
        return next((t, np.asarray(v)) for t, v in ids.items())
    return graph.schema.node_types[0], np.asarray(ids)
