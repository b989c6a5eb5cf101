"""Reading the seeds that a user gives in place of a data set's splits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt_lightning.base import DataError
from glt_lightning.graph import checked_ids, open_regular

_SPLIT_OF = {"fit": "train", "validate": "val", "test": "test"}
_SUFFIXES = (".npy", ".txt", ".csv", ".pt")


def split_of(stage: str | None, predict_split: str) -> str:
    """The split that a stage of the Trainer takes its seeds from, or ``all``."""
    return predict_split if stage == "predict" else _SPLIT_OF.get(stage or "", "all")


def require_split(name: str, known: Collection[str]) -> None:
    """Raises `DataError` unless the split is one of those there are."""
    if name not in known:
        raise DataError(
            f"split {name!r}: not in the data set, which has {', '.join(sorted(known)) or 'none'}. Give its node ids as "
            f"data.splits.{name}, or draw splits: data.transforms: [torch_geometric.transforms.RandomNodeSplit]."
        )


def read_fitting_split(name: str, given: Any, num_nodes: Mapping[str, int], node_type: str | None) -> np.ndarray:
    """As `read_split`. Raises `DataError`, too, for a node that the graph does not have. node_type: None if there is one."""
    seeds = read_split(name, given)
    known = [t for t in num_nodes if t == node_type or len(num_nodes) == 1]
    for t in known:  # if none is, the loader says what input_type has to be
        checked_ids(f"splits.{name}", seeds, num_nodes[t], t)
    return seeds


def read_split(name: str, given: Any) -> np.ndarray:
    """Node ids int [S] or a mask bool [N] from a path (``.npy``, ``.txt``, ``.pt``), a list, an array or a tensor."""
    ids = read_array(f"splits.{name}", given, "node ids")
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iub"):
        raise DataError(
            f"splits.{name}: expected node ids or a mask in one dimension, got {ids.dtype} {list(ids.shape)}."
        )
    return ids if len(ids) else np.zeros(0, np.int64)


def read_array(option: str, given: Any, what: str) -> np.ndarray:
    """A path (``.npy``, ``.txt``, ``.pt``), a list, an array or a tensor. option, what: where it was given and what it is, for
    errors, which are `DataError`."""
    if isinstance(given, (str, Path)):
        return _read_file(option, Path(given).expanduser(), what)
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{option}: cannot be read as {what} ({error}).") from None


def _read_file(option: str, path: Path, what: str) -> np.ndarray:
    try:
        if path.suffix in _SUFFIXES:
            open_regular(path).close()  # a FIFO would be waited for
        if path.suffix == ".npy":
            ids: np.ndarray = np.load(path, allow_pickle=False)
        elif path.suffix in (".txt", ".csv"):
            ids = np.loadtxt(path, dtype=np.int64, ndmin=1)
        elif path.suffix == ".pt":
            ids = _read_tensor(option, path, what)
        else:
            raise DataError(
                f"{option}: {path}: expected an .npy file, a .pt file with a tensor, or a .txt file with one number "
                "per line."
            )
    except FileNotFoundError:
        raise DataError(f"{option}: there is no file {str(path)!r} (in {Path.cwd()}).") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{option}: {path}: cannot be read ({reason}).") from None
    return ids


def _read_tensor(option: str, path: Path, what: str) -> np.ndarray:
    """A tensor that ``torch.save`` wrote; nothing else in such a file is loaded, let alone run."""
    try:
        with open_regular(path) as stream:
            loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # numpy and torch do not document what a damaged file raises
        reason = [type(error).__name__, *str(error).strip().splitlines()][:2]
        raise DataError(f"{option}: {path}: cannot be read as a tensor ({': '.join(reason)}).") from None
    if not isinstance(loaded, torch.Tensor):
        raise DataError(f"{option}: {path}: expected a tensor of {what}, found {type(loaded).__name__}.")
    return loaded.numpy()
