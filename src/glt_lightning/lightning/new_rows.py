"""Rows that came after training: new nodes, with their edges, added to the graph of a run in memory for predictions, or to its
partition as the next version."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from glt_lightning.base import (
    NODE,
    DataError,
    DeployOptions,
    EdgeType,
    NodeType,
    OptionError,
    counted,
    edge_type_str,
    one_of,
    read_yaml,
)
from glt_lightning.graph import GrownPartition, LocalPartition, Manifest
from glt_lightning.lightning.callbacks.prediction_files import read_predictions
from glt_lightning.partition import (
    Additions,
    Appended,
    LaterTables,
    NewEdges,
    NewNodes,
    Versions,
    add_rows,
    append_rows,
    delete_rows,
    is_tables,
    list_versions,
)
from glt_lightning.tensors import DistEmbedding

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule


class NewRows:
    """The rows of ``data.new``.

    given: the path of a YAML file, its content, or in a script `Additions`. Raises `OptionError` for anything else.

    Attributes:
        embeddings: The embedding of a new node in a model that learned one for each node.
    """

    def __init__(self, given: Any) -> None:
        self._additions = given if isinstance(given, Additions) else None
        content = read_yaml(given, option="data.new") if isinstance(given, str) else {} if self._additions else given
        if isinstance(content, argparse.Namespace):
            content = vars(content)
        if not isinstance(content, Mapping) or not (content or self._additions):
            raise OptionError(
                f"data.new: expected the path of a YAML file with nodes and edges, or these; got {given!r:.100}."
            )
        self._given = {key: value for key, value in content.items() if key != "embeddings"}
        self.embeddings = str(content.get("embeddings", DeployOptions.EMBEDDINGS[0]))
        one_of("data.new: embeddings", self.embeddings, DeployOptions.EMBEDDINGS)
        self._ids: Mapping[NodeType, np.ndarray] = {}
        self._counts: dict[NodeType, tuple[int, int]] = {}

    def added_to(self, graph: LocalPartition, dataset: Any, root: str, appended: Appended) -> GrownPartition:
        """Returns the graph with the rows. dataset, root: those of the data module.  appended: rows of earlier versions.

        Raises `OptionError` for a data set that is no tables, `DataError` for rows that do not fit the graph."""
        if self._additions is None and not is_tables(dataset):
            raise OptionError(
                "data.new: data.dataset is no mapping of tables, whose columns new rows would have. In Python, predict_new takes "
                "arrays."
            )
        additions = self._additions
        if additions is None:
            later = LaterTables(dataset, root, graph.manifest, graph.directory, appended).read(self._given)
            additions, self._ids = later.additions, later.ids
        manifest = graph.manifest
        grown = add_rows(graph, appended.followed_by(additions, manifest))
        new = additions.num_new(manifest)
        for t, (name, count) in enumerate(zip(graph.schema.node_types, grown.manifest.num_nodes, strict=True)):
            self._counts[name] = count - new[t], new[t]
        return grown

    def seeds(self, node_types: Sequence[NodeType]) -> dict[NodeType, np.ndarray]:
        """Returns the user ids of the new nodes, of those types that have some. Raises `DataError` if none has."""
        found = {t: np.arange(old, old + new) for t in node_types for old, new in [self._counts[t]] if new}
        if not found:
            raise DataError(f"data.new: there are no new nodes of type {', '.join(node_types)}, which are predicted.")
        return found

    def user_ids(self, n_id: np.ndarray, node_type: NodeType) -> np.ndarray | None:
        """Returns what the user's table calls new nodes; None where their type has no ids."""
        names = self._ids.get(node_type)
        return None if names is None else names[np.asarray(n_id) - self._counts[node_type][0]]


def extend_embeddings(module: nn.Module, rule: str | None) -> None:
    """Tells a model how nodes without a trained embedding are computed. rule: of `DeployOptions.EMBEDDINGS`; None: there are none
    any more."""
    each: Any
    for each in module.modules():
        if hasattr(each, "new_nodes"):
            each.new_nodes = rule


