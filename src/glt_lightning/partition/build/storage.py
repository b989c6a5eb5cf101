"""As what the attributes of a graph are stored: as they are, or in fewer bytes (``partition.storage``)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from glt_lightning.data.manifest import EncodingEntry
from glt_lightning.errors import DataError, OptionError
from glt_lightning.ops.encoding import BFLOAT16, ENCODINGS, from_bfloat16
from glt_lightning.ops.row_bytes import row_bytes
from glt_lightning.partition.build.finite import first_nonfinite
from glt_lightning.partition.sources.base import GraphSource, Rows
from glt_lightning.types import edge_type_str


@dataclass(frozen=True)
class StoredAs:
    """How one attribute is stored: numbers of ``dtype`` in rows of ``row_shape``.

    what: the attribute, for people.  entry: what the manifest says of it; None: it is stored as it is.
    allow: the option (``partition.allow``) under which it may hold NaN and infinite values; None: it is on.
    """

    what: str
    dtype: np.dtype
    row_shape: tuple[int, ...]
    entry: EncodingEntry | None = None
    allow: str | None = None

    @property
    def bytes_per_row(self) -> int:
        return row_bytes(self.dtype, self.row_shape)

    def encode(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The rows as they are stored. ids: int [n], the user's numbers of the rows.

        Raises `DataError`, naming the first row that cannot be stored so.
        """
        self.require_allowed(rows, ids)
        if self.entry is None:
            return rows
        if self.entry.given == "bfloat16":
            return rows.view(self.dtype)
        if rows.dtype == BFLOAT16:
            rows = from_bfloat16(rows.view("<u2"))
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(rows, dtype=np.float32)
        self._require(np.isfinite(values), rows, "float32", ids)
        stored = ENCODINGS[self.entry.stored].encode(values)
        if self.entry.stored == "float16":
            self._require(np.isfinite(stored), rows, "float16, which ends at 65504: take bfloat16", ids)
        elif self.entry.stored == "bfloat16":
            self._require(stored & 0x7F80 != 0x7F80, rows, "bfloat16", ids)
        return stored

    def require_allowed(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """As `require_finite`, unless an option lets such values pass."""
        if self.allow is not None:
            self.require_finite(rows, ids, f", or allow it: partition.allow: [{self.allow}]")

    def require_finite(self, rows: np.ndarray, ids: np.ndarray, remedy: str = "") -> None:
        """Raises `DataError`, naming the user's number of the row, where a value is NaN or infinite."""
        at = first_nonfinite(rows)
        if at is not None:
            value = from_bfloat16(rows[at].view("<u2")) if rows.dtype == BFLOAT16 else rows[at]
            column = f", column {', '.join(map(str, at[1:]))}" if len(at) > 1 else ""
            raise DataError(
                f"{self.what}: row {ids[at[0]]}{column} holds {value}. Training on it gives NaN. Replace such values, by "
                f"numpy.nan_to_num for instance{remedy}."
            )

    def _require(self, good: np.ndarray, rows: np.ndarray, kind: str, ids: np.ndarray) -> None:
        if good.all():
            return
        at = np.unravel_index(int(good.argmin()), good.shape)
        assert self.entry is not None
        fault = f"does not fit {kind}" if np.isfinite(rows[at]) else f"cannot be stored as {self.entry.stored}"
        name = self.what.partition(" ")[0]
        raise DataError(
            f"{self.what}: row {ids[at[0]]} holds {rows[at]}, which {fault}. Mend the data or leave {name} out of "
            "partition.storage."
        )


class Storage:
    """How all attributes of a source are stored. wanted: attribute -> name of an encoding; allow: ``partition.allow``."""

    def __init__(self, source: GraphSource, wanted: Mapping[str, str], allow: Collection[str] = ()) -> None:
        self._wanted, self._allow = dict(wanted), allow
        self.nodes = {t: self._all(source.node_attrs(t), f"node type {t!r}") for t in source.schema.node_types}
        self.edges = {
            e: self._all(source.edge_attrs(e), f"edge type {edge_type_str(e)}") for e in source.schema.edge_types
        }
        known = sorted({name for attrs in (*self.nodes.values(), *self.edges.values()) for name in attrs})
        for name in self._wanted:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise OptionError(
                    f"partition.storage: no attribute {name!r}; the graph has {', '.join(known) or 'none'}.{hint}"
                )

    def _all(self, attrs: Mapping[str, Rows], owner: str) -> dict[str, StoredAs]:
        return {name: self._one(name, rows, f"{name} of {owner}") for name, rows in attrs.items()}

    def _one(self, name: str, rows: Rows, what: str) -> StoredAs:
        row_shape = tuple(rows.shape[1:])
        kind = self._wanted.get(name)
        nonfinite: str | None = "nonfinite_labels" if name == "y" else "nonfinite_features"
        if nonfinite in self._allow or not (rows.dtype.kind == "f" or rows.dtype == BFLOAT16):
            nonfinite = None
        if kind is None:
            if rows.dtype == BFLOAT16:
                entry = EncodingEntry("bfloat16", "bfloat16")
                return StoredAs(what, ENCODINGS["bfloat16"].dtype, row_shape, entry, nonfinite)
            return StoredAs(what, rows.dtype, row_shape, None, nonfinite)
        encoding = ENCODINGS[kind]
        if rows.dtype.kind != "f" and rows.dtype != BFLOAT16:
            raise OptionError(
                f"partition.storage.{name}: {kind} is for floats, but {what} is {rows.dtype}. Leave it out: it is stored "
                "as it is."
            )
        if not encoding.fits(row_shape):
            raise OptionError(
                f"partition.storage.{name}: {kind} needs rows of one dimension, but {what} is {list(rows.shape)}. Take "
                "float16 or bfloat16."
            )
        return StoredAs(what, encoding.dtype, encoding.stored_shape(row_shape), EncodingEntry(kind, "float32"))
