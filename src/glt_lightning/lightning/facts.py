"""Checks of what a user gives beside the graph: fan-outs, seeds, a model that fits them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from glt_lightning.base import MAX_FANOUT, DataError, Fanouts, GraphSchema, OptionError
from glt_lightning.graph import checked_ids, open_regular
from glt_lightning.sampling import fanout_table

# Fan-outs beside the layers of a model: a hop too few loses accuracy without a word, one too many costs time.


_NAMES = ("num_layers", "n_layers", "num_hops")


def layers_of(model: nn.Module) -> int | None:
    """Message-passing layers of a model where it tells: an attribute or hyperparameter, else that of a model inside it."""
    hparams = getattr(model, "hparams", {})
    told = [getattr(model, name, None) for name in _NAMES]
    told += [hparams.get(name) for name in _NAMES] if isinstance(hparams, Mapping) else []
    told += [getattr(child, name, None) for child in model.children() for name in _NAMES]
    return next((count for count in told if _is_count(count)), None)


def warn_of_hops(name: str, num_neighbors: Fanouts | None, model: nn.Module) -> None:
    """Says where the fan-outs of option ``name`` are fewer or more than the layers of the model, if that tells them."""
    layers = layers_of(model)
    if layers is None or num_neighbors is None:
        return
    each = num_neighbors.values() if isinstance(num_neighbors, Mapping) else [num_neighbors]
    hops = max(map(len, each))
    harm = (
        "nodes of the last hop come without neighbours, which costs accuracy"
        if hops < layers
        else "neighbours of the further hops never reach the seeds, which costs time"
    )
    if hops != layers:
        rank_zero_warn(
            f"data.{name} has {_many(hops, 'hop')} and the model {_many(layers, 'layer')}: {harm}. Give {layers} fan-outs, or "
            f"the model num_layers {hops}."
        )


def warn_of_one_class(facts: Mapping[str, Any] | None) -> None:
    """Says where labels are classes of which there is one. facts: as ``label_facts`` of the data module."""
    if facts is not None and facts["width"] is None and facts["num_classes"] == 1:
        name = (facts["class_names"] or ["0"])[0]
        rank_zero_warn(
            f"labels: there is one class alone ({name}), which every model finds, so nothing is learned. Check the labels; a "
            "node or edge without one has a negative integer."
        )


def require_taken(aggregate: str | None, model: nn.Module) -> None:
    """Raises `OptionError` for ``sampling.aggregate_first`` and a module that does not declare that it takes it."""
    takes = tuple(getattr(model, "takes_aggregates", ()))
    if aggregate is None or aggregate in takes:
        return
    raise OptionError(
        f"sampling.aggregate_first: {aggregate!r}: {type(model).__name__} takes {' or '.join(takes) or 'no aggregates'}. A "
        "module that takes them says so with an attribute takes_aggregates, such as ('mean',), and reads batch.x_neighbors; "
        "of the ready models GraphSAGE (mean or sum; no edge_weight) and GIN (sum) do, in graphs of one node type and one edge "
        "type whose nodes have x and no x_codes. Remove sampling.aggregate_first, or choose such a model."
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


# Reading the seeds that a user gives in place of a data set's splits.


_SPLIT_OF = {"fit": "train", "validate": "val", "test": "test"}
_SUFFIXES = (".npy", ".txt", ".csv", ".pt")


def split_of(stage: str | None, predict_split: str) -> str:
    """The split that a stage of the Trainer takes its seeds from, or ``all``."""
    return predict_split if stage == "predict" else _SPLIT_OF.get(stage or "", "all")


def require_split(name: str, known: Collection[str], has_seeds: bool = True) -> None:
    """Raises `DataError` unless the split is one of those there are, and has a node."""
    if name not in known or not has_seeds:
        lacks = f"not in the data set, which has {', '.join(sorted(known)) or 'none'}"
        raise DataError(
            f"split {name!r}: {lacks if name not in known else 'it has no node'}. Give its node ids as "
            f"data.seeds.splits.{name}, or draw splits: data.transforms: [torch_geometric.transforms.RandomNodeSplit]."
        )


def read_fitting_split(name: str, given: Any, num_nodes: Mapping[str, int], node_type: str | None) -> np.ndarray:
    """As `read_split`. Raises `DataError`, too, for a node that the graph does not have. node_type: None if there is one."""
    seeds = read_split(name, given)
    known = [t for t in num_nodes if t == node_type or len(num_nodes) == 1]
    for t in known:  # if none is, the loader says what input_type has to be
        checked_ids(f"seeds.splits.{name}", seeds, num_nodes[t], t)
    return seeds


def read_split(name: str, given: Any) -> np.ndarray:
    """Node ids int [S] or a mask bool [N] from a path (``.npy``, ``.txt``, ``.pt``), a list, an array or a tensor."""
    ids = read_array(f"seeds.splits.{name}", given, "node ids")
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iub"):
        raise DataError(
            f"seeds.splits.{name}: expected node ids or a mask in one dimension, got {ids.dtype} {list(ids.shape)}."
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


# Fan-outs of training and evaluation: whether they fit the graph, and those of evaluation where the user gives none.


# A batch holds each edge at most once, so this bounds any evaluation batch: about what [15, 10, 5] x 1024 draws. The mean
# degree would allow all neighbours in some larger graphs, but it bounds nothing where a few nodes have a million neighbours.
MOST_EDGES = 1_000_000


def check_fanouts(schema: GraphSchema, num_neighbors: Fanouts, eval_num_neighbors: Fanouts | None) -> None:
    """Raises `OptionError` for fan-outs that do not fit the edge types of the graph."""
    if num_neighbors != []:
        fanout_table(num_neighbors, schema)
    if eval_num_neighbors is not None:
        fanout_table(eval_num_neighbors, schema, "evaluation.num_neighbors")


def eval_fanouts(num_neighbors: Fanouts, num_edges: int, disjoint: bool) -> tuple[Fanouts, str]:
    """Fan-outs, and why these. A function of training's, the number of edges of the graph, all edge types, and whether each seed
    has a tree of its own, alone.

    A model that was trained on a few neighbours of a dense graph loses accuracy where it is evaluated on as few. A batch of trees
    is not bounded by the graph: with all neighbours it can be many times as large.
    """
    if disjoint:
        return _each(num_neighbors, all_neighbours=False), "twice those of training, as each seed has a tree of its own"
    if num_edges <= MOST_EDGES:
        return _each(num_neighbors, all_neighbours=True), f"all neighbours, as the graph has {num_edges:,} edges"
    why = f"twice those of training, as the graph has {num_edges:,} edges, more than {MOST_EDGES:,}"
    return _each(num_neighbors, all_neighbours=False), why


def _each(num_neighbors: Fanouts, all_neighbours: bool) -> Fanouts:
    if isinstance(num_neighbors, Mapping):
        return {edge_type: _of_hops(hops, all_neighbours) for edge_type, hops in num_neighbors.items()}
    return _of_hops(num_neighbors, all_neighbours)


def _of_hops(hops: Sequence[int], all_neighbours: bool) -> list[int]:
    return [-1 if all_neighbours or k == -1 else min(2 * k, MAX_FANOUT) for k in hops]
