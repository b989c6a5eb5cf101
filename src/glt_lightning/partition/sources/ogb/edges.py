"""The links that an OGB data set asks to predict: what its evaluation is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.partition.sources.ogb.layout import LINKS, OgbLayout
from glt_lightning.partition.sources.ogb.source import fetched
from glt_lightning.partition.sources.saved import load_saved

_EXPECTED = "a dictionary of arrays"
_PARTS = {"train": "train", "val": "valid", "test": "test"}


def read_edge_splits(name: str, root: str | Path) -> dict[str, dict[str, np.ndarray]]:
    """``train``, ``val``, ``test`` -> what OGB gives of each, as arrays: node ids are those of the user, as in ``n_id``.

    name: ``ogbl-...``.  root: as of `open_source`; the data set is downloaded if it is not there.

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
