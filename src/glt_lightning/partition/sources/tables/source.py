"""Graphs in tables (Parquet, CSV, TSV): converted once into ``.npy`` files, then read piece by piece."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, PartitionOptions, Progress, edge_type_str
from glt_lightning.partition.edge_splits.labels import EdgeLabels
from glt_lightning.partition.folder import exclusive, lasting_folder, lasting_path
from glt_lightning.partition.sources.base import (
    EdgeList,
    Rows,
    Splits,
    classes_of,
    file_fingerprint,
    folder_name,
    pick_target,
    width,
)
from glt_lightning.partition.sources.files import EndFiles, NpyFile
from glt_lightning.partition.sources.tables.columns import (
    FACTS,
    NodeFacts,
    edge_folder,
    load_facts,
    node_folder,
    user_ids,
)
from glt_lightning.partition.sources.tables.encoding import (
    FILE as ENCODING,
    GraphEncoding,
    TableEncoding,
    encoding_bytes,
)
from glt_lightning.partition.sources.tables.forget import require_rows
from glt_lightning.partition.sources.tables.location import File
from glt_lightning.partition.sources.tables.mapping import (
    EdgeTable,
    NodeTable,
    Tables,
    features_asked,
    parse_tables,
    plain_mapping,
)
from glt_lightning.partition.tasks.array import array_number, help_along

_log = logging.getLogger(__name__)

_VERSION = 1  # raise it when the conversion changes what it writes
_TASKS = 3  # raise it when tasks find something else: a killed run is continued by the same tasks alone
_LOCK_S = 6 * 3600.0
_WORK = 4  # a byte of tables takes as long as so many of arrays
_NO_ATTRS = ("y", "source", "destination", "ids", "ids_offsets", "ids_bytes")


def tables_folder(root: str | Path, name: str, fingerprint: str) -> Path:
    """Returns the folder of the converted tables of a data set."""
    return Path(root) / "tables" / f"{name}-{fingerprint[:12]}"


class TableSource:
    """A graph given as a mapping of tables. They are converted when more than names and fingerprint is needed.

    Attributes:
        name: ``name`` of the mapping, else that of the first file of nodes.
        schema: Node and edge types.
    """

    def __init__(
        self,
        dataset: Mapping[str, Any] | argparse.Namespace,
        root: str | Path,
        options: PartitionOptions | None = None,
    ) -> None:
        self._tables, self._given = parse_tables(dataset), plain_mapping(dataset)
        self._options = PartitionOptions() if options is None else options
        self._root = Path(root)
        self.schema = self._tables.schema
        first = next(iter(self._tables.nodes.values())).path[0].rstrip("/")
        self.name = folder_name(self._tables.name or Path(first).name.split(".")[0])

    @cached_property
    def _paths(self) -> list[list[File]]:
        """The files of each table."""
        from glt_lightning.partition.sources.tables.files import list_files

        nodes = [list_files(self._tables.key_of(t), table.path) for t, table in sorted(self._tables.nodes.items())]
        edges: list[list[File]] = [
            [Path(table.path[0]).expanduser()] if table.is_matrix else list_files(self._tables.key_of(e), table.path)
            for e, table in sorted(self._tables.edges.items())
        ]
        return nodes + edges

    @property
    def _input_bytes(self) -> int:
        return sum(path.stat().st_size for files in self._paths for path in files)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(f"{_VERSION}:{self._tables.columns_text()}".encode(), digest_size=16)
        if self._tables.encoding is not None:
            digest.update(encoding_bytes(self._tables.encoding)[0])
        for files in self._paths:
            try:
                digest.update(f"{len(files)}:{file_fingerprint(*files)}:".encode())
            except OSError as error:
                raise DataError(f"{error.filename or files[0]}: cannot be read ({error.strerror}).") from None
        return digest.hexdigest()

    @property
    def future_folder(self) -> Path:
        """The folder of the converted tables, whether it exists or not."""
        return tables_folder(self._root, self.name, self.fingerprint)

    def conversion(self) -> tuple[Tables, int]:
        """Returns the parsed mapping, and how many bytes the conversion is counted as for the number of processes."""
        return self._tables, _WORK * self._input_bytes

    @cached_property
    def folder(self) -> Path:
        """The folder of the converted tables, which is made if it does not exist."""
        folder = self.future_folder
        if not folder.exists():
            run = lasting_path(folder, f"{_TASKS}x{self.fingerprint[:16]}")
            if self._options.engine == "array" and array_number() > 0:
                help_along(run, folder.exists, _LOCK_S)
                return folder
            with exclusive(folder, _LOCK_S):
                if not folder.exists():  # no other process made it during the wait for the lock
                    self._convert(folder, run)
        return folder

    def _convert(self, folder: Path, run: Path) -> None:
        """Converts the tables; goes on where a run of the same tables was killed. run: the folder of the run."""
        from glt_lightning.partition.sources.tables.convert import convert_tables
        from glt_lightning.partition.sources.tables.job import TableJob
        from glt_lightning.partition.tasks.engine import open_engine, task_memory
        from glt_lightning.partition.tasks.run import Calls

        _log.info("converting the tables of %s: %s", self.name, folder)
        options = self._options
        with lasting_folder(run), open_engine(options, self.conversion()[1], run) as (executor, width):
            job = TableJob(self._tables, run, task_memory(options, width), given=self._given)
            calls = Calls(job, self.fingerprint, executor)
            used = convert_tables(job, calls, width, Progress(None), self._applied)
            used = replace(used, target_type=self.target_type, num_classes=self._count_classes(job.out))
            (job.out / ENCODING).write_bytes(used.to_bytes())
            os.rename(job.out, folder)
        for node_type, facts in load_facts(folder).items():
            if facts.classes is not None:
                print(_classes_text(node_type, facts.classes, folder), file=sys.stderr)

    @cached_property
    def _applied(self) -> GraphEncoding | None:
        """The encoding that the mapping names; raises `DataError` unless its features are those of these tables."""
        folder = self._tables.encoding
        if folder is None:
            return None
        fitted = GraphEncoding.load(folder)
        tables: dict[str, NodeTable | EdgeTable] = {**self._tables.nodes}
        stored = dict(fitted.nodes) | dict(fitted.edges)
        tables |= {edge_type_str(e): table for e, table in self._tables.edges.items() if not table.is_matrix}
        for name, table in tables.items():
            there = stored[name].asked if name in stored else None
            if there != (asked := features_asked(table)):
                raise DataError(
                    f"dataset: encoding: {folder} was made with {there} for {name}, these tables say {asked}. Give the same "
                    "keys as there, or leave out encoding to fit anew."
                )
        return fitted

    @cached_property
    def _encoding(self) -> GraphEncoding:
        """The fitted encoding; empty in a folder of an earlier release."""
        stored = (self.folder / ENCODING).exists()
        return GraphEncoding.load(self.folder) if stored else GraphEncoding(nodes={}, edges={})

    @property
    def num_categories(self) -> dict[NodeType, list[int]]:
        """Number of codes of each column of ``x_codes``, for node types that have some."""
        return {t: table.num_codes for t, table in self._encoding.nodes.items() if table.codes}

    @property
    def num_edge_categories(self) -> dict[EdgeType, list[int]]:
        """Number of codes of each column of ``edge_codes``, for edge types that have some."""
        tables = {e: self._encoding.edges.get(edge_type_str(e)) for e in self.schema.edge_types}
        return {e: table.num_codes for e, table in tables.items() if table is not None and table.codes}

    @property
    def table_encoding(self) -> bytes | None:
        """The encoding as the partition stores it, to be applied to other rows."""
        return encoding_bytes(self.folder)[0] if (self.folder / ENCODING).exists() else None

    @cached_property
    def _facts(self) -> dict[NodeType, NodeFacts]:
        return load_facts(self.folder)

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        return {t: self._facts[t].num_nodes for t in self.schema.node_types}

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        found = {t: self.node_attrs(t).get("x") for t in self.schema.node_types}
        return {t: None if x is None else width(x.shape) for t, x in found.items()}

    @cached_property
    def target_type(self) -> NodeType | None:
        tables = self._tables.nodes
        labelled = [t for t in self.schema.node_types if tables[t].label]
        found = pick_target(labelled, {t for t in tables if tables[t].split}, self.name)
        return found if found is not None or self._applied is None else self._applied.target_type

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes 0, 1, ... when the labels are text."""
        return None if self.target_type is None else self._facts[self.target_type].classes

    @cached_property
    def num_classes(self) -> int | None:
        return self._count_classes(self.folder)

    def _count_classes(self, folder: Path) -> int | None:
        """Returns the number of classes of the labels in a folder of converted tables; at least as many as in an encoding that
        was applied."""
        target, known = self.target_type, None if self._applied is None else self._applied.num_classes
        if target is None or not (path := node_folder(folder, target) / "y.npy").exists():
            return known
        names = load_facts(folder)[target].classes
        found = classes_of(NpyFile(path)) if names is None else len(names)
        return found if found is None or known is None else max(found, known)

    @property
    def splits(self) -> Splits:
        folders = {t: node_folder(self.folder, t) for t in self.schema.node_types}
        return {name: (t, ids) for t, folder in folders.items() for name, ids in _splits(folder).items()}

    def edges(self, edge_type: EdgeType) -> EdgeList:
        require_rows(self.folder)
        folder = edge_folder(self.folder, edge_type)
        return EndFiles(NpyFile(folder / "source.npy"), NpyFile(folder / "destination.npy"))

    @property
    def edge_labels(self) -> dict[EdgeType, EdgeLabels]:
        """The labels of edge types whose tables have a column of them."""
        found = {}
        for e, table in self._tables.edges.items():
            if table.label is not None:
                classes = self._encoding.edges.get(edge_type_str(e), TableEncoding()).classes
                found[e] = EdgeLabels(NpyFile(edge_folder(self.folder, e) / "y.npy"), classes, column=table.label)
        return found

    @property
    def edge_columns(self) -> dict[EdgeType, dict[str, np.ndarray]]:
        """The edges of each split, of edge types whose tables have a column of them."""
        given = [e for e, table in self._tables.edges.items() if table.split is not None]
        return {e: _splits(edge_folder(self.folder, e)) for e in given}

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        require_rows(self.folder)
        folder = node_folder(self.folder, node_type)
        labels = {"y": NpyFile(folder / "y.npy")} if (folder / "y.npy").exists() else {}
        return _attrs(folder) | labels

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        require_rows(self.folder)
        return _attrs(edge_folder(self.folder, edge_type))

    def user_ids(self, n_id: Any, node_type: NodeType | None = None) -> np.ndarray:
        """Returns the user's ids of nodes, as `user_ids` of `tables.columns`."""
        return user_ids(self.folder, n_id, node_type)


def _classes_text(node_type: NodeType, classes: list[str], folder: Path) -> str:
    shown = ", ".join(f"{index} = {name}" for index, name in enumerate(classes[:20]))
    more = f", ... (all {len(classes)} are in {folder / FACTS})" if len(classes) > 20 else ""
    return f"classes of {node_type}: {shown}{more}"


def _splits(folder: Path) -> dict[str, np.ndarray]:
    """Reads the rows of each split of a table."""
    return {path.stem: NpyFile(path)[:] for path in sorted((folder / "splits").glob("*.npy"))}


def _attrs(folder: Path) -> dict[str, Rows]:
    return {path.stem: NpyFile(path) for path in sorted(folder.glob("*.npy")) if path.stem not in _NO_ATTRS}