def require_embeddings(module: nn.Module, rows: Additions) -> None:
    """Raises `DataError` for new nodes of a type that has an embedding for each node and no features, if the rule that
    `extend_embeddings` set is ``error``."""
    each: Any
    for each in module.modules():
        learned = isinstance(getattr(each, "layer", each), (nn.Embedding, DistEmbedding))
        if getattr(each, "new_nodes", None) == "error" and learned:
            for t, nodes in rows.nodes.items():
                if nodes.count and each.of in (None, t):
                    raise DataError(
                        f"new nodes of type {t!r} have no trained embedding, which the model needs (embeddings: error). Choose "
                        "mean or zero, or train again."
                    )


def additions_of(nodes: Mapping[NodeType, Any], edges: Mapping[str, Any]) -> Additions:
    """Returns new rows that are given as arrays. nodes: attributes by type.  edges: [2, E], or (these, attributes), by the name
    of the type. Raises `DataError` for anything else."""
    return Additions(
        nodes={t: _new_nodes(t, attrs) for t, attrs in nodes.items()},
        edges={_edge_type(name): _new_edges(rows) for name, rows in edges.items()},
    )


def predict_new(
    model: nn.Module,
    datamodule: GLTDataModule,
    *,
    nodes: Mapping[NodeType, Any] | None = None,
    edges: Mapping[Any, Any] | None = None,
    embeddings: str = "mean",
    ckpt_path: str | None = None,
    trainer: Trainer | None = None,
) -> dict[str, np.ndarray]:
    """Predicts rows that came after the graph was partitioned. The graph on disk stays as it is.

    Args:
        model: A module that was trained on the graph.
        datamodule: Its data.
        nodes: The new nodes by type. For a graph of tables a pandas DataFrame, pyarrow Table or mapping of columns with the
            columns of the table of that type; for others the attributes, ``{"x": array}``.
        edges: The new edges by type, ``src__rel__dst`` or a triple. For a graph of tables as for nodes, by own ids; for others
            integers [2, E], user ids, or (these, attributes). New nodes have the ids after those of the graph.
        embeddings: The embedding of a new node in a model that learned one for each node: their ``mean``, ``zero``, or ``error``.
        ckpt_path: The checkpoint to read; None: the weights of ``model``.
        trainer: A Trainer to predict with; None: a new one on the CPU.

    Returns:
        The columns of `PredictionWriter`, with a row for each new node: ``n_id``, ``id`` where tables have ids, what the
        module predicts.

    Raises:
        DataError: For rows that do not fit the graph.
        OptionError: For a module or a strategy that cannot predict new rows.

    Example:
        >>> datamodule = GLTDataModule("graph.npz", num_neighbors=[2, 2], batch_size=4)
        >>> model = GraphSAGE(datamodule.num_features, datamodule.num_classes, num_layers=2)
        >>> Trainer(max_epochs=1).fit(model, datamodule)
        >>> new = {"x": np.ones((1, 3), np.float32)}
        >>> found = predict_new(model, datamodule, nodes={"node": new}, edges={"node__to__node": np.array([[0], [10]])})
        >>> found["n_id"]
        array([10])
    """
    from glt_lightning.lightning.callbacks.predictions import PredictionWriter  # which imports the data module

    with tempfile.TemporaryDirectory(prefix="glt-new-") as temporary:
        folder = Path(temporary)
        given = _given(datamodule.dataset, nodes or {}, edges or {}, folder)
        new = NewRows(given | {"embeddings": embeddings} if isinstance(given, dict) else given)
        new.embeddings = embeddings
        one_of("predict_new: embeddings", embeddings, DeployOptions.EMBEDDINGS)
        data = _with_new(datamodule, new)
        writer = PredictionWriter(str(folder / "predictions"))
        made: Any = trainer or Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False)
        made.callbacks.append(writer)
        before = getattr(model, "_trainer", None)
        try:
            made.predict(model, data, ckpt_path=ckpt_path, return_predictions=False)
        finally:
            made.callbacks.remove(writer)
            extend_embeddings(model, None)
            if isinstance(model, LightningModule):
                model.trainer = before  # else it would keep the last batch after an error
        return read_predictions(folder / "predictions")


def _with_new(datamodule: GLTDataModule, new: NewRows) -> GLTDataModule:
    """Returns a data module of the same options, with a state of its own."""
    data = copy.copy(datamodule)
    data.renew(new)
    return data


