"""Takes the trained embeddings of deleted nodes out of checkpoints."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, GLTError, OptionError, WriteError
from glt_lightning.lightning.callbacks.checkpoints import WholeCheckpointIO
from glt_lightning.lightning.callbacks.resume import FORGOTTEN
from glt_lightning.tensors import forget_rows

_DENSE = re.compile(r"(?:^|\.)(?:encoders\.([^.]+)|encoder)\.layer\.weight$")  # of `models.gnn.NodeEncoder`


def forget_in_checkpoints(paths: Iterable[Path], deleted: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Writes zeros over the embeddings of deleted nodes in checkpoints, and removes the states of their optimizers. Each is
    replaced when the new one is whole. Yields a line for people about each.

    deleted: user ids by node type.  Raises `DataError` at the end if one could not be read.
    """
    failed, advice = [], "Delete it."
    for path in paths:
        try:
            yield _forget(path, deleted)
        except WriteError as error:
            failed.append(path)
            advice = "Free some space and run the same command again, or delete it."
            yield f"{path}: cannot be written ({getattr(error.__cause__, 'strerror', error)})."
        except GLTError as error:
            failed.append(path)
            yield str(error)
        except pickle.UnpicklingError:
            failed.append(path)
            yield f"{path}: has more than tensors and plain values, which is not read (weights_only)."
    if failed:
        raise DataError(f"--checkpoints: {failed[0]} is as it was, and may have rows of deleted nodes. {advice}")


def checkpoints_in(given: str) -> list[Path]:
    """Returns a checkpoint, or those of a folder. Raises `OptionError` if there are none."""
    path = Path(given)
    found = [path] if path.is_file() else sorted(path.rglob("*.ckpt"))
    if not found:
        raise OptionError(f"--checkpoints: {given}: no checkpoint is there. Give files, or folders with files *.ckpt.")
    return found


def _forget(path: Path, deleted: Mapping[str, np.ndarray]) -> str:
    # The states of optimizers and callbacks that a user adds may be anything; nothing of a checkpoint is run here.
    io, path = WholeCheckpointIO(), path.resolve()
    checkpoint = io.load_checkpoint(path, weights_only=True)
    for name, weight in checkpoint.get("state_dict", {}).items():
        if (rows := _gone(name, weight, checkpoint, deleted)) is not None:
            weight[torch.from_numpy(np.asarray(rows, np.int64))] = 0
    checkpoint["optimizer_states"] = []
    checkpoint[FORGOTTEN] = {t: len(ids) for t, ids in deleted.items()}
    of_edges = forget_rows(checkpoint, path, deleted, lambda: io.save_checkpoint(checkpoint, path))
    names = ", ".join(of_edges)
    more = f", and rows of edges, also of deleted ones ({names}): delete it and {path.name}.rows-* if they must go"
    return (
        f"{path}: trained embeddings of deleted nodes are zeros in ready models and in DistEmbedding, and states of optimizers "
        f"are removed; other embeddings of the module stay{more if of_edges else ''}"
    )


def _gone(
    name: str, weight: Any, checkpoint: Mapping[str, Any], deleted: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """Returns the rows of deleted nodes, if a tensor is the embeddings of a node type of one of our models."""
    named = _DENSE.search(name)
    if named is None or not isinstance(weight, Tensor):
        return None
    t = named[1] or next(iter(deleted), "")  # a homogeneous graph has one
    count = dict(checkpoint.get("hyper_parameters", {})).get("num_nodes")
    count = count.get(t) if isinstance(count, Mapping) else count
    if t not in deleted or count != len(weight) or f"{name.removesuffix('weight')}bias" in checkpoint["state_dict"]:
        return None
    return deleted[t][deleted[t] < count]
