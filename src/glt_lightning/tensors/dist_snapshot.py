"""Saving and loading of the tensors of a graph, for `DistGraph.save`, `DistGraph.load` and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from glt_lightning.base import DataError
from glt_lightning.tensors.dist_tensor import DistTensor, torch_dtype
from glt_lightning.tensors.reader import GraphReader
from glt_lightning.tensors.saved import RowsToSave, SavedRows, kind_and_shape, load_table, rows_to_save, save_tables
from glt_lightning.tensors.values import ValueType

if TYPE_CHECKING:
    from glt_lightning.tensors.dist_graph import DistGraph


def save_tensors(graph: DistGraph, reader: GraphReader, folder: Path) -> None:
    """Writes the named tensors of a graph to a new folder. A collective call. Raises `WriteError`, on other ranks `PeerError`."""
    save_tables(folder, graph.tables, graph.tables.named, reader)


def persistent_rows(graph: DistGraph) -> list[RowsToSave]:
    """The persistent tensors of a graph, as checkpoints save them."""
    return rows_to_save(graph.tables.persistent, graph.reader)


def load_persistent(graph: DistGraph, saved: SavedRows, names: Sequence[str], *, strict: bool) -> None:
    """Reads the persistent tensors ``names`` of a checkpoint. A collective call.

    strict: raise `DataError` for a tensor that only the checkpoint or only the module has.
    """
    there = graph.tables.persistent
    if strict and (odd := sorted(set(there).symmetric_difference(names))):
        who = "the module has it and the checkpoint does not"
        if odd[0] in names:
            who = "the checkpoint has it, and the module has not created it in setup()"
        raise DataError(
            f"{saved.folder}: tensor {odd[0]!r} is persistent: {who}. With strict_loading=False it is left as it is."
        )
    for name in sorted(set(there).intersection(names)):
        read = partial(load_table, saved, graph.tables, there[name], graph.reader)
        graph.ranks.all_or_none(read, lambda _: None)


def load_tensors(graph: DistGraph, reader: GraphReader, folder: Path) -> list[DistTensor]:
    """Reads all tensors of a folder into those of the same name, or into new ones. A collective call. Raises `DataError`, on
    other ranks `PeerError`."""
    saved = graph.ranks.all_or_none(lambda: SavedRows(folder, None), lambda _: None)
    found = []
    for name, each in saved.tables.items():
        kind, row_shape = kind_and_shape(saved, name)
        space = graph.space(each["of"])
        if name in graph.tables.named:
            tensor = DistTensor.over(graph, graph.tables[name])
        else:
            shape, dtype = (space.num_rows, *row_shape), torch_dtype(ValueType.of(kind))
            tensor = DistTensor(shape, dtype, name, of=space.label, graph=graph)
        graph.ranks.all_or_none(partial(load_table, saved, graph.tables, tensor.table, reader), lambda _: None)
        found.append(tensor)
    return found