def write_version(datamodule: GLTDataModule, tables: Mapping[str, Any], *, deletes: bool = False) -> str:
    """Writes the next version of the partition of a data module, from tables: new rows, or with ``deletes`` rows to delete.

    tables: their paths, as ``nodes`` and ``edges``. Returns a line that says what the version has.
    Raises `OptionError` for a data set that is no tables, or has no partition, `DataError` for rows that do not fit the graph.
    """
    folder, dataset, root = datamodule.partition_dir, datamodule.dataset, datamodule.root
    if not is_tables(dataset):
        raise OptionError(
            "append: data.dataset is no mapping of tables. In Python, append_rows and delete_rows take arrays."
        )
    if not datamodule.is_partitioned:
        raise OptionError(f"{folder}: there is no partition to append to. Run partition first.")
    manifest = Manifest.load(folder)
    appended = Versions(folder).read(manifest, "latest")
    if deletes:
        later = LaterTables(dataset, root, manifest, folder, appended)
        number = delete_rows(folder, *later.read_deleted(tables), after=appended.version, name=later.name)
        facts = list_versions(folder)[number - 1]
        what = [f"{counted(n, 'node')} of type {t}" for t, n in facts.deleted_nodes.items()]
        what += [f"{counted(n, 'edge')} of type {e}" for e, n in facts.deleted_edges.items()]
        return f"{folder}: version {number}: without {', '.join(what) or 'anything'}"
    rows = LaterTables(dataset, root, manifest, folder, appended).read(tables, stay=True)
    number = append_rows(folder, rows.additions, rows.ids, after=appended.version)
    new = rows.additions
    what = [f"{counted(n.count, 'node')} of type {t}" for t, n in new.nodes.items()]
    what += [f"{counted(e.edge_index.shape[1], 'edge')} of type {edge_type_str(k)}" for k, e in new.edges.items()]
    return f"{folder}: version {number}: {', '.join(what)}"


def _given(
    dataset: Any, nodes: Mapping[Any, Any], edges: Mapping[Any, Any], folder: Path
) -> dict[str, Any] | Additions:
    names = {
        kind: {_name(key): rows for key, rows in each.items()} for kind, each in (("nodes", nodes), ("edges", edges))
    }
    if not is_tables(dataset):
        return additions_of(names["nodes"], names["edges"])
    found: dict[str, Any] = {}
    for kind, each in names.items():
        for number, (name, rows) in enumerate(each.items()):
            path = folder / f"{kind}{number}.parquet"
            LaterTables.save(f"predict_new: {kind}: {name}", rows, path)
            found.setdefault(kind, {})[name] = {"path": str(path)}
    homogeneous = found.get("nodes", {}).keys() <= {NODE} and found.get("edges", {}).keys() <= {"node__to__node"}
    return {kind: next(iter(each.values())) for kind, each in found.items()} if homogeneous else found


def _name(key: Any) -> str:
    return key if isinstance(key, str) else "__".join(key)


def _edge_type(name: str) -> EdgeType:
    parts = name.split("__")
    if len(parts) != 3:
        raise DataError(f"predict_new: edges: {name!r}: expected src__rel__dst.")
    return parts[0], parts[1], parts[2]


def _new_nodes(node_type: NodeType, attrs: Any) -> NewNodes:
    if isinstance(attrs, int) and not isinstance(attrs, bool) and attrs >= 0:
        return NewNodes(attrs)  # nodes without attributes
    if not isinstance(attrs, Mapping) or not attrs:
        raise DataError(f"predict_new: nodes: {node_type}: expected attributes by name, such as {{'x': array}}.")
    arrays = {name: np.asarray(values) for name, values in attrs.items()}
    counts = {len(values) for values in arrays.values()}
    if len(counts) > 1:
        raise DataError(
            f"predict_new: nodes: {node_type}: attributes have different numbers of rows: {sorted(counts)}."
        )
    return NewNodes(counts.pop(), arrays)


def _new_edges(rows: Any) -> NewEdges:
    index, attrs = rows if isinstance(rows, tuple) else (rows, {})
    return NewEdges(np.asarray(index), {name: np.asarray(values) for name, values in attrs.items()})
