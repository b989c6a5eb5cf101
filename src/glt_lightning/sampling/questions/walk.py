"""The question that continues walks for as long as they stay in an owner's parts.

**walk** takes random walks further for as long as they stay in the owner's parts.

The request:

* ``edge_types``: indices; step j goes along the one at j modulo their number, from a node to the source of an edge into
  it
* ``length``: steps of a walk; all walks of a root have at most 65536 together
* ``restart``: of 2^32, the probability that a walk returns to its root before a step that begins the edge types anew,
  except for the first; ``ends``: the walk ends there instead
* ``weights``: as in ``expand``
* to begin walks: ``key`` (64 bits), ``walks`` (number of walks of each root), the array ``roots`` and, in a disjoint
  batch, ``trees`` int32 [n]
* to continue walks: the arrays ``roots``, ``at`` (the node at which each stands), ``streams`` uint64 (of its draws) and
  ``step`` int32 (the number of steps that it has taken)
* array ``excluded/<r>``, optional: edges that walks do not go along, as in ``expand``

The reply has ``counts``, the number of nodes that each walk reached, at least one; ``nodes``, walk after walk, with a
-1 behind the nodes of a walk that ended before its last step; and, if walks began, ``user_ids`` of the roots. An owner
answers the first roots or walks, as many as fit into ``cluster.limits.reply_size``, at most 65536 walks and at most
2^22 steps; the caller asks for the others again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from glt_lightning.base import DataError, DrawOptions
from glt_lightning.kernels import ExcludedEdges, ExcludedEntries, GraphView, WalkRule, Walks
from glt_lightning.sampling.source import (
    Arrays,
    InconsistentReplyError,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    Work,
    find_excluded,
    require_few,
    weights_header,
)

MOST_WALKS = 1 << 16  # of one question: 1.25 MiB
STEPS_AT_ONCE = 1 << 22  # steps that an owner takes before it answers: a second's work at most
STEP_BYTES = 40  # of working memory for each step: the trace, the mask of its nodes, and twice the nodes of the reply


@dataclass(frozen=True)
class Stepped:
    """The next steps of walks. counts: [n], number of nodes that each walk reached.  nodes: [sum of counts] gids, with a -1
    behind the nodes of a walk that has ended early.  user_ids: [R], those of the roots, if walks began."""

    counts: np.ndarray
    nodes: np.ndarray
    user_ids: np.ndarray | None = None

    @classmethod
    def of(cls, walks: Walks, uids: np.ndarray | None = None) -> Stepped:
        """Converts walks to their wire form. The trace must hold only the requested steps."""
        ended = walks.at < 0
        visited = walks.trace >= 0
        counts = np.count_nonzero(visited, axis=1) + ended
        first, place = np.argmax(visited, axis=1), np.arange(walks.trace.shape[1])
        np.greater_equal(place, first[:, None], out=visited)
        visited &= place < (first + counts)[:, None]
        return cls(counts, walks.trace[visited], uids)

    @classmethod
    def joined(cls, found: Sequence[Stepped]) -> Stepped:
        """Joins the steps of consecutive pieces of the walks."""
        if len(found) == 1:
            return found[0]
        uids = [each.user_ids for each in found if each.user_ids is not None]
        counts, nodes = (np.concatenate([getattr(each, name) for each in found]) for name in ("counts", "nodes"))
        return cls(counts, nodes, np.concatenate(uids) if uids else None)


@dataclass(frozen=True, kw_only=True)
class Walk(OwnerQuestion[Stepped]):
    """Asks an owner to take walks further that stand at its nodes.

    weights: as in `DrawOptions`.  roots: integer [n] gids.
    key, walks: begin so many walks from each root, with streams by this key (`Walks.begin`); trees: int32 [n], the trees of
    the roots in a disjoint batch.  Without a key, walks are continued: at [n], streams uint64 [n], step int32 [n], as in
    `Walks`.  excluded: edges of the owner's rows that walks do not go along.
    """

    op: ClassVar[str] = "walk"

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

    def _piece(self, begin: int, end: int) -> Self:
        pieces: dict[str, Any] = {name: array[begin:end] for name, array in self._of_walks.items()}
        return replace(self, **pieces)

    def pieces(self) -> Sequence[Self]:
        step = max(1, MOST_WALKS // self.walks)
        return [self._piece(begin, begin + step) for begin in range(0, len(self), step)]

    def joined(self, answers: Sequence[Stepped]) -> Stepped:
        return Stepped.joined(answers)

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        rule = {"edge_types": list(self.rule.edge_types), "length": self.rule.length, "restart": self.rule.restart}
        header: dict[str, Any] = rule | {"ends": self.rule.ends}
        header |= {} if self.key is None else {"key": self.key, "walks": self.walks}
        excluded = {} if self.excluded is None else self.excluded.to_arrays()
        return header | weights_header(self.weights), self._of_walks | excluded

    def conversation(self) -> Generator[Self, Received, Stepped]:
        """Receives the steps of the first walks, or roots, and asks for the rest after that."""
        found, done = [], 0
        while True:
            reply = (yield self._piece(done, len(self)) if done else self).arrays
            counts, nodes = (reply.get(name, np.empty(0)) for name in ("counts", "nodes"))
            found.append(Stepped(counts, nodes, reply.get("user_ids")))
            roots = self._number_of_roots(found[-1])
            if not 0 < roots <= len(self) - done:
                raise InconsistentReplyError(f"a question for {len(self) - done} walks is inconsistent.")
            done += roots
            if done == len(self):
                return Stepped.joined(found)

    def _number_of_roots(self, found: Stepped) -> int:
        """Returns the number of walks, or roots, in a reply; 0 if the reply contradicts itself."""
        columns = [found.counts, found.nodes] + ([] if found.user_ids is None else [found.user_ids])
        if any(a.ndim != 1 or a.dtype not in (np.int32, np.int64) for a in columns) or found.counts.min(initial=1) < 1:
            return 0
        roots, rest = divmod(len(found.counts), self.walks)
        if rest or found.counts.max(initial=1) > self.rule.length or found.counts.sum() != len(found.nodes):
            return 0
        begins = self.key is not None
        return roots if (found.user_ids is not None and len(found.user_ids) == roots) == begins else 0

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request; its reply has the first walks, or the first roots, as many as fit."""
        view = parts.partition.weighted(weights := DrawOptions.from_wire(header).weights)
        question = cls._from_wire(header, arrays, weights)
        require_few("walk", question.excluded)
        rule, size, most_bytes = question.rule, parts.wire.itemsize, parts.most_bytes
        rule.require(view.src_types.tolist(), view.dst_types.tolist())
        each = (question.walks * (rule.length + 1) + 1) * size
        if each > most_bytes:
            raise DataError(
                f"walk: {question.walks} walks of {rule.length} steps take {each} bytes, more than a reply of this process may "
                f"have ({most_bytes}). Use fewer or shorter walks, or raise cluster.limits.reply_size here."
            )
        steps = question.walks * rule.length
        most = max(1, min(most_bytes // each, MOST_WALKS // question.walks, STEPS_AT_ONCE // steps, len(question)))

        def reply(look: Callable[[], None]) -> Reply:
            excluded = find_excluded(question.excluded, view, look)
            found = question._piece(0, most).answer(view, excluded=excluded)
            return Reply.of({"counts": found.counts, "nodes": found.nodes, "user_ids": found.user_ids}, parts.wire)

        return Work(most * steps * STEP_BYTES, reply)

    def answer(
        self, view: GraphView, threads: int = 1, excluded: Mapping[int, ExcludedEntries] | None = None
    ) -> Stepped:
        """Takes the walks through the mapped rows. excluded: the entries of the excluded edges, if they are known.

        Raises `DataError` for nodes that are not mapped, and as `Walks.advance`."""
        roots, uids = self.roots.astype(np.int64), None
        if self.key is None:
            assert self.at is not None
            assert self.streams is not None
            assert self.step is not None
            walks = Walks(self.rule, roots, self.streams, self.at.astype(np.int64), self.step.copy())
        else:
            uids = view.user_ids_of(int(view.dst_types[self.rule.edge_types[0]]), roots)
            walks = Walks.begin(self.rule, roots, uids, self.walks, self.key, self.trees)
        if excluded is None and self.excluded is not None:
            excluded = self.excluded.find(view)
        walks.advance(view, threads=threads, excluded=excluded)
        return Stepped.of(walks, uids)

    @classmethod
    def _from_wire(cls, header: Mapping[str, Any], arrays: Arrays, weights: tuple[str | None, ...]) -> Self:
        """Decodes a question: the inverse of `to_wire`. weights: those of the header, checked. Raises `DataError`."""
        edge_types = header.get("edge_types")
        if not isinstance(edge_types, list) or not 0 < len(edge_types) <= WalkRule.MOST_STEPS:
            raise DataError(f"walk: expected a list of edge types, got {edge_types!r:.100}.")
        numbers = {name: header.get(name) for name in ("length", "restart", "ends")}
        rule = WalkRule(edge_types=tuple(edge_types), **numbers)  # type: ignore[arg-type]  # checked there
        key, walks = header.get("key"), header.get("walks", 1)
        begins = key is not None
        whole = (
            type(walks) is int
            and 1 <= walks <= WalkRule.MOST_STEPS
            and (not begins or (type(key) is int and 0 <= key < 2**64))
        )
        if not whole or walks * rule.length > WalkRule.MOST_STEPS:
            raise DataError(
                f"walk: expected a key of 64 bits and at most {WalkRule.MOST_STEPS} steps of a root, got {key!r:.50} and "
                f"{walks!r:.50} walks of {rule.length} steps."
            )
        ids: tuple[Any, ...] = np.int32, np.int64
        dtypes = {"streams": (np.uint64,), "step": ids[:1], "trees": ids[:1]}
        expected = ({"roots"}, {"roots", "trees"}) if begins else ({"roots", "at", "streams", "step"},)
        excluded = ExcludedEdges.from_arrays(arrays)
        arrays = {name: array for name, array in arrays.items() if not ExcludedEdges.is_array(name)}
        flat = all(a.ndim == 1 and a.dtype in dtypes.get(name, ids) for name, a in arrays.items())
        if set(arrays) not in expected or not flat or len({len(a) for a in arrays.values()}) > 1:
            got = {name: f"{a.dtype} {list(a.shape)}" for name, a in arrays.items()}
            raise DataError(f"walk: expected the arrays {' or '.join(map(str, map(sorted, expected)))}; got {got}.")
        if not begins and arrays["step"].min(initial=0) < 0:
            raise DataError("walk: step: expected numbers of steps from 0.")
        return cls(rule=rule, weights=weights, key=key, walks=walks, excluded=excluded, **arrays)
