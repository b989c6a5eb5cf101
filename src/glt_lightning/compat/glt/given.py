"""Seeds, labels and edges as scripts of GraphLearn-for-PyTorch give them: tensors, pairs with a type, files, names of splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning import base
from glt_lightning.base import NODE, DataError, GraphSchema, NodeType, OptionError
from glt_lightning.graph import open_regular
from glt_lightning.partition import host_array


class Split(Enum):
    """Name of a split of the data set, for loaders of a client that has no seeds of its own."""

    train = "train"
    valid = "val"
    test = "test"


def NegativeSampling(mode: str, amount: float = 1, weight: Any = None) -> base.NegativeSampling:
    """GLT's options of negatives as ours. weight: of destinations, and in mode ``binary`` of sources, too."""
    weights = {} if weight is None else {"dst_weight": weight} | ({"src_weight": weight} if mode == "binary" else {})
    return base.NegativeSampling(mode=mode, amount=amount, **weights)  # type: ignore[arg-type]


@dataclass(frozen=True)
class GivenSeeds:
    """seeds: ids [S] of this process; None: all nodes of the type, or ``split``."""

    node_type: NodeType | None
    seeds: np.ndarray | None = None
    split: str | None = None


def read_seeds(given: Any, schema: GraphSchema) -> GivenSeeds:
    """Of ``input_nodes``: a tensor or mask, (node type, one), a node type, a `Split`, or the path or paths of tensors.

    Raises `DataError` or `OptionError` for anything else.
    """
    node_type = NODE if schema.homogeneous else None
    if (
        isinstance(given, (tuple, list))
        and len(given) == 2
        and isinstance(given[0], str)
        and given[0] in schema.node_types
    ):
        node_type, given = given
    if isinstance(given, str) and given in schema.node_types:
        return GivenSeeds(given)
    if isinstance(given, Split):
        return GivenSeeds(None, split=given.value)
    if given is None:
        return GivenSeeds(node_type)
    if isinstance(given, (str, Path)) or (isinstance(given, Sequence) and given and isinstance(given[0], (str, Path))):
        paths = [given] if isinstance(given, (str, Path)) else given
        given = np.concatenate([host_array(str(path), read_tensor(path)) for path in paths])
    if node_type is None:
        raise OptionError(
            f"input_nodes: expected (node type, ids) with a type of {', '.join(schema.node_types)}, got {type(given).__name__}."
        )
    return GivenSeeds(node_type, host_array("input_nodes", given))


def read_tensor(path: str | Path) -> Any:
    """A tensor, or a dictionary of tensors, that ``torch.save`` or ``numpy.save`` wrote; nothing else is unpickled."""
    path = Path(path)
    try:
        with open_regular(path) as stream:
            if path.suffix == ".npy":
                return torch.from_numpy(np.load(stream, allow_pickle=False))
            return torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # of torch and its pickles: many kinds
        raise DataError(f"{path}: cannot be read as a tensor ({error}).") from None


def read_labels(given: Any, schema: GraphSchema) -> dict[NodeType, Tensor]:
    """Labels [N, ...] by node type: tensors or the files of some. Raises `DataError` for a type that there is not."""
    if isinstance(given, (str, Path)):
        given = read_tensor(given)
    by_type = given if isinstance(given, Mapping) else {schema.node_types[0]: given}
    if not isinstance(given, Mapping) and len(schema.node_types) > 1:
        raise DataError(f"labels: expected one tensor for each of {', '.join(schema.node_types)}, by type.")
    if unknown := sorted(set(by_type) - set(schema.node_types)):
        raise DataError(f"labels: {unknown[0]!r} is no node type; known: {', '.join(schema.node_types)}.")
    found = {
        t: read_tensor(each) if isinstance(each, (str, Path)) else torch.as_tensor(each) for t, each in by_type.items()
    }
    return {t: each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for t, each in found.items()}
