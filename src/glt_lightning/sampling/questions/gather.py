"""The question for attributes of rows.

**gather** reads attributes. The request names tables, ``"tables": [["node" or "edge", type, [name, ...]], ...]``, and
has for the *k*-th of them the array ``"<k>"``: gids of nodes, or edge rows. The reply has the arrays ``"<k>/<name>"``,
one row for each id, as it is stored. ``n_id`` and ``edge_ids`` are names like any other; ``indices`` of edges are their
ends, int64 [n, 2], the gids of source and destination. The reply has the first of the requested rows, table after
table, that fit into ``cluster.limits.reply_size``, at least one; the caller requests the others again.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import ENDS, Manifest
from glt_lightning.sampling.source import (
    Arrays,
    InconsistentReplyError,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    Work,
    require_ids,
)


@dataclass(frozen=True)
class AskedRows:
    """A request for attributes of nodes (by gid) or edges (by edge row) of one owner. names: as stored in the partition."""

    kind: str  # "node" or "edge"
    type: int
    names: tuple[str, ...]
    ids: np.ndarray

    def count_in(self, found: Arrays) -> int:
        """Returns the number of rows in a reply. found: its arrays, by name."""
        return len(next(iter(found.values()))) if found else len(self.ids)


@dataclass(frozen=True)
class Gather(OwnerQuestion[Sequence[Arrays]]):
    """The attributes of rows of several tables. The answer has for each of them name -> [n, ...], as stored."""

    op: ClassVar[str] = "gather"
    bulk: ClassVar[bool] = True

    tables: Sequence[AskedRows]

    @property
    def attribute_rows(self) -> int:
        return sum(len(rows.ids) for rows in self.tables)

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        tables = [[rows.kind, rows.type, list(rows.names)] for rows in self.tables]
        return {"tables": tables}, {str(number): rows.ids for number, rows in enumerate(self.tables)}

    def conversation(self) -> Generator[Self, Received, Sequence[Arrays]]:
        """Receives as many rows as fit into a reply, and requests the rest after that."""
        tables = self.tables
        piece = self._rows_of((yield self).arrays)
        if all(rows.count_in(each) == len(rows.ids) for each, rows in zip(piece, tables, strict=True)):
            return piece
        whole = [
            {name: np.empty((len(rows.ids), *array.shape[1:]), dtype=array.dtype) for name, array in each.items()}
            for each, rows in zip(piece, tables, strict=True)
        ]
        done, rest = [0] * len(tables), self
        while True:
            received = [rows.count_in(each) for each, rows in zip(piece, rest.tables, strict=True)]
            for k, each in enumerate(piece):
                for name, array in each.items():
                    whole[k][name][done[k] : done[k] + received[k]] = array
                done[k] += received[k]
            rest = replace(self, tables=[replace(rows, ids=rows.ids[n:]) for rows, n in zip(tables, done, strict=True)])
            if not rest.attribute_rows:
                return whole
            if not any(received):
                raise InconsistentReplyError("a request for attributes has no rows.")
            piece = rest._rows_of((yield rest).arrays)

    def _rows_of(self, reply: Arrays) -> Sequence[Arrays]:
        """Returns the arrays of one reply, table after table. Raises `InconsistentReplyError`."""
        found = []
        for number, rows in enumerate(self.tables):
            names = [f"{number}/{name}" for name in rows.names]
            if not all(name in reply for name in names):
                raise InconsistentReplyError(f"a request for attributes lacks some of {names}.")
            each = {name: reply[f"{number}/{name}"] for name in rows.names}
            if len({len(array) for array in each.values()}) > 1 or rows.count_in(each) > len(rows.ids):
                raise InconsistentReplyError(
                    f"a request for {len(rows.ids)} rows has more rows, or attributes of different lengths."
                )
            found.append(each)
        return found

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request; its reply has the first rows, table after table, as many as fit. They are written straight into the
        body of the reply."""
        tables = header.get("tables")
        if not isinstance(tables, list) or len(tables) != len(arrays):
            raise DataError(f"gather: expected one array of ids per table, got {len(arrays)} for {tables!r:.200}.")
        given: list[tuple[np.ndarray, dict[str, Any]]] = []
        left, whole = parts.most_bytes, True
        for number, table in enumerate(tables):
            kind, index, names = _table(table, parts.manifest)
            rows = require_ids(arrays.get(str(number)))
            found = {name: parts.shards(kind, index, name) for name in names}
            # the ids of narrow rows take more memory than the rows
            row_bytes = max(8, sum(shards.row_bytes for shards in found.values()))
            # at least one row in a reply, or the caller would ask for the rest for ever
            fit = max(left // row_bytes, 0 if any(len(each) for each, _ in given) else 1) if whole else 0
            whole = fit >= len(rows)
            given.append((rows[:fit], found))
            left -= len(rows[:fit]) * row_bytes
        nbytes = parts.most_bytes - left + 8 * sum(len(rows) for rows, _ in given)
        return Work(nbytes, lambda look: _reply(given))


def _reply(given: Sequence[tuple[np.ndarray, Mapping[str, Any]]]) -> Reply:
    """Makes the reply. given: for each table the ids of its rows, and by name the stored attribute: `Shards` or `EdgeEnds`."""

    def write(out: Arrays) -> None:
        for number, (rows, found) in enumerate(given):
            gids = rows.astype(np.int64)
            for name, shards in found.items():
                shards.gather(gids, out[f"{number}/{name}"])

    shapes = {
        f"{number}/{name}": (shards.dtype, (len(rows), *shards.row_shape))
        for number, (rows, found) in enumerate(given)
        for name, shards in found.items()
    }
    return Reply(shapes, write)


def _table(given: Any, manifest: Manifest) -> tuple[str, int, list[str]]:
    """Reads the kind, type and names of a requested table. Raises `DataError` for a table that the graph does not have."""
    schema = manifest.schema
    if isinstance(given, list) and len(given) == 3 and given[0] in ("node", "edge") and isinstance(given[2], list):
        kind, index, names = given
        types = schema.node_types if kind == "node" else schema.edge_types
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(types):
            known = ("n_id", *manifest.node_attrs(index)) if kind == "node" else (ENDS, *manifest.edge_rows(index))
            if all(name in known for name in names):
                return kind, index, names
    raise DataError(f"gather: the graph has no table {json.dumps(given)[:200]}.")
