"""What is known of a graph before it is loaded: enough to build a model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from glt_lightning.base import MAX_FANOUT, DataError, EdgeType, Fanouts, GraphSchema, NodeType, OptionError
from glt_lightning.graph import EdgeSplit, Manifest, attr_key, checked_ids, edge_split_path, node_path, open_regular
from glt_lightning.partition import (
    GraphSource,
    categories_of,
    check_labels,
    edge_categories_of,
    has_ids,
    is_matrix,
    parse_tables,
    read_ids,
    read_new_edges,
    stored_edge_types,
    tables_folder,
    user_ids,
)
from glt_lightning.sampling import fanout_table


@dataclass(frozen=True)
class GraphFacts:
    """Types and sizes of a graph as batches will have them.

    num_features: width of ``x`` per node type, None without it.
    num_categories: number of codes of each column of ``x_codes``, for the node types that have them.
    splits: node type of each split.
    edges: what edges have that encoders can read, for the edge types that have some of it.
    labels: what the labels of ``target_type`` are, None without.
    """

    schema: GraphSchema
    num_nodes: Mapping[NodeType, int]
    num_features: Mapping[NodeType, int | None]
    num_classes: int | None
    target_type: NodeType | None
    splits: Mapping[str, NodeType]
    num_categories: Mapping[NodeType, Sequence[int]] = field(default_factory=dict)
    edges: Mapping[EdgeType, EdgeFacts] = field(default_factory=dict)
    labels: LabelFacts | None = None

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> GraphFacts:
        types = manifest.schema.node_types
        return cls(
            manifest.schema,
            dict(zip(types, manifest.num_nodes, strict=True)),
            {t: manifest.num_features(t) for t in types},
            manifest.num_classes,
            manifest.target_type,
            {name: split.node_type for name, split in manifest.splits.items()},
            manifest.num_categories,
            edges_of_manifest(manifest),
            labels_of_manifest(manifest),
        )

    @classmethod
    def of_source(cls, source: GraphSource, undirected: bool, allow: Collection[str] = ()) -> GraphFacts:
        """Raises `DataError` for labels that no model can be sized by. allow: ``partition.allow``."""
        schema, stored = stored_edge_types(source.schema, undirected)
        if source.target_type is not None:
            check_labels(source, source.target_type, allow)
        return cls(
            schema,
            dict(source.num_nodes),
            dict(source.num_features),
            source.num_classes,
            source.target_type,
            {name: node_type for name, (node_type, _) in source.splits.items()},
            categories_of(source),
            edges_of_source(source, {each.edge_type: each.source for each in stored}),
            labels_of_source(source),
        )


# What edges have that encoders can read. Plain values, as `LabelFacts` are.


# ``width``: of ``edge_attr``, None without it.  ``weight``: whether there is an ``edge_weight``.  ``num_categories``: number of
# codes of each column of ``edge_codes``, empty without it.
EdgeFacts = dict[str, Any]


def edges_of_manifest(manifest: Manifest) -> dict[EdgeType, EdgeFacts]:
    found: dict[EdgeType, EdgeFacts] = {}
    for r, edge_type in enumerate(manifest.schema.edge_types):
        weight = manifest.edge_width(r, "edge_weight") == 1
        facts = _edge_facts(manifest.edge_width(r, "edge_attr"), weight, manifest.num_edge_categories.get(r, ()))
        found |= {} if facts is None else {edge_type: facts}
    return found


def edges_of_source(source: GraphSource, stored: Mapping[EdgeType, EdgeType]) -> dict[EdgeType, EdgeFacts]:
    """The same of a data set that is not partitioned yet. stored: the user's edge type of each stored one."""
    # the rows of a graph whose edges are held out are counted by reading its edges; their widths are those of all edges
    labels: Mapping[EdgeType, str | None] = getattr(source, "label_attrs", {})
    source = getattr(source, "inner", source) if hasattr(source, "edge_splits_hash") else source
    codes = edge_categories_of(source)
    found: dict[EdgeType, EdgeFacts] = {}
    for edge_type, given in stored.items():
        rows = {name: rows for name, rows in source.edge_attrs(given).items() if name != labels.get(given)}
        widths = {name: math.prod(rows[name].shape[1:]) for name in ("edge_attr", "edge_weight") if name in rows}
        facts = _edge_facts(widths.get("edge_attr"), widths.get("edge_weight") == 1, codes.get(given, ()))
        found |= {} if facts is None else {edge_type: facts}
    return found


def _edge_facts(width: int | None, weight: bool, codes: Sequence[int]) -> EdgeFacts | None:
    if not width and not weight and not codes:
        return None
    return {"width": width or None, "weight": weight, "num_categories": list(codes)}


# What is known of the labels before anything is loaded: enough to choose a task and to size a model's output.


# ``kind``: int, bool or float.  ``width``: D of labels [N, D], None of labels [N].  ``num_classes``: None for a regression.
# ``class_names``: names of the classes, or of the D labels, None where they have none. Plain values, because a module keeps
# them among its hyper-parameters and checkpoints are read with ``weights_only``.
LabelFacts = dict[str, Any]


_KINDS = {"i": "int", "u": "int", "b": "bool"}


def labels_of_manifest(manifest: Manifest) -> LabelFacts | None:
    """None where the target has no labels."""
    if manifest.target_type is None:
        return None
    t = manifest.schema.node_index(manifest.target_type)
    entry = manifest.arrays.get(node_path(0, t, "y"))
    if entry is None:
        return None
    encoded = attr_key("nodes", t, "y") in manifest.encodings
    names = None if manifest.class_names is None else list(manifest.class_names)
    return _facts("float" if encoded else _kind(entry.dtype), entry.shape[1:], manifest.num_classes, names)


