"""Predictions on disk, keyed by the user's node ids."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import DataError, PeerError, WriteError, __version__
from glt_lightning.lightning.callbacks.prediction_files import KEY, ROW_GROUP, Column, PredictionFile, read_predictions
from glt_lightning.lightning.callbacks.prediction_places import folder_of, place_of, require_ours
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.strategies.ranks import gather_text_of

__all__ = ["PredictionWriter", "read_predictions"]

_PRED, _TYPE, _NODE_TYPE, _DESTINATION, _RELATION = "pred", "edge_type", "node_type", "destination", "rel_type"
_MOST_BYTES = 64 << 20  # of a row group: 65,536 embeddings of 256 floats
_Forms = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


class PredictionWriter(Callback):
    """Writes what ``predict_step`` returns: a folder with one Parquet file per rank, each node in exactly one of them.

    ``predict_step`` returns a dictionary of tensors with one row per seed, among them ``n_id``. Beside these columns there are
    ``id``, what the user's table calls the node, where the graph comes from tables with ids, and ``destination_id`` of edges; and
    where ``pred`` holds classes that have names, ``class`` (for several labels of a node ``classes``). Rows are written as they
    come,
    in row groups of at most 65,536. A new folder appears when it is complete; in one that is there, the new files replace
    earlier predictions when all are complete. A run that fails leaves nothing of its own. Read the folder with
    `read_predictions`, or with whatever reads Parquet.

    Args:
        path: The folder: a new one, an empty one, or one that has earlier predictions alone. Or a URL of
            fsspec (``s3://bucket/predictions``), to which the manifest is written last: until then readers find earlier
            predictions; other files there are not looked at, and stay. ``None``: ``predictions`` in the folder of the
            Trainer's logs.
        keys: Which entries to write besides ``n_id`` and ``id``. ``None``: all.

    Raises:
        OptionError: For a folder with other files, a file, and a link; before anything is predicted.
        DataError: For results of ``predict_step`` without ``n_id``, or whose rows do not fit it.
        WriteError: If a file cannot be written; all ranks raise then.

    Example:
        >>> trainer = Trainer(callbacks=[PredictionWriter("predicted", keys=["pred"])])
        >>> _ = trainer.predict(model, datamodule, return_predictions=False)
        >>> read_predictions("predicted").keys()
        dict_keys(['n_id', 'pred'])
    """

    _noun = "predictions"

    def __init__(self, path: str | None = None, keys: list[str] | None = None) -> None:
        self.path, self.keys = path, keys
        self._place: Any = None
        self._facts: dict[str, str] = {}
        self._file: Any = None
        self._naming: Any = None
        self._group = RowGroup(keys)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "predict":
            path = gather_text_of(trainer, self._path(trainer))[0]
            _on_all_ranks(trainer, lambda: None if "://" in path else require_ours(Path(path)))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
        path = self._path(trainer)
        inside = "://" not in path and os.path.isdir(path)  # as rank 0 sees it; hosts of one NFS may differ for seconds
        token, there, path = gather_text_of(trainer, f"{secrets.token_hex(6)} {inside:d} {path}")[0].split(" ", 2)
        self._place, self._facts = place_of(path, token, there == "1"), _facts(trainer)
        _on_all_ranks(trainer, lambda: self._place.open() if trainer.local_rank == 0 else None)
        with self._said_of(trainer.global_rank, 0):
            self._file = PredictionFile(self._place.scratch, self._facts)
        self._naming = Naming(trainer, pl_module)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._group.add(outputs)
        if self._group.full:
            self._write(trainer.global_rank)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        place, leads_host, first = self._place, trainer.local_rank == 0, trainer.global_rank == 0
        try:
            _on_all_ranks(trainer, lambda: self._write(trainer.global_rank))
            _on_all_ranks(trainer, lambda: place.prepare() if leads_host else None)
            _on_all_ranks(trainer, lambda: self._publish(trainer.global_rank))
            counts = [int(count) for count in gather_text_of(trainer, str(self._file.num_rows))]
            _on_all_ranks(trainer, lambda: place.complete(counts, self._facts) if first else None)
            others = leads_host and not first
            _on_all_ranks(trainer, lambda: place.complete_host(counts, self._facts) if others else None)
        except BaseException:
            place.clean(leads_host)
            raise
        finally:
            self._close()
        rank_zero_info(f"{self._noun}: {place.name}")

    def _path(self, trainer: Trainer) -> str:
        path = str(self.path or Path(trainer.log_dir or trainer.default_root_dir) / "predictions")
        return path if "://" in path else str(folder_of(path))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _write(self, rank: int) -> None:
        """Writes the rows that were collected."""
        if not (rows := self._group.take()):
            return
        columns, lost = self._naming.add(rows)
        with self._said_of(rank, self._file.num_rows):
            if lost is not None:
                self._file.drop(lost)
            self._file.write(columns)

    def _publish(self, rank: int) -> None:
        with self._said_of(rank, self._file.num_rows):
            self._place.publish(self._file, rank)

    @contextlib.contextmanager
    def _said_of(self, rank: int, rows: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"{self._place.name}: the {self._noun} of rank {rank} cannot be written ({error.strerror or error}) after "
                f"{rows:,} rows; {self._place.remedy}; earlier {self._noun} there are untouched."
            ) from error

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._naming, self._group = None, None, RowGroup(self.keys)


def _facts(trainer: Trainer) -> dict[str, str]:
    """What the predictions come from."""
    facts = {"package_version": __version__}
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, GLTDataModule) and (graph := data.graph_hash) is not None:
        facts["graph"] = graph
    if trainer.ckpt_path is not None:
        facts["checkpoint"] = str(trainer.ckpt_path)
        if os.path.isfile(trainer.ckpt_path):
            with open(trainer.ckpt_path, "rb") as stream:
                facts["checkpoint_hash"] = hashlib.file_digest(stream, _digest).hexdigest()
    return facts


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def _on_all_ranks(trainer: Trainer, act: Callable[[], None]) -> None:
    """If ``act`` raises on one rank, all ranks raise, after all of them are done with it. A collective call."""
    error: Exception | None = None
    try:
        act()
    except Exception as raised:
        error = raised
    failures = gather_text_of(trainer, "" if error is None else f"{error}"[:1000] or type(error).__name__)
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure:
            raise PeerError(f"rank {rank}: {failure}")


class RowGroup:
    """Rows of some batches until there are enough to write."""

    def __init__(self, keys: list[str] | None) -> None:
        self._keys = keys
        self._forms: _Forms = {}
        self._chunks: list[dict[str, np.ndarray]] = []
        self._begun = False  # whether a batch had rows: one without any says little about their types

    def add(self, outputs: Any) -> None:
        """Of one batch. Raises `DataError` where they do not fit, also to those of earlier batches."""
        rows = {name: _to_numpy(values) for name, values in _checked(outputs, self._keys).items()}
        if not len(rows[KEY]) and self._begun:
            return
        forms = {name: (values.dtype, values.shape[1:]) for name, values in rows.items()}
        if not self._begun:
            self._forms, self._chunks, self._begun = forms, [], bool(len(rows[KEY]))
        _check_same(self._forms, forms)
        self._chunks.append(rows)

    @property
    def full(self) -> bool:
        count = sum(len(chunk[KEY]) for chunk in self._chunks)
        return count >= ROW_GROUP or sum(v.nbytes for chunk in self._chunks for v in chunk.values()) >= _MOST_BYTES

    def take(self) -> dict[str, np.ndarray]:
        """What was collected, which is then forgotten."""
        chunks, self._chunks = self._chunks, []
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in self._forms} if chunks else {}


class Naming:
    """Adds the columns of names. The first rows decide which there are, so that all row groups have the same."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        self._data = data if isinstance(data, GLTDataModule) else None
        self._classes: list[str] = []
        if self._data is not None:
            self._classes = [str(name) for name in getattr(module, "class_names", None) or self._data.class_names or ()]
        self._types: list[str] = list(getattr(module, "type_names", ()))
        self._node_types: list[str] = list(getattr(module, "node_type_names", ()))
        self._relations = [] if self._data is None else self._data.relation_names or []
        self._has_ids: bool | None = None
        self._column: str | None = None

    def add(self, rows: dict[str, np.ndarray]) -> tuple[dict[str, Column], str | None]:
        """(all columns, the one that earlier row groups have and these rows cannot have)."""
        ids = None
        if self._data is not None and self._has_ids is not False:
            ids = self._user_ids(self._data, rows)
        pred = class_column(rows[_PRED], self._classes) if _PRED in rows and self._classes else {}
        lost = None
        if self._has_ids is None:
            self._has_ids, self._column = ids is not None, next(iter(pred), None)
        elif self._column not in (None, *pred):
            lost, self._column = self._column, None
        found: dict[str, Column] = {KEY: rows[KEY]}
        if ids is not None:
            found["id"] = ids
        if ids is not None and self._data is not None and _DESTINATION in rows:
            found["destination_id"] = self._destination_ids(self._data, rows, ids)
        for name, values in rows.items():
            words = {_TYPE: self._types, _NODE_TYPE: self._node_types, _RELATION: self._relations}.get(name)
            found[name] = np.array(words, dtype=object)[values] if words else values
            if name == _PRED and self._column is not None:
                found |= pred
        return found, lost

    def _destination_ids(self, data: GLTDataModule, rows: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
        """Of the destinations of edges; as text where the types of edges are several."""
        types = [each.split("__")[2] for each in self._types] or [data.destination_type or ""]
        numbers = rows[_TYPE] if self._types and _TYPE in rows else np.zeros(len(ids), np.int64)
        found = np.empty(len(ids), dtype=object) if len({*types}) > 1 else None
        for number, node_type in enumerate(types):
            mine = numbers == number
            own = data.user_ids(rows[_DESTINATION][mine] if found is not None else rows[_DESTINATION], node_type)
            own = rows[_DESTINATION] if own is None else own  # a table without ids of its own
            if found is None:
                return own
            found[mine] = [str(each) for each in own]
        assert found is not None
        return found

    def _user_ids(self, data: GLTDataModule, rows: dict[str, np.ndarray]) -> np.ndarray | None:
        """Of nodes, or sources of edges, of several types those of the tables of these types: as text then."""
        if _NODE_TYPE in rows and self._node_types:
            sources, numbers = self._node_types, rows[_NODE_TYPE]
        elif _TYPE in rows and self._types:
            sources, numbers = [name.split("__")[0] for name in self._types], rows[_TYPE]
        else:
            return data.user_ids(rows[KEY])
        if len({*sources}) == 1:
            return data.user_ids(rows[KEY], sources[0])
        of, found = np.array(sources, dtype=object)[numbers], np.empty(len(rows[KEY]), dtype=object)
        for t in sorted({*sources}):
            ids = data.user_ids(rows[KEY][of == t], t)
            if ids is None:
                return None
            found[of == t] = [str(each) for each in ids]
        return found


def _checked(outputs: Any, keys: list[str] | None) -> dict[str, torch.Tensor]:
    if not isinstance(outputs, Mapping) or KEY not in outputs:
        raise DataError(
            f"PredictionWriter: predict_step must return a dictionary of tensors with {KEY!r} among them, got "
            f"{sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__}. Let it return "
            f"{{{KEY!r}: batch.n_id[: batch.batch_size].clone(), 'pred': ...}}."
        )
    if missing := set(keys or ()) - set(outputs):
        raise DataError(
            f"PredictionWriter: keys: {sorted(missing)} are not in the output of predict_step, which "
            f"has {sorted(outputs)}."
        )
    chosen = {name: rows for name, rows in outputs.items() if keys is None or name in (KEY, *keys)}
    count = len(outputs[KEY])
    for name, rows in chosen.items():
        if not isinstance(rows, torch.Tensor) or rows.dim() == 0 or len(rows) != count:
            raise DataError(
                f"PredictionWriter: {name!r}: expected a tensor with one row for each of the {count} nodes."
            )
    return chosen


def _to_numpy(rows: torch.Tensor) -> np.ndarray:
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows  # numpy has no bfloat16
    return rows.detach().cpu().numpy().copy()


def _check_same(first: _Forms, forms: _Forms) -> None:
    if first.keys() != forms.keys():
        raise DataError(
            f"PredictionWriter: predict_step returned {sorted(first)} for the first batch and {sorted(forms)} for a later one. "
            "Return the same entries for each."
        )
    for name, form in forms.items():
        if form != first[name]:
            raise DataError(
                f"PredictionWriter: {name!r}: predict_step returned rows of {_shown(first[name])} for the first batch and of "
                f"{_shown(form)} for a later one. Return the same type and shape for each."
            )


def _shown(form: tuple[np.dtype[Any], tuple[int, ...]]) -> str:
    return f"{form[0]} {list(form[1])}" if form[1] else f"{form[0]}"


def class_column(pred: np.ndarray, names: list[str]) -> dict[str, Column]:
    """The names of predicted classes; nothing where the predictions are no classes."""
    if pred.ndim == 1 and pred.dtype.kind in "iub" and (not len(pred) or (pred.min() >= 0 and pred.max() < len(names))):
        return {"class": np.array(names, dtype=object)[pred.astype(np.int64)]}
    if pred.dtype == np.bool_ and pred.shape[1:] == (len(names),):
        return {"classes": [[names[c] for c in np.flatnonzero(row)] for row in pred]}
    return {}
