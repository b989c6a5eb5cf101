"""Rows beside checkpoints: ``X.ckpt`` and the folder ``X.ckpt.rows-NONCE``."""

from __future__ import annotations

import glob
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import DataError, OptionError
from glt_lightning.tensors.combined import Optimizers
from glt_lightning.tensors.dist_embedding import MARKER, DistEmbedding
from glt_lightning.tensors.saved import (
    RowsToSave,
    is_nonce,
    load_table,
    open_saved,
    rows_to_save,
    write_rows,
)

if TYPE_CHECKING:
    from glt_lightning.tensors.dist_graph import DistGraph

_NONCE = re.compile("[0-9a-f]{16}")


class CheckpointRows:
    """The rows of embeddings, and the persistent tensors of a graph, which lie in a folder beside each checkpoint.

    The rows are written first, then the checkpoint, which names their folder; then the folder of the checkpoint before is
    removed. A crash at any point leaves a checkpoint with its rows.

    embeddings: by their names in the module.  graph: whose persistent tensors are saved; None: there are none to save.
    """

    def __init__(self, embeddings: Mapping[str, DistEmbedding], graph: DistGraph | None = None) -> None:
        self._embeddings, self.graph = list(embeddings.values()), graph

    def save(
        self, checkpoint: dict[str, Any], path: Path, optimizers: Sequence[Any], write: Callable[[], object]
    ) -> None:
        """Saves the rows of a checkpoint, and the states of those of the ``optimizers`` that train them. Called on one rank: it
        reads the tables, of other hosts too, while the others wait for it.

        path: of the checkpoint, absolute.  write: writes the checkpoint, which names the rows then.
        """
        nonce = secrets.token_hex(8)
        folder = _folder(path, nonce)
        path.parent.mkdir(parents=True, exist_ok=True)
        trained = {id(each): one.kind for one in Optimizers.sparse_among(optimizers) for each in one.embeddings}
        tables = [each.rows.to_save(trained.get(id(each))) for each in self._embeddings]
        if self.graph is not None:
            tensors = rows_to_save(self.graph.tables.persistent, self.graph.reader)
            _refuse_same_names(tables, tensors)
            tables += tensors
            checkpoint[MARKER] = {"names": [each.name for each in tensors]}
        graphs = [each.rows.held.graph for each in self._embeddings]
        digest = write_rows(folder, tables, graphs[0] if self.graph is None else self.graph.hash)
        _write_naming(folder, nonce, digest, list(_markers(checkpoint)), write)
        self.remove(path, but=folder)

    def load(self, checkpoint: Mapping[str, Any], path: Path, *, strict: bool) -> None:
        """Tells the embeddings and optimizers of a checkpoint where their rows lie now, and reads the persistent tensors. A
        collective call.

        path: of the checkpoint, which may have been moved.  strict: refuse rows of other nodes, and tensors that only the
        checkpoint or only the module has.  Raises `DataError`, also for a damaged checkpoint.
        """
        for marker in _markers(checkpoint):
            if "nonce" not in marker:
                marker.pop("folder", None)  # nothing of ours wrote that
            elif not is_nonce(marker["nonce"]):
                raise DataError(
                    f"{path}: damaged: its rows are in a folder named by {marker['nonce']!r:.80}, expected letters and "
                    "digits. Use another checkpoint."
                )
            else:
                marker.update(folder=str(_folder(path, marker["nonce"])), lenient=not strict)
        if self.graph is not None:
            self._load_tensors(self.graph, checkpoint.get(MARKER), path, strict)

    def _load_tensors(self, graph: DistGraph, found: Any, path: Path, strict: bool) -> None:
        if found is None:
            if strict:
                raise DataError(
                    f"{path}: it has no persistent tensors. With strict_loading=False they are left as they are."
                )
            return
        names = found.get("names") if isinstance(found, Mapping) else None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise DataError(f"{path}: damaged: persistent tensors are named {names!r:.80}. Use another checkpoint.")
        saved, there = open_saved(found), graph.tables.persistent
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

    @staticmethod
    def remove(path: Path, but: Path | None = None) -> None:
        """Removes the rows of checkpoints of this name, except for the folder ``but``."""
        for each in path.parent.glob(f"{glob.escape(path.name)}.rows-*"):
            if each != but and _NONCE.fullmatch(each.name.rpartition("-")[2]):  # a copy of the user's has another name
                shutil.rmtree(each, ignore_errors=True)


def _refuse_same_names(tables: Sequence[RowsToSave], tensors: Sequence[RowsToSave]) -> None:
    if both := {each.name for each in tables}.intersection(each.name for each in tensors):
        raise OptionError(f"tensor {min(both)!r}: an embedding has this name, too. Give the tensor another one.")


def _folder(checkpoint: Path, nonce: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.rows-{nonce}")


def _markers(checkpoint: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the entries of a checkpoint that name rows: in the state of an embedding, and in that of an optimizer."""
    states = checkpoint.get("state_dict", {})
    optimizers = checkpoint.get("optimizer_states", [])
    inner = [each for state in optimizers for each in state.get("sparse", ())]
    for state in (checkpoint, *states.values(), *optimizers, *inner):
        if isinstance(state, dict) and isinstance(state.get(MARKER), dict):
            yield state[MARKER]


def _write_naming(
    folder: Path, nonce: str, digest: str, markers: Sequence[dict[str, Any]], write: Callable[[], object]
) -> None:
    """Writes a checkpoint whose markers name the rows of a folder, which goes if it cannot be written."""
    for marker in markers:
        marker.update(nonce=nonce, index=digest, folder=str(folder))
    try:
        write()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def forget_rows(
    checkpoint: dict[str, Any], path: Path, deleted: Mapping[str, np.ndarray], write: Callable[[], object]
) -> list[str]:
    """Writes the rows of a loaded checkpoint anew, with zeros for deleted nodes and without states of optimizers. Returns the
    names of tables whose rows are of edges, which stay.

    path: of the checkpoint.  deleted: user ids by node type.  write: writes the checkpoint, which names the new rows then, or is
    called alone where there are none. A crash leaves the old pair or the new one, and a further call ends the work.
    """
    markers = list(_markers(checkpoint))
    if not any("nonce" in marker for marker in markers):
        write()
        return []
    for marker in markers:
        marker.update(folder=str(_folder(path, str(marker.get("nonce")))))
    saved = open_saved(next(marker for marker in markers if "nonce" in marker))
    nonce = secrets.token_hex(8)
    folder = _folder(path, nonce)
    tables = [saved.without_rows(name, deleted) for name in saved.tables]
    digest = write_rows(folder, tables, saved.graph)
    _write_naming(folder, nonce, digest, markers, write)
    CheckpointRows.remove(path, but=folder)
    return [name for name, table in saved.tables.items() if "__" in table["of"]]