def labels_of_source(source: GraphSource) -> LabelFacts | None:
    """The same of a data set that is not partitioned yet, without loading one that tells by ``label_form``."""
    form = getattr(source, "label_form", None)
    if form is None:
        if source.target_type is None or (y := source.node_attrs(source.target_type).get("y")) is None:
            return None
        form = _kind(y.dtype), tuple(y.shape[1:])
    kind, shape = form
    return _facts(kind, shape, source.num_classes, class_names_of(source))


def class_names_of(source: GraphSource) -> list[str] | None:
    """Names of the classes, of a source that has any."""
    names = getattr(source, "class_names", None)
    return None if names is None else [str(name) for name in names]


def _kind(dtype: Any) -> str:
    return _KINDS.get(np.dtype(dtype).kind, "float")


def _facts(kind: str, shape: tuple[int, ...], num_classes: int | None, names: list[str] | None) -> LabelFacts:
    width = shape[0] if shape else None
    return {"kind": kind, "width": width, "num_classes": num_classes, "class_names": names}


def edge_labels_of_manifest(manifest: Manifest, edge_type: EdgeType) -> LabelFacts | None:
    """What the labels of edges to predict are; None where edges of the type have none."""
    r = manifest.schema.edge_index(edge_type)
    entry = manifest.arrays.get(edge_split_path(r, "train", "label"))
    if r not in manifest.edge_labels or entry is None:
        return None
    labels = manifest.edge_labels[r]
    names = None if labels.class_names is None else list(labels.class_names)
    return _facts(_kind(entry.dtype), entry.shape[1:], labels.num_classes, names)


def edge_labels_of_source(source: Any, edge_type: EdgeType) -> LabelFacts:
    """The same of a graph whose edges are held out. Raises `DataError` where edges of the type have no labels."""
    labels = source.labels[edge_type]
    names = None if labels.class_names is None else [str(name) for name in labels.class_names]
    return _facts(_kind(labels.values.dtype), tuple(labels.values.shape[1:]), labels.num_classes, names)


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


def require_taken(aggregate: str | None, model: nn.Module) -> None:
    """Raises `OptionError` for ``sampling.aggregate_first`` and a module that does not declare that it takes it."""
    takes = tuple(getattr(model, "takes_aggregates", ()))
    if aggregate is None or aggregate in takes:
        return
    raise OptionError(
        f"sampling.aggregate_first: {aggregate!r}: {type(model).__name__} takes {' or '.join(takes) or 'no aggregates'}. A "
        "module that takes them says so with an attribute takes_aggregates, such as ('mean',), and reads batch.x_neighbors; "
        "of the ready models GraphSAGE (mean or sum; no edge_weight) and GIN (sum) do, where nodes have x and no x_codes. Remove "
        "sampling.aggregate_first, or choose such a model."
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


# What a user's tables call the nodes of a partition.


def own_ids(manifest: Manifest, root: str | Path, n_id: np.ndarray, node_type: str) -> np.ndarray | None:
    """int64 or text [K]; None for a graph that is not of tables, or of tables without ids, or whose converted tables are not
    below ``root``."""
    made = manifest.made_by
    folder = tables_folder(root, str(made.get("source")), str(made.get("fingerprint")))
    if not has_ids(folder, node_type):
        return None
    return user_ids(folder, n_id, node_type)


def is_tables(dataset: Any) -> bool:
    """Tells whether a data set, as the user writes it, is a mapping of tables."""
    plain = vars(dataset) if isinstance(dataset, argparse.Namespace) else dataset
    return isinstance(plain, Mapping) and not is_matrix(dataset) and "nodes" in plain


def table_ids(manifest: Manifest, root: str | Path, what: str, path: str, node_type: str) -> np.ndarray:
    """Reads nodes by the ids of the user's table, int64 [n]. Raises `DataError`. what: the beginning of errors."""
    return read_ids(what, path, node_type, _converted(manifest, root, what))


def _converted(manifest: Manifest, root: str | Path, what: str) -> Path:
    made = manifest.made_by
    folder = tables_folder(root, str(made.get("source")), str(made.get("fingerprint")))
    if not folder.is_dir():
        raise DataError(
            f"{what}: {folder} is not there, the converted tables with the ids of the nodes. Set data.root to where the graph "
            "was partitioned."
        )
    return folder


def new_edges(
    manifest: Manifest, root: str | Path, dataset: Any, path: str, edge_type: EdgeType, *, with_label: bool
) -> EdgeSplit:
    """Reads edges to predict from a table. with_label: their relations, too. Raises `DataError` where the converted tables are
    not below ``root``."""
    folder = _converted(manifest, root, "evaluation.predict_edges")
    tables = parse_tables(dataset).edges
    if edge_type not in tables:
        raise DataError(f"evaluation.predict_edges: the data set has no table of edges {'__'.join(edge_type)}.")
    what, table = "evaluation.predict_edges", tables[edge_type]
    return read_new_edges(what, path, table, edge_type, folder, with_label=with_label)


def have_ids(dataset: Any, node_type: str) -> bool:
    """Whether a data set, as the user writes it, is tables that name the nodes of a type by a column."""
    if not is_tables(dataset):
        return False
    table = parse_tables(dataset).nodes.get(node_type)
    return table is not None and table.id is not None


# Reading the seeds that a user gives in place of a data set's splits.


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


def eval_fanouts(num_neighbors: Fanouts, num_edges: int) -> tuple[Fanouts, str]:
    """Fan-outs, and why these. A function of training's and the number of edges of the graph, all edge types, alone.

    A model that was trained on a few neighbours of a dense graph loses accuracy where it is evaluated on as few.
    """
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
