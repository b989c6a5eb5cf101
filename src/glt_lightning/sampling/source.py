"""What the owners of remote parts are asked, and how. `sampling.questions` has one file for each question.

A question is a frozen dataclass that knows all about itself: how it is encoded, how much memory its answer takes, how an owner
answers it, and how the replies become the answer. Those that carry it (`workers.cluster.remote_rows.PeerRows`, `workers.cluster.owner.Owner`, and
`cli.partition_report.traffic.CountingOwners`, which only counts) handle any question alike:

    caller                                                owner
    pieces()          questions that are sent at once
    to_wire()         header, arrays                 ~>   work()         checks them: Work, with the bytes of memory it takes
                                                          Work.reply()   once these are reserved: Reply, the layout of its arrays
    conversation()    reads them; what was left      <~   Reply.write    writes the arrays where they are sent from
                      out is asked for again
    joined()          the answers of all pieces

An owner keeps no state, so each message may be repeated. A reply is bounded: an owner answers the first rows of a question, as
many as fit, and the conversation yields the question for the others. Until memory is reserved a request is its body alone: `work`
reads the arrays of the message in place, and only `Work.reply` copies ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from glt_lightning.base import DataError, PickerSpec
from glt_lightning.graph import LocalPartition, Manifest, OwnerDraws, TopologyCache, stored_rows
from glt_lightning.kernels import ExcludedEdges, ExcludedEntries, GraphView
from glt_lightning.sampling.request import SamplerConfig

A = TypeVar("A")
Arrays = Mapping[str, np.ndarray]

# Edges asked for in one question: 1 MiB of ids, and a bound of the rows that a peer can have scanned at once.
MOST_PAIRS = 1 << 16
# Entries that are read one after the other between two looks at the caller: about a second's work by LABOR, less by others.
MOST_SCANNED = 1 << 26


@dataclass(frozen=True)
class Received:
    """A reply that has arrived. arrays: views of its body."""

    header: Mapping[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Reply:
    """A reply to be written. shapes: of its arrays, by name.  write: fills arrays of these dtypes and shapes.  header: the
    values beside the arrays."""

    shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    write: Callable[[Arrays], None]
    header: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray | None], dtype: np.dtype) -> Reply:
        """Arrays of integers, sent as ``dtype``; None: left out."""
        given = {name: array for name, array in arrays.items() if array is not None}

        def write(out: Arrays) -> None:
            for name, array in given.items():
                out[name][...] = array

        return cls({name: (dtype, array.shape) for name, array in given.items()}, write)

    def received(self) -> Received:
        """The reply as it arrives, in memory of its own."""
        arrays = {name: np.empty(shape, dtype) for name, (dtype, shape) in self.shapes.items()}
        self.write(arrays)
        return Received(self.header, arrays)


@dataclass(frozen=True)
class Work:
    """A request that was checked. nbytes: of memory, which an owner reserves before it calls ``reply``.  reply: takes a function
    that it calls between pieces of work that take long; this raises where the caller has left."""

    nbytes: int
    reply: Callable[[Callable[[], None]], Reply]


class OwnedParts:
    """The mapped parts of an owner, as questions read them. Thread-safe. Close it.

    most_bytes: limit of one reply; larger answers take several.  picker: that other processes may ask for.
    Raises `DataError` for a picker that cannot be made here.

    Attributes:
        wire: Type of ids between processes.
        draws: Draws rows as the options of a request say.
        shards: An attribute as it is stored, by ``node`` or ``edge``, type and name.
    """

    def __init__(self, partition: LocalPartition, most_bytes: int = 1 << 62, picker: PickerSpec | None = None) -> None:
        self.partition, self.manifest, self.most_bytes = partition, partition.manifest, most_bytes
        self.wire = wire_dtype(partition.manifest)
        self.draws = OwnerDraws(partition, picker)
        self.shards = cache(partial(stored_rows, partition))

    def answer(self, question: OwnerQuestion[A]) -> A:
        """The answer to a question, as over a network, in this process."""
        return converse(question, lambda each: self.reply(each).received)()

    def reply(self, question: OwnerQuestion[Any]) -> Reply:
        """One reply to a question, as an owner makes it."""
        return question.work(*question.to_wire(), self).reply(lambda: None)

    def close(self) -> None:
        self.shards.cache_clear()
        self.draws.close()


class InconsistentReplyError(Exception):
    """A reply contradicts itself, or the question. The text goes on after "its reply to "."""


class OwnerQuestion(ABC, Generic[A]):
    """A question to the owner of some rows; A: its answer.

    op: its name between processes.  bulk: its replies are attributes of rows: large, so that they must not stand in the way of
    others, and an owner writes them into recycled memory.
    """

    op: ClassVar[str]
    bulk: ClassVar[bool] = False

    @abstractmethod
    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the request; the question's module has their fields."""

    @classmethod
    @abstractmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """The work for a request that another process sent. Copies none of its arrays. Raises `DataError` for anything else than
        `to_wire` gives, and for an answer of which no part fits into a reply; so may the work itself."""

    @abstractmethod
    def conversation(self) -> Generator[Self, Received, A]:
        """Yields this question, then for each reply that is sent back the question for the rest, and returns the answer. Raises
        `InconsistentReplyError`."""

    def pieces(self) -> Sequence[Self]:
        """Questions to be sent at the same time."""
        return (self,)

    def joined(self, answers: Sequence[A]) -> A:
        """The answer, from those to `pieces`."""
        return answers[0]

    @property
    def attribute_rows(self) -> int:
        """Number of rows whose attributes are asked for."""
        return 0


