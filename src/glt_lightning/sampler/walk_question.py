"""What the owner of some rows is asked about walks: take them on for as long as they stay in your parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.excluded import ExcludedEdges, ExcludedEntries, is_excluded
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.walks import MOST_STEPS, WalkRule, Walks, user_ids, walk_streams

MOST_WALKS = 1 << 16  # of one question: 1.25 MiB
STEPS_AT_ONCE = 1 << 22  # that an owner takes before it answers: a second's work at most
STEP_BYTES = 40  # of memory on the way: the trace, which of it was visited, and twice the nodes of the reply


@dataclass(frozen=True)
class Stepped:
    """How walks went on. counts: [n], nodes that each came to.  nodes: [sum of counts] gids, with a -1 behind those of a walk
    that has ended early.  user_ids: [R], of the roots where walks begin."""

    counts: np.ndarray
    nodes: np.ndarray
    user_ids: np.ndarray | None = None

    @classmethod
    def of(cls, walks: Walks, uids: np.ndarray | None = None) -> Stepped:
        """Of walks of which the trace has what was asked for alone."""
        ended = walks.at < 0
        visited = walks.trace >= 0
        counts = np.count_nonzero(visited, axis=1) + ended
        first, place = np.argmax(visited, axis=1), np.arange(walks.trace.shape[1])
        np.greater_equal(place, first[:, None], out=visited)
        visited &= place < (first + counts)[:, None]
        return cls(counts, walks.trace[visited], uids)


@dataclass(frozen=True, kw_only=True)
class WalkQuestion:
    """Walks of which an owner has the next rows.

    weights: as of `DrawOptions`.  roots: integer [n] gids.
    key, walks: so many walks of each root are to begin, with streams by this key (`walk_streams`); trees: int32 [n] of the roots,
    in a disjoint batch.  Without a key, each walk is on its way: at [n], streams uint64 [n], step int32 [n], as of `Walks`.
    excluded: edges of the owner's rows that walks do not go along.
    """

    rule: WalkRule
    roots: np.ndarray
    weights: tuple[str | None, ...] = ()
    key: int | None = None
    walks: int = 1
    trees: np.ndarray | None = None
    at: np.ndarray | None = None
    streams: np.ndarray | None = None
    step: np.ndarray | None = None
    excluded: ExcludedEdges | None = None

    def __len__(self) -> int:
        return len(self.roots)

    @property
    def _of_walks(self) -> dict[str, np.ndarray]:
        each = {name: getattr(self, name) for name in ("roots", "trees", "at", "streams", "step")}
        return {name: array for name, array in each.items() if array is not None}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self._of_walks | ({} if self.excluded is None else self.excluded.to_arrays())

    def piece(self, begin: int, end: int) -> WalkQuestion:
        pieces: dict[str, Any] = {name: array[begin:end] for name, array in self._of_walks.items()}
        return replace(self, **pieces)

    def answer(
        self, view: GraphView, threads: int = 1, excluded: Mapping[int, ExcludedEntries] | None = None
    ) -> Stepped:
        """view: of the mapped parts, by these weights.  excluded: where its rows have the excluded edges, if that is known.

        Raises `DataError` for nodes that are not there, and as `advance`."""
        roots, uids = self.roots.astype(np.int64), None
        if self.key is None:
            assert self.at is not None
            assert self.streams is not None
            assert self.step is not None
            walks = Walks(self.rule, roots, self.streams, self.at.astype(np.int64), self.step.copy())
        else:
            uids = user_ids(view, int(view.dst_types[self.rule.edge_types[0]]), roots)
            streams = walk_streams(uids, self.walks, self.key, self.trees)
            walks = Walks.begin(self.rule, np.repeat(roots, self.walks), streams)
        if excluded is None and self.excluded is not None:
            excluded = self.excluded.find(view)
        walks.advance(view, threads=threads, excluded=excluded)
        return Stepped.of(walks, uids)

    def to_header(self) -> dict[str, Any]:
        """Beside `arrays`, the inverse of `from_message`."""
        rule = {"edge_types": list(self.rule.edge_types), "length": self.rule.length, "restart": self.rule.restart}
        header: dict[str, Any] = rule | {"ends": self.rule.ends}
        header |= {} if self.key is None else {"key": self.key, "walks": self.walks}
        return header | ({"weights": list(self.weights)} if any(self.weights) else {})

    @classmethod
    def from_message(
        cls, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], weights: tuple[str | None, ...]
    ) -> WalkQuestion:
        """Raises `DataError` for anything else than another process sends. weights: of the header, checked."""
        edge_types = header.get("edge_types")
        if not isinstance(edge_types, list) or not 0 < len(edge_types) <= MOST_STEPS:
            raise DataError(f"walk: expected a list of edge types, got {edge_types!r:.100}.")
        numbers = {name: header.get(name) for name in ("length", "restart", "ends")}
        rule = WalkRule(edge_types=tuple(edge_types), **numbers)  # type: ignore[arg-type]  # checked there
        key, walks = header.get("key"), header.get("walks", 1)
        begins = key is not None
        whole = (
            type(walks) is int and 1 <= walks <= MOST_STEPS and (not begins or (type(key) is int and 0 <= key < 2**64))
        )
        if not whole or walks * rule.length > MOST_STEPS:
            raise DataError(
                f"walk: expected a key of 64 bits and at most {MOST_STEPS} steps of a root, got {key!r:.50} and {walks!r:.50} "
                f"walks of {rule.length} steps."
            )
        ids: tuple[Any, ...] = np.int32, np.int64
        dtypes = {"streams": (np.uint64,), "step": ids[:1], "trees": ids[:1]}
        expected = ({"roots"}, {"roots", "trees"}) if begins else ({"roots", "at", "streams", "step"},)
        excluded = ExcludedEdges.from_arrays(arrays)
        arrays = {name: array for name, array in arrays.items() if not is_excluded(name)}
        flat = all(a.ndim == 1 and a.dtype in dtypes.get(name, ids) for name, a in arrays.items())
        if set(arrays) not in expected or not flat or len({len(a) for a in arrays.values()}) > 1:
            got = {name: f"{a.dtype} {list(a.shape)}" for name, a in arrays.items()}
            raise DataError(f"walk: expected the arrays {' or '.join(map(str, map(sorted, expected)))}; got {got}.")
        if not begins and arrays["step"].min(initial=0) < 0:
            raise DataError("walk: step: expected numbers of steps from 0.")
        return cls(rule=rule, weights=weights, key=key, walks=walks, excluded=excluded, **arrays)
