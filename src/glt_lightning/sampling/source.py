"""Questions to the owners of remote parts, and their answers. `sampling.questions` has one file for each question.

A question is a frozen dataclass that defines how it is encoded, how much memory its answer takes, how an owner answers it, and
how the replies become the answer. The code that carries questions (`workers.cluster.remote_rows.PeerRows`,
`CountingOwners` beside it, which only counts, and `workers.cluster.owner.Owner`) treats all of them alike:

    caller                                                owner
    pieces()          questions that are sent at once
    to_wire()         header, arrays                 ~>   work()         checks them: Work, with the bytes of memory it takes
                                                          Work.reply()   once these are reserved: Reply, the layout of its arrays
    conversation()    reads them; what was left      <~   Reply.write    writes the arrays where they are sent from
                      out is asked for again
    joined()          the answers of all pieces

An owner keeps no state, so each message may be repeated. A reply is bounded: an owner answers the first rows of a question, as
many as fit, and the conversation yields the question for the others. Until memory is reserved, a request takes no more memory
than its body: `work` reads the arrays of the message in place, and only `Work.reply` copies ids.
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

# Edges in one question: 1 MiB of ids. Each may scan a row, so this also bounds the work that a peer can ask for at once.
MOST_PAIRS = 1 << 16
# Entries that are read between two checks that the caller is still there: about a second's work by LABOR, less by others.
MOST_SCANNED = 1 << 26


@dataclass(frozen=True)
class Received:
    """A reply that has arrived. arrays: views of its body."""

    header: Mapping[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Reply:
    """A reply to be written. shapes: dtype and shape of its arrays, by name.  write: fills such arrays.  header: the values
    beside the arrays."""

    shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    write: Callable[[Arrays], None]
    header: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray | None], dtype: np.dtype) -> Reply:
        """Makes a reply of integer arrays, sent as ``dtype``. An array that is None is left out."""
        given = {name: array for name, array in arrays.items() if array is not None}

        def write(out: Arrays) -> None:
            for name, array in given.items():
                out[name][...] = array

        return cls({name: (dtype, array.shape) for name, array in given.items()}, write)

    def received(self) -> Received:
        """Returns the reply as its receiver gets it, in memory of its own."""
        arrays = {name: np.empty(shape, dtype) for name, (dtype, shape) in self.shapes.items()}
        self.write(arrays)
        return Received(self.header, arrays)


@dataclass(frozen=True)
class Work:
    """A request that was checked. nbytes: the memory that an owner reserves before it calls ``reply``.  reply: does the work.
    It takes a function to call between long pieces of work, which raises if the caller has left."""

    nbytes: int
    reply: Callable[[Callable[[], None]], Reply]


class OwnedParts:
    """The mapped parts of an owner, for the answers to questions. Thread-safe. Close it.

    most_bytes: limit of one reply; larger answers take several.  picker: the picker that other processes may ask for.
    Raises `DataError` for a picker that cannot be made here.

    Attributes:
        wire: Dtype of ids between processes.
        draws: Draws rows by the options of a request.
        shards: Returns an attribute as it is stored, by ``node`` or ``edge``, type and name.
    """

    def __init__(self, partition: LocalPartition, most_bytes: int = 1 << 62, picker: PickerSpec | None = None) -> None:
        self.partition, self.manifest, self.most_bytes = partition, partition.manifest, most_bytes
        self.wire = wire_dtype(partition.manifest)
        self.draws = OwnerDraws(partition, picker)
        self.shards = cache(partial(stored_rows, partition))

    def answer(self, question: OwnerQuestion[A]) -> A:
        """Answers a question in this process, through the same steps as over a network."""
        return converse(question, lambda each: self.reply(each).received)()

    def reply(self, question: OwnerQuestion[Any]) -> Reply:
        """Makes one reply to a question, as an owner does."""
        return question.work(*question.to_wire(), self).reply(lambda: None)

    def close(self) -> None:
        self.shards.cache_clear()
        self.draws.close()


class InconsistentReplyError(Exception):
    """A reply contradicts itself, or the question. Its text continues "its reply to "."""


class OwnerQuestion(ABC, Generic[A]):
    """A question to the owner of some rows; A is the type of its answer.

    op: name of the question between processes.  bulk: its replies have attributes of rows, and are large: they travel apart
    from others, which must not wait behind them, and an owner writes them into recycled memory.
    """

    op: ClassVar[str]
    bulk: ClassVar[bool] = False

    @abstractmethod
    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        """Encodes the question as header and arrays; the module of each question has their fields."""

    @classmethod
    @abstractmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request of another process and returns the work for it. Copies none of its arrays. Raises `DataError` for
        anything else than `to_wire` gives, and for an answer of which no part fits into a reply; so may the work itself."""

    @abstractmethod
    def conversation(self) -> Generator[Self, Received, A]:
        """Yields this question, then for each reply (sent into the generator) the question for the rest. Returns the answer.
        Raises `InconsistentReplyError`."""

    def pieces(self) -> Sequence[Self]:
        """Splits the question into questions that are sent at the same time."""
        return (self,)

    def joined(self, answers: Sequence[A]) -> A:
        """Joins the answers to `pieces`."""
        return answers[0]

    @property
    def attribute_rows(self) -> int:
        """Number of rows whose attributes the question asks for."""
        return 0


