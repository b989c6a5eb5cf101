"""Rows that ``predict_step`` returns: checked, collected into row groups, and with the user's ids and names of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.errors import DataError
from glt_lightning.lightning.callbacks.prediction_files import KEY, ROW_GROUP, Column
from glt_lightning.lightning.datamodule import GLTDataModule

_PRED, _TYPE, _NODE_TYPE = "pred", "edge_type", "node_type"
_MOST_BYTES = 64 << 20  # of a row group: 65,536 embeddings of 256 floats
_Forms = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


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
        self._has_ids: bool | None = None
        self._column: str | None = None

    def add(self, rows: dict[str, np.ndarray]) -> tuple[dict[str, Column], str | None]:
        """(all columns, the one that earlier row groups have and these rows cannot have)."""
        ids = None
        if self._data is not None and self._has_ids is not False:
            ids = self._user_ids(self._data, rows)
        pred = _class_column(rows[_PRED], self._classes) if _PRED in rows and self._classes else {}
        lost = None
        if self._has_ids is None:
            self._has_ids, self._column = ids is not None, next(iter(pred), None)
        elif self._column not in (None, *pred):
            lost, self._column = self._column, None
        found: dict[str, Column] = {KEY: rows[KEY]}
        if ids is not None:
            found["id"] = ids
        for name, values in rows.items():
            words = {_TYPE: self._types, _NODE_TYPE: self._node_types}.get(name)
            found[name] = np.array(words, dtype=object)[values] if words else values
            if name == _PRED and self._column is not None:
                found |= pred
        return found, lost

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
            f"{sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__}."
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


def _class_column(pred: np.ndarray, names: list[str]) -> dict[str, Column]:
    """The names of predicted classes; nothing where the predictions are no classes."""
    if pred.ndim == 1 and pred.dtype.kind in "iub" and (not len(pred) or (pred.min() >= 0 and pred.max() < len(names))):
        return {"class": np.array(names, dtype=object)[pred.astype(np.int64)]}
    if pred.dtype == np.bool_ and pred.shape[1:] == (len(names),):
        return {"classes": [[names[c] for c in np.flatnonzero(row)] for row in pred]}
    return {}