def converse(question: OwnerQuestion[A], send: Callable[[OwnerQuestion[A]], Callable[[], Received]]) -> Callable[[], A]:
    """Asks a question at once. What it returns waits for the answer, and asks for the parts that replies leave out.

    send: sends a request, and returns a function that waits for its reply.
    """
    talks = [piece.conversation() for piece in question.pieces()]
    sent = [(talk, send(next(talk))) for talk in talks]

    @cache
    def answer() -> A:
        assert sent, "waited again after an error"  # a conversation cannot begin anew
        waiting, sent[:] = sent[:], []
        return question.joined([_finish(talk, reply, send) for talk, reply in waiting])

    return answer


def _finish(
    talk: Generator[OwnerQuestion[A], Received, A],
    reply: Callable[[], Received],
    send: Callable[[OwnerQuestion[A]], Callable[[], Received]],
) -> A:
    while True:
        try:
            rest = talk.send(reply())
        except StopIteration as end:
            answer: A = end.value
            return answer
        reply = send(rest)


class RowsQuestion(OwnerQuestion[A]):
    """A question about rows of one node type, that sources of neighbours answer: from the mapped parts, from cached lists, and by
    asking the owners of the other rows once each.

    weights: as of `DrawOptions`; edges of weight 0 are left out. Empty: none are.
    """

    weights: tuple[str | None, ...]

    @abstractmethod
    def rows(self, view: GraphView) -> tuple[int, np.ndarray]:
        """(node type, int64 [n] gids). view: the graph's stored edges. Raises `DataError` for ids that it does not have."""

    @abstractmethod
    def of_rows(self, ids: np.ndarray, which: np.ndarray) -> Self:
        """The question for those rows that ``which``, bool [n], names. ids: integer [m], their gids, or ranks in a cache."""

    @abstractmethod
    def answer(self, view: GraphView, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None) -> A:
        """The answer where all rows are mapped. require_room: is asked before memory is taken; it may raise."""

    @abstractmethod
    def answer_cached(self, lists: TopologyCache) -> A:
        """The answer where all rows are ranks in a cache."""

    @abstractmethod
    def stitch(self, owner: np.ndarray, answers: Sequence[A | None]) -> A:
        """The whole answer. owner: int32 [n], of each row.  answers: by owner; None where it has no row."""


class RemoteRows(Protocol):
    """The owners of a partitioned graph.

    num_owners: with this process, which is number 0.  owner_of_part: int32 [P].
    """

    num_owners: int
    owner_of_part: np.ndarray

    def ask(self, owner: int, question: OwnerQuestion[A]) -> Callable[[], A]:
        """Asks an owner at once; what it returns waits for the answer. Waiting raises `PeerError`, naming it."""


class EdgeOwners(Protocol):
    """The owners of remote parts, for a device that finds the further edges of its batches. config: of these."""

    config: SamplerConfig

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        """Asks the owners of the rows at once; what it returns waits for the answer."""

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Asks for the attributes of new edges: int64 edge rows by edge type."""


def wire_dtype(manifest: Manifest) -> np.dtype:
    """Type of ids between processes: int32 where all nodes and edges can be counted with it, else int64."""
    return np.dtype(np.int32 if max(manifest.total_nodes, *manifest.num_edges, 0) < 2**31 else np.int64)


# What several questions check and bound.


def weights_header(weights: Sequence[str | None]) -> dict[str, Any]:
    """``weights`` for a header; nothing where all edges weigh the same, which owners of older releases understand."""
    return {"weights": list(weights)} if any(weights) else {}


def require_ids(array: np.ndarray | None) -> np.ndarray:
    """The ids as they are. Raises `DataError` unless they are int32 or int64 [n]."""
    if array is None or array.ndim != 1 or array.dtype not in (np.int32, np.int64):
        got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise DataError(f"ids: expected int32 or int64 [n], got {got}.")
    return array


def within_work(view: GraphView, edge_type: int, gids: np.ndarray) -> np.ndarray:
    """int64 [n]: the degrees of the first rows, as many as have `MOST_SCANNED` entries together, and at least one."""
    found = view.degrees(edge_type, gids)
    return found[: max(1, int(np.searchsorted(np.cumsum(found), MOST_SCANNED, side="right")))]


def ends_of_work(counts: np.ndarray, scanned: np.ndarray | None) -> np.ndarray:
    """int64 [n]: numbers of picks after which an owner looks at its caller, since drawing them reads `MOST_SCANNED` entries.
    counts: picks of each row.  scanned: entries of each that drawing reads; None: few."""
    if scanned is None or not len(scanned):
        return np.zeros(0, np.int64)
    piece = np.cumsum(scanned) // MOST_SCANNED
    last = np.flatnonzero(piece[1:] != piece[:-1])
    found: np.ndarray = np.cumsum(counts)[last]
    return found


def require_few(what: str, excluded: ExcludedEdges | None) -> None:
    """Raises `DataError` for more excluded edges than a request may have: each may scan the longest row."""
    if excluded is not None and excluded.num_pairs > MOST_PAIRS:
        raise DataError(
            f"{what}: a request may have at most {MOST_PAIRS} excluded edges, got {excluded.num_pairs}. Use a smaller "
            "batch_size."
        )


def find_excluded(
    excluded: ExcludedEdges | None, view: GraphView, look: Callable[[], None]
) -> Mapping[int, ExcludedEntries] | None:
    """Where the rows have excluded edges; ``look`` is called between pieces of work."""
    return None if excluded is None else excluded.find(view, MOST_SCANNED, look)
