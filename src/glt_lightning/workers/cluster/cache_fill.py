"""Fetches remote rows in bulk from their owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import PeerError, Progress
from glt_lightning.graph import Manifest
from glt_lightning.kernels import Router, row_bytes
from glt_lightning.sampling import Arrays, AskedRows, Gather, RemoteRows, wire_dtype

_CHUNK_BYTES = 4 << 20  # of rows asked for at once
_AHEAD = 8  # questions in flight


@dataclass(frozen=True)
class Wanted:
    """Rows to fetch.

    kind: ``node`` or ``edge``.  type: index in the schema.  ids: int64 [n] gids or edge rows.  bounds: int64 [P + 1], the
    first id of each part.  rows: attribute -> [n, ...], the arrays to write, in the order of ids.
    """

    kind: str
    type: int
    ids: np.ndarray
    bounds: np.ndarray
    rows: Mapping[str, np.ndarray]

    @classmethod
    def nodes(cls, manifest: Manifest, node_type: int, gids: np.ndarray, rows: Mapping[str, np.ndarray]) -> Wanted:
        bounds = np.asarray(manifest.bounds[node_type], dtype=np.int64) + manifest.offsets[node_type]
        return cls("node", node_type, gids, bounds, rows)


def fetch_rows(
    wanted: Sequence[Wanted], manifest: Manifest, remote: RemoteRows, title: str, progress: bool | None = None
) -> None:
    """Fetches the rows and writes them to ``wanted``. Raises `PeerError` for an owner that does not answer, or whose answer
    has other dtypes or shapes."""
    with Progress(progress).phase(title, sum(len(each.ids) for each in wanted), "rows") as done:
        waiting: deque[_Asked] = deque()
        for each in wanted:
            for asked in _questions(each, manifest, remote):
                waiting.append(asked)
                if len(waiting) >= _AHEAD:
                    done(waiting.popleft().store())
        while waiting:
            done(waiting.popleft().store())


@dataclass(frozen=True)
class _Asked:
    """One question in flight. at: int64 [n], positions of its ids in ``wanted.ids``.  parts: the parts of the owner asked."""

    wanted: Wanted
    at: np.ndarray
    parts: np.ndarray
    answer: Callable[[], Sequence[Arrays]]

    def store(self) -> int:
        (found,) = self.answer()
        for name, rows in self.wanted.rows.items():
            theirs = found[name]
            if theirs.dtype != rows.dtype or theirs.shape != (len(self.at), *rows.shape[1:]):
                raise PeerError(
                    f"the owner of parts {self.parts.tolist()} answered {theirs.dtype} {list(theirs.shape)} for "
                    f"{len(self.at)} rows of {name!r}, {rows.dtype} {list(rows.shape[1:])} each. Run the same version of "
                    "glt_lightning, on the same partition, on all hosts."
                )
            rows[self.at] = theirs
        return len(self.at)


def _questions(wanted: Wanted, manifest: Manifest, remote: RemoteRows) -> Iterator[_Asked]:
    router = Router(wanted.bounds, remote.owner_of_part, remote.num_owners, wire_dtype(manifest))
    names = tuple(wanted.rows)
    each = sum(row_bytes(a.dtype, a.shape[1:]) for a in wanted.rows.values())
    chunk = max(1, _CHUNK_BYTES // max(1, each))
    for first in range(0, len(wanted.ids), chunk):
        route = router(wanted.ids[first : first + chunk], np.zeros(remote.num_owners, dtype=np.int64))
        for owner in range(1, remote.num_owners):
            if len(ids := route.of(owner)):
                at = first + np.flatnonzero(route.owner == owner)
                parts = np.flatnonzero(np.asarray(remote.owner_of_part) == owner)
                answer = remote.ask(owner, Gather([AskedRows(wanted.kind, wanted.type, names, ids)]))
                yield _Asked(wanted, at, parts, answer)