def converse(question: OwnerQuestion[A], send: Callable[[OwnerQuestion[A]], Callable[[], Received]]) -> Callable[[], A]:
    """Asks a question at once. Returns a function that waits for the answer, and requests the parts that replies leave out.

    send: sends a request, and returns a function that waits for its reply.
    """
    conversations = [piece.conversation() for piece in question.pieces()]
    sent = [(conversation, send(next(conversation))) for conversation in conversations]

    @cache
    def answer() -> A:
        assert sent, "waited again after an error"  # a conversation cannot begin anew
        waiting, sent[:] = sent[:], []
        return question.joined([_finish(conversation, reply, send) for conversation, reply in waiting])

    return answer


def _finish(
    conversation: Generator[OwnerQuestion[A], Received, A],
    reply: Callable[[], Received],
    send: Callable[[OwnerQuestion[A]], Callable[[], Received]],
) -> A:
    while True:
        try:
            rest = conversation.send(reply())
        except StopIteration as end:
            answer: A = end.value
            return answer
        reply = send(rest)


class RowsQuestion(OwnerQuestion[A]):
    """A question about rows of one node type. A source of neighbours answers it from the mapped parts and from cached lists,
    and asks each owner of the other rows once.

    weights: as in `DrawOptions`; edges of weight 0 are left out. Empty: no edges are left out.
    """

    weights: tuple[str | None, ...]

    @abstractmethod
    def rows(self, view: GraphView) -> tuple[int, np.ndarray]:
        """Returns (node type, int64 [n] gids) of the rows. view: the graph's stored edges. Raises `DataError` for ids that it
        does not have."""

    @abstractmethod
    def of_rows(self, ids: np.ndarray, which: np.ndarray) -> Self:
        """Returns the question for some of the rows. which: bool [n].  ids: integer [m], their gids, or ranks in a cache."""

    @abstractmethod
    def answer(self, view: GraphView, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None) -> A:
        """Answers from mapped rows. require_room: called with the bytes before memory is taken; it may raise."""

    @abstractmethod
    def answer_cached(self, lists: TopologyCache) -> A:
        """Answers from cached neighbour lists; the ids of the question are ranks in the cache."""

    @abstractmethod
    def stitch(self, owner: np.ndarray, answers: Sequence[A | None]) -> A:
        """Stitches the answers in the order of rows. owner: int32 [n], the owner of each row.  answers: by owner; None for one
        without rows."""


class RemoteRows(Protocol):
    """The owners of a partitioned graph.

    num_owners: their number, this process included, which is owner 0.  owner_of_part: int32 [P], the owner of each part.
    """

    num_owners: int
    owner_of_part: np.ndarray

    def ask(self, owner: int, question: OwnerQuestion[A]) -> Callable[[], A]:
        """Asks an owner at once, and returns a function that waits for the answer. Waiting raises `PeerError`, with the owner's
        name."""


class EdgeOwners(Protocol):
    """The owners of remote parts, for a device that finds the further edges of its batches. config: that of the batches."""

    config: SamplerConfig

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        """Asks the owners of the rows at once, and returns a function that waits for the answer."""

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Requests the attributes of new edges. edges: int64 edge rows by edge type."""


def wire_dtype(manifest: Manifest) -> np.dtype:
    """Returns the dtype of ids between processes: int32 if all nodes and edge rows can be counted with it, else int64."""
    # with an overlay there are more rows than edges
    edge_rows = (int(manifest.edge_bounds(r)[-1]) for r in range(len(manifest.num_edges)))
    return np.dtype(np.int32 if max(manifest.total_nodes, *edge_rows, 0) < 2**31 else np.int64)


# Checks and bounds that several questions share.


def weights_header(weights: Sequence[str | None]) -> dict[str, Any]:
    """Encodes ``weights`` for a header; empty if all edges weigh the same."""
    return {"weights": list(weights)} if any(weights) else {}


def require_ids(array: np.ndarray | None) -> np.ndarray:
    """Returns the ids unchanged. Raises `DataError` unless they are int32 or int64 [n]."""
    if array is None or array.ndim != 1 or array.dtype not in (np.int32, np.int64):
        got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise DataError(f"ids: expected int32 or int64 [n], got {got}.")
    return array


def within_work(view: GraphView, edge_type: int, gids: np.ndarray) -> np.ndarray:
    """Returns int64 [n], the degrees of the first rows: as many rows as have `MOST_SCANNED` entries together, at least one."""
    found = view.degrees(edge_type, gids)
    return found[: max(1, int(np.searchsorted(np.cumsum(found), MOST_SCANNED, side="right")))]


def ends_of_work(counts: np.ndarray, scanned: np.ndarray | None) -> np.ndarray:
    """Returns int64 [n], the numbers of picks after which an owner checks that its caller is still there: between two of them
    drawing reads `MOST_SCANNED` entries. counts: picks of each row.  scanned: entries that drawing reads in each row; None:
    few."""
    if scanned is None or not len(scanned):
        return np.zeros(0, np.int64)
    piece = np.cumsum(scanned) // MOST_SCANNED
    last = np.flatnonzero(piece[1:] != piece[:-1])
    found: np.ndarray = np.cumsum(counts)[last]
    return found


def require_few(what: str, excluded: ExcludedEdges | None) -> None:
    """Raises `DataError` for more excluded edges than a request may have: each may cost a scan of the longest row."""
    if excluded is not None and excluded.num_pairs > MOST_PAIRS:
        raise DataError(
            f"{what}: a request may have at most {MOST_PAIRS} excluded edges, got {excluded.num_pairs}. Use a smaller "
            "batch_size."
        )


def find_excluded(
    excluded: ExcludedEdges | None, view: GraphView, look: Callable[[], None]
) -> Mapping[int, ExcludedEntries] | None:
    """Finds the excluded edges in the rows, by edge type. look: called between pieces of work."""
    return None if excluded is None else excluded.find(view, MOST_SCANNED, look)
