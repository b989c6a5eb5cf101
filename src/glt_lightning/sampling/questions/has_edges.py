"""The question for the existence of edges.

**has_edges** tells for pairs of nodes whether an edge is stored; with ``weights``, as in ``expand``, whether one with a
weight other than 0 is. The request has ``edge_type`` (an index) and the arrays ``dst`` and ``src``, equally many gids;
the nodes ``dst`` are in the owner's parts. The reply has the array ``found`` uint8: 1 if there is an edge from
``src[i]`` to ``dst[i]``. An owner answers the first pairs, as many as fit into ``cluster.limits.reply_size``, at most
65536, and at most as many as have rows with 2^26 entries together, since rows are scanned; the caller asks for the
others again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from glt_lightning.base import DataError, DrawOptions, read_integer
from glt_lightning.graph import TopologyCache
from glt_lightning.kernels import GraphView
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.source import (
    MOST_PAIRS,
    Arrays,
    InconsistentReplyError,
    OwnedParts,
    Received,
    Reply,
    RowsQuestion,
    Work,
    require_ids,
    weights_header,
    within_work,
)

_PAIR_BYTES = 48  # bytes of memory for each pair of a question: its ids, its degree and its answer


@dataclass(frozen=True)
class HasEdges(RowsQuestion[np.ndarray]):
    """Asks if the graph has edges of a type from ``src[i]`` to ``dst[i]``, both gids. The answer is bool [n]."""

    op: ClassVar[str] = "has_edges"

    edge_type: int
    dst: np.ndarray
    src: np.ndarray
    weights: tuple[str | None, ...] = ()

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        return {"edge_type": self.edge_type} | weights_header(self.weights), {"dst": self.dst, "src": self.src}

    def conversation(self) -> Generator[Self, Received, np.ndarray]:
        """Asks for up to `MOST_PAIRS` pairs at a time; an owner answers the first of them, and the rest is asked after that."""
        whole, done = np.empty(len(self.dst), dtype=np.bool_), 0
        while True:
            reply, left = (yield self._pairs(slice(done, done + MOST_PAIRS))).arrays, len(whole) - done
            found = reply.get("found")
            if (
                found is None
                or found.dtype != np.uint8
                or found.ndim != 1
                or not 0 < len(found) <= min(left, MOST_PAIRS)
            ):
                got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise InconsistentReplyError(f"a question for {left} edges is inconsistent: it has {got}.")
            whole[done : done + len(found)] = found != 0
            done += len(found)
            if done == len(whole):
                return whole

    def _pairs(self, some: slice) -> Self:
        return replace(self, dst=self.dst[some], src=self.src[some])

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request; its reply has the first pairs: as many as fit, no more than `MOST_PAIRS`, and with no more entries
        than `within_work`."""
        view = parts.partition.weighted(DrawOptions.from_wire(header).weights)
        edge_type = read_integer(header, "edge_type", 0, view.num_edge_types - 1)
        dst, src = (require_ids(arrays.get(name)) for name in ("dst", "src"))
        if len(dst) != len(src):
            raise DataError(f"has_edges: expected as many dst as src, got {len(dst)} and {len(src)}.")
        most = max(1, min(parts.most_bytes, MOST_PAIRS))
        dst, src = dst[:most], src[:most]

        def reply(look: Callable[[], None]) -> Reply:
            look()
            view.require_pairs(edge_type, dst, src)
            fit = len(within_work(view, edge_type, dst))
            return Reply.of({"found": view.has_edges(edge_type, dst[:fit], src[:fit])}, np.dtype(np.uint8))

        return Work(_PAIR_BYTES * len(dst), reply)

    def rows(self, view: GraphView) -> tuple[int, np.ndarray]:
        view.require_pairs(self.edge_type, self.dst, self.src)
        return int(view.dst_types[self.edge_type]), np.ascontiguousarray(self.dst, dtype=np.int64)

    def of_rows(self, ids: np.ndarray, which: np.ndarray) -> Self:
        return replace(self, dst=ids, src=self.src[which].astype(ids.dtype, copy=False))

    def answer(
        self, view: GraphView, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> np.ndarray:
        return view.has_edges(self.edge_type, self.dst, self.src, threads=threads)

    def answer_cached(self, lists: TopologyCache) -> np.ndarray:
        return lists.has_edges(self.edge_type, self.dst, self.src, self.weights)

    def stitch(self, owner: np.ndarray, answers: Sequence[np.ndarray | None]) -> np.ndarray:
        found = np.empty(len(owner), dtype=np.bool_)
        for number, answer in enumerate(answers):
            if answer is not None:
                found[owner == number] = answer
        return found


class _Source(Protocol):
    config: SamplerConfig

    def ask(self, question: HasEdges) -> Callable[[], np.ndarray]: ...


class KnowsEdges:
    """The method ``has_edges`` of sources of neighbours, which the user's batch samplers may call."""

    def has_edges(self: _Source, edge_type: int, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        """Returns bool [n]: True if the graph has an edge of the type (an index) from ``src[i]`` to ``dst[i]``, both gids; if
        neighbours are drawn by weights, an edge whose weight is not 0.

        Owners of remote ``dst`` are asked once. The CPU answers from the mapped files, also if a GPU samples. Raises
        `DataError` for an edge type or ids that the graph does not have.
        """
        return self.ask(HasEdges(edge_type, dst, src, self.config.weights))()
